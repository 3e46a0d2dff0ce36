// decant: KvMemory, the ledger of a cache that requests share: who holds how much of it, and what of a prompt is in it
// already. TokenMemory is the plain one, which counts tokens; one that reuses prefixes stands in block_memory.hpp.
#ifndef DECANT_SCHEDULING_KV_MEMORY_HPP
#define DECANT_SCHEDULING_KV_MEMORY_HPP

#include <concepts>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "request.hpp"

namespace decant::scheduling {

template <class M>
concept KvMemory = requires(M& memory, const M& still, RequestId id, const RequestInfo& info, std::uint32_t tokens) {
  /// Tokens that fit in all, and tokens that running requests hold now.
  { still.capacity() } -> std::same_as<std::uint64_t>;
  { still.used() } -> std::same_as<std::uint64_t>;
  /// How many of the first `tokens` tokens of a request that is not running are in memory and would be reused. Changes
  /// nothing that can be seen.
  { still.hit(info, tokens) } -> std::same_as<std::uint32_t>;
  /// A request starts: reuses its first `hit` tokens (as hit() has just said) and takes room for `tokens` in all.
  /// False: no room, and nothing has changed.
  { memory.open(id, info, tokens, tokens) } -> std::same_as<bool>;
  /// A running request takes room for `tokens` tokens in all. False: no room, nothing changed.
  { memory.grow(id, tokens) } -> std::same_as<bool>;
  /// A running request gives everything back; its first `tokens` tokens are valid and may be kept for others.
  memory.close(id, info, tokens);
};

/// Counts tokens; no prefix is ever found. Every call O(1).
class TokenMemory {
 public:
  /// `capacity`: M, tokens whose keys and values fit.
  explicit TokenMemory(std::uint64_t capacity) : capacity_(capacity) {}

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t used() const { return used_; }
  std::uint32_t hit(const RequestInfo&, std::uint32_t) const { return 0; }

  bool open(RequestId id, const RequestInfo&, std::uint32_t, std::uint32_t tokens) {
    if (id >= held_.size()) held_.resize(id + std::size_t{1}, 0);
    return grow(id, tokens);
  }

  bool grow(RequestId id, std::uint32_t tokens) {
    const std::uint64_t more = tokens - held_[id];
    if (used_ + more > capacity_) return false;
    used_ += more;
    held_[id] = tokens;
    return true;
  }

  void close(RequestId id, const RequestInfo&, std::uint32_t) {
    used_ -= held_[id];
    held_[id] = 0;
  }

 private:
  std::uint64_t capacity_;
  std::uint64_t used_ = 0;
  std::vector<std::uint32_t> held_;  // tokens, per slot
};

static_assert(KvMemory<TokenMemory>);

}  // namespace decant::scheduling

#endif
