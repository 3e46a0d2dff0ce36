// decant: BlockMemory, memory in blocks of tokens that are found again by the digest of the prefix that they end
// (vLLM's block pool and prefix cache): an engine's page allocator, for Batch. A block is held by the requests that use
// it; one that nobody holds keeps its content until it is needed, the one unused for longest going first, and of one
// request's the last before the first, so that a chain loses its end and not its beginning.
// Without `verify_tokens` a collision of 64-bit digests would give a request another's rows: q^2 / 2^65 by chance, q
// being the blocks, and at will for whoever may choose prompts and knows the seed.
#ifndef DECANT_SCHEDULING_BLOCK_MEMORY_HPP
#define DECANT_SCHEDULING_BLOCK_MEMORY_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "chain_hash.hpp"
#include "detail/key_table.hpp"
#include "detail/use_list.hpp"
#include "kv_memory.hpp"

namespace decant::scheduling {

struct BlockMemoryOptions {
  std::uint32_t blocks = 1024;
  std::uint32_t block_tokens = 16;
  bool reuse = true;           ///< false: no prefix is ever found
  bool verify_tokens = false;  ///< compare tokens before a block is reused: 4 bytes per token; requests need `tokens`
  std::uint64_t seed = 0;      ///< of the digests that are made of tokens
  bool operator==(const BlockMemoryOptions&) const = default;
};

/// Prefixes are those of prompts: digests come from RequestInfo::chain, one per block, or are made of its tokens at
/// every look, which an engine with long queues should spare itself. A block can be found from the step after the one
/// that computed it. Nothing is allocated once every slot has been used.
class BlockMemory {
 public:
  /// ArgumentError: no blocks, 2^31 of them, or blocks of no tokens.
  explicit BlockMemory(const BlockMemoryOptions& options)
      : o_(options), blocks_(options.blocks + std::size_t{1}), table_(options.reuse ? options.blocks : 0) {
    constexpr auto where = "scheduling::BlockMemory";
    require(options.blocks >= 1 && options.blocks < 0x7fffffffu, where, "options.blocks", "1 to 2^31 - 2",
            options.blocks);
    require(options.block_tokens >= 1, where, "options.block_tokens", "at least 1", options.block_tokens);
    blocks_[end()].previous = blocks_[end()].next = end();
    for (std::uint32_t b = 0; b < options.blocks; ++b) link_before(end(), b);
    if (options.verify_tokens) tokens_.resize(std::size_t{options.blocks} * options.block_tokens);
  }

  const BlockMemoryOptions& options() const { return o_; }
  std::uint64_t capacity() const { return std::uint64_t{o_.blocks} * o_.block_tokens; }
  std::uint64_t used() const { return std::uint64_t{o_.blocks - free_} * o_.block_tokens; }
  /// Blocks whose content can be found.
  std::size_t cached() const { return table_.size(); }
  /// The blocks of a running request, in the order of its tokens: its page list. Valid until the next change.
  View<const std::int32_t, 1> blocks(RequestId id) const {
    return {held_[id].blocks.data(), static_cast<index_t>(held_[id].blocks.size())};
  }
  /// Requests that hold a block.
  std::uint32_t holders(std::int32_t block) const { return blocks_[static_cast<std::uint32_t>(block)].holders; }

  std::uint32_t hit(const RequestInfo& info, std::uint32_t tokens) const {
    if (!o_.reuse) return 0;
    std::uint32_t found = 0;
    for_each_key(info, tokens / o_.block_tokens, [&](std::uint32_t at, std::uint64_t key) {
      const std::uint32_t block = table_.find(key);
      if (block == detail::KeyTable::none || !same_tokens(block, info, at)) return false;
      ++found;
      return true;
    });
    return found * o_.block_tokens;
  }

  bool open(RequestId id, const RequestInfo& info, std::uint32_t hit, std::uint32_t tokens) {
    if (id >= held_.size()) held_.resize(id + std::size_t{1});
    Held& held = held_[id];
    held.info = info;
    held.keys.clear();
    if (o_.reuse) {
      for_each_key(info, info.prompt / o_.block_tokens, [&](std::uint32_t, std::uint64_t key) {
        held.keys.push_back(key);
        return true;
      });
    }
    const std::uint32_t found = hit / o_.block_tokens, wanted = blocks_of(tokens);
    // Blocks that nobody holds are free and stop being so.
    std::uint32_t revived = 0;
    for (std::uint32_t i = 0; i < found; ++i) revived += blocks_[table_.find(held.keys[i])].holders == 0;
    if (wanted - found + revived > free_) return false;
    held.blocks.clear();
    for (std::uint32_t i = 0; i < found; ++i) {
      const std::uint32_t block = table_.find(held.keys[i]);
      if (blocks_[block].holders++ == 0) unlink(block);
      held.blocks.push_back(static_cast<std::int32_t>(block));
    }
    held.published = found;
    held.tokens = tokens;
    take(held, wanted - found);
    return true;
  }

  bool grow(RequestId id, std::uint32_t tokens) {
    Held& held = held_[id];
    const auto wanted = blocks_of(tokens) - static_cast<std::uint32_t>(held.blocks.size());
    if (wanted > free_) return false;
    take(held, wanted);
    // What there was room for before has been computed since.
    publish(held, held.tokens);
    held.tokens = tokens;
    return true;
  }

  void close(RequestId id, const RequestInfo&, std::uint32_t tokens) {
    Held& held = held_[id];
    publish(held, (std::min)(tokens, held.tokens));
    for (std::size_t i = held.blocks.size(); i-- > 0;) {
      const auto block = static_cast<std::uint32_t>(held.blocks[i]);
      if (--blocks_[block].holders > 0) continue;
      // One without content goes first.
      link_before(blocks_[block].cached ? end() : blocks_[end()].next, block);
    }
    held.blocks.clear();
  }

 private:
  struct Block {
    std::uint64_t key = 0;
    std::uint32_t holders = 0;
    std::uint32_t previous = 0, next = 0;  // in the list of those that nobody holds, the first to go first
    bool cached = false;
  };
  struct Held {
    std::vector<std::int32_t> blocks;
    std::vector<std::uint64_t> keys;  // of whole blocks of the prompt
    std::uint32_t published = 0;      // blocks that can be found, or cannot be made to
    std::uint32_t tokens = 0;         // that there is room for
    RequestInfo info{};               // of whom it is
  };

  std::uint32_t end() const { return o_.blocks; }
  std::uint32_t blocks_of(std::uint32_t tokens) const { return tokens / o_.block_tokens + (tokens % o_.block_tokens != 0); }

  void link_before(std::uint32_t at, std::uint32_t block) {
    detail::link_before(blocks_, at, block);
    ++free_;
  }
  void unlink(std::uint32_t block) {
    detail::unlink(blocks_, block);
    --free_;
  }

  void take(Held& held, std::uint32_t count) {
    for (; count > 0; --count) {
      const std::uint32_t block = blocks_[end()].next;
      unlink(block);
      if (blocks_[block].cached) table_.erase(blocks_[block].key);
      blocks_[block].cached = false;
      blocks_[block].holders = 1;
      held.blocks.push_back(static_cast<std::int32_t>(block));
    }
  }

  /// Makes the request's whole blocks among its first `tokens` tokens findable. A prefix that two requests compute at
  /// once is found in the block of the first.
  void publish(Held& held, std::uint32_t tokens) {
    auto whole = (std::min)(tokens / o_.block_tokens, static_cast<std::uint32_t>(held.keys.size()));
    if (o_.verify_tokens) {
      whole = (std::min)(whole, static_cast<std::uint32_t>(held.info.tokens.extent(0)) / o_.block_tokens);
    }
    for (; held.published < whole; ++held.published) {
      const auto block = static_cast<std::uint32_t>(held.blocks[held.published]);
      std::uint32_t& place = table_[held.keys[held.published]];
      if (place != detail::KeyTable::none) continue;
      place = block;
      blocks_[block].key = held.keys[held.published];
      blocks_[block].cached = true;
      if (!o_.verify_tokens) continue;
      const std::uint32_t* const from = held.info.tokens.data() + std::size_t{held.published} * o_.block_tokens;
      std::copy(from, from + o_.block_tokens, tokens_.data() + std::size_t{block} * o_.block_tokens);
    }
  }

  /// use(i, key) for the keys of the first `count` blocks, as far as there are any and until it returns false.
  template <class Use>
  void for_each_key(const RequestInfo& info, std::uint32_t count, const Use& use) const {
    if (!info.chain.empty()) {
      const auto known = (std::min)(count, static_cast<std::uint32_t>(info.chain.extent(0)));
      for (std::uint32_t i = 0; i < known && use(i, info.chain[i]); ++i) {
      }
      return;
    }
    PrefixDigest digest{o_.seed, ~o_.seed};
    const auto known = (std::min)(count, static_cast<std::uint32_t>(info.tokens.extent(0)) / o_.block_tokens);
    for (std::uint32_t i = 0; i < known; ++i) {
      digest = detail::next_digest(digest, info.tokens.data() + std::size_t{i} * o_.block_tokens, o_.block_tokens);
      if (!use(i, digest.key)) return;
    }
  }

  bool same_tokens(std::uint32_t block, const RequestInfo& info, std::uint32_t at) const {
    if (!o_.verify_tokens) return true;
    const std::uint64_t first = std::uint64_t{at} * o_.block_tokens;
    if (static_cast<std::uint64_t>(info.tokens.extent(0)) < first + o_.block_tokens) return false;
    return std::equal(info.tokens.data() + first, info.tokens.data() + first + o_.block_tokens,
                      tokens_.data() + std::size_t{block} * o_.block_tokens);
  }

  BlockMemoryOptions o_;
  std::vector<Block> blocks_;  // and one more, the ends of the list
  std::uint32_t free_ = 0;
  detail::KeyTable table_;
  std::vector<std::uint32_t> tokens_;  // of every block, where they are compared
  std::vector<Held> held_;             // per slot
};

static_assert(KvMemory<BlockMemory>);

}  // namespace decant::scheduling

#endif
