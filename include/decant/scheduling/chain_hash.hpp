// decant: digests of whole prefixes of a token sequence, one per chunk of K tokens, each made from the one before and
// the chunk: equal digests mean, collisions aside, that everything up to there is equal. The common currency of the block
// cache, of Feather's index and of what routers tell each other. Two lanes of 64 bits, multiplied and folded (ours), not
// cryptographic: who may choose prompts can make two collide, so a cache shared by strangers should be seeded with a
// secret or compare tokens. Among q digests of the 64-bit keys a chance collision has probability about q^2 / 2^65, of
// both lanes q^2 / 2^129.
#ifndef DECANT_SCHEDULING_CHAIN_HASH_HPP
#define DECANT_SCHEDULING_CHAIN_HASH_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::scheduling {

struct PrefixDigest {
  std::uint64_t key = 0;    ///< the first lane, enough where a match is verified or a miss is harmless
  std::uint64_t check = 0;  ///< the second
  bool operator==(const PrefixDigest&) const = default;
};

namespace detail {

/// Both halves of a 128-bit product, folded.
constexpr std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) {
  __extension__ typedef unsigned __int128 Wide;
  const Wide product = Wide{a} * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

constexpr std::uint64_t rotate(std::uint64_t x, int by) { return x << by | x >> (64 - by); }

/// Four tokens into one lane. Were a factor 0, the second word would still be there.
constexpr std::uint64_t absorb(std::uint64_t lane, std::uint64_t first, std::uint64_t second, std::uint64_t odd) {
  return fold_product(lane ^ first, second ^ odd) ^ rotate(second, 32);
}

constexpr std::uint64_t pair(std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; }

/// The digest of a prefix whose last chunk is `tokens` [n], read in order, after `before`.
constexpr PrefixDigest next_digest(const PrefixDigest& before, const std::uint32_t* tokens, std::size_t n) {
  constexpr std::uint64_t odd_a = 0x9e3779b97f4a7c15u, odd_b = 0xd1b54a32d192ed03u;
  std::uint64_t a = before.key ^ odd_b, b = before.check ^ odd_a;
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const std::uint64_t first = pair(tokens[i], tokens[i + 1]), second = pair(tokens[i + 2], tokens[i + 3]);
    a = absorb(a, first, second, odd_a);
    b = absorb(b, second, first, odd_b);
  }
  std::uint32_t rest[4] = {};
  for (std::size_t j = 0; i + j < n; ++j) rest[j] = tokens[i + j];
  a = absorb(a, pair(rest[0], rest[1]), pair(rest[2], rest[3]) ^ n, odd_a);
  b = absorb(b, pair(rest[2], rest[3]), pair(rest[0], rest[1]) ^ n, odd_b);
  return {fold_product(a ^ rotate(b, 17), odd_b), fold_product(b ^ rotate(a, 23), odd_a)};
}

}  // namespace detail

/// Digests of a sequence that grows. The same tokens give the same digests however they are cut into appends.
class ChainHasher {
 public:
  /// chunk: K, tokens per digest. seed: what else must be equal for a prefix to be the same (adapter, image, tenant).
  /// ArgumentError: a chunk of 0.
  explicit ChainHasher(std::uint32_t chunk, std::uint64_t seed = 0) : chunk_(chunk), seed_{seed, ~seed} {
    require(chunk > 0, "scheduling::ChainHasher", "chunk", "at least 1 token", chunk);
  }

  std::uint32_t chunk() const { return chunk_; }
  /// The digest of nothing, which the first chunk's is made from.
  PrefixDigest seed() const { return seed_; }
  void clear() {
    keys_.clear();
    begun_.clear();
    last_ = seed_;
  }

  /// O(tokens), several GB/s.
  void append(View<const std::uint32_t, 1> tokens) {
    require(tokens.contiguous(), "scheduling::ChainHasher::append", "tokens", "contiguous tokens", tokens.stride(0));
    const std::uint32_t* at = tokens.data();
    auto left = static_cast<std::size_t>(tokens.extent(0));
    while (left > 0) {
      if (begun_.empty() && left >= chunk_) {
        complete(at);
        at += chunk_;
        left -= chunk_;
        continue;
      }
      const std::size_t room = chunk_ - begun_.size(), n = left < room ? left : room;
      begun_.insert(begun_.end(), at, at + n);
      at += n;
      left -= n;
      if (begun_.size() < chunk_) continue;
      complete(begun_.data());
      begun_.clear();
    }
  }

  /// Of whole chunks.
  const std::vector<std::uint64_t>& keys() const { return keys_; }
  /// Both lanes, of all whole chunks.
  PrefixDigest last() const { return last_; }
  /// Of the whole sequence, the begun chunk included: equals that of another sequence only if that one ends here too.
  PrefixDigest whole() const {
    return begun_.empty() ? last_ : detail::next_digest(last_, begun_.data(), begun_.size());
  }
  bool between_chunks() const { return begun_.empty(); }

 private:
  void complete(const std::uint32_t* tokens) {
    last_ = detail::next_digest(last_, tokens, chunk_);
    keys_.push_back(last_.key);
  }

  std::uint32_t chunk_;
  PrefixDigest seed_;
  PrefixDigest last_ = seed_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> begun_;
};

/// The keys of `tokens`, one per whole chunk; `partial`: and one of the whole sequence where its last chunk is begun.
inline std::vector<std::uint64_t> chain_keys(View<const std::uint32_t, 1> tokens, std::uint32_t chunk,
                                             bool partial = false, std::uint64_t seed = 0) {
  ChainHasher hasher(chunk, seed);
  hasher.append(tokens);
  std::vector<std::uint64_t> keys = hasher.keys();
  if (partial && !hasher.between_chunks()) keys.push_back(hasher.whole().key);
  return keys;
}

}  // namespace decant::scheduling

#endif
