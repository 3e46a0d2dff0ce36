// decant: BlockIndex, a prefix cache of whole blocks, found by the digest of the prefix that they end: the index of
// BlockMemory without the memory, for routers and simulations that only ask what is there. What goes first is the block
// unused for longest that nothing continues. A collision of 64-bit digests finds what is not there (chain_hash.hpp).
#ifndef DECANT_SCHEDULING_BLOCK_INDEX_HPP
#define DECANT_SCHEDULING_BLOCK_INDEX_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "chain_hash.hpp"
#include "detail/key_table.hpp"
#include "detail/use_list.hpp"
#include "prefix_index.hpp"

namespace decant::scheduling {

class BlockIndex {
 public:
  /// ArgumentError: a block of 0.
  explicit BlockIndex(std::uint32_t block = 16, std::uint64_t seed = 0) : hasher_(block, seed), blocks_(1) {
    blocks_[0].previous = blocks_[0].next = 0;
  }

  std::uint32_t granularity() const { return hasher_.chunk(); }
  std::size_t size() const { return table_.size() * granularity(); }
  /// Of memory, the allocator's own and one prompt's digests not counted.
  std::size_t bytes() const {
    return table_.bytes() + blocks_.capacity() * sizeof(Block) + free_.capacity() * sizeof(std::uint32_t);
  }

  std::size_t match(View<const std::uint32_t, 1> tokens) { return match_chain(chain_of(tokens)); }
  std::size_t insert(View<const std::uint32_t, 1> tokens) { return insert_chain(chain_of(tokens)); }

  /// match() that counts as no use and changes nothing.
  std::size_t peek(View<const std::uint32_t, 1> tokens) const {
    require(tokens.contiguous(), "scheduling::BlockIndex::peek", "tokens", "contiguous tokens", tokens.stride(0));
    const std::size_t n = static_cast<std::size_t>(tokens.extent(0)) / granularity();
    PrefixDigest digest = hasher_.seed();
    for (std::size_t i = 0; i < n; ++i) {
      digest = detail::next_digest(digest, tokens.data() + i * granularity(), granularity());
      if (table_.find(digest.key) == detail::KeyTable::none) return i * granularity();
    }
    return n * granularity();
  }

  /// The same of digests that are known already. In tokens.
  std::size_t match_chain(View<const std::uint64_t, 1> chain) {
    const std::size_t found = find(chain);
    // The end of a chain is older than its beginning, so that it goes first.
    for (std::size_t i = found; i-- > 0;) use(table_.find(chain[static_cast<index_t>(i)]));
    return found * granularity();
  }
  std::size_t insert_chain(View<const std::uint64_t, 1> chain) {
    const std::size_t found = find(chain);
    std::uint32_t before = found == 0 ? 0 : table_.find(chain[static_cast<index_t>(found) - 1]);
    for (auto i = static_cast<index_t>(found); i < chain.extent(0); ++i) before = add(chain[i], before);
    for (index_t i = chain.extent(0); i-- > 0;) use(table_.find(chain[i]));
    return found * granularity();
  }

  /// match_chain() that counts as no use, in blocks.
  std::uint32_t peek_chain(View<const std::uint64_t, 1> chain) const {
    return static_cast<std::uint32_t>(find(chain));
  }
  /// The digests of all blocks, the least recently used first.
  template <class Use>
  void for_each_key(const Use& use) const {
    for (std::uint32_t b = blocks_[0].next; b != 0; b = blocks_[b].next) use(blocks_[b].key);
  }

  /// O(blocks that go).
  std::size_t evict(std::size_t count) {
    std::size_t gone = 0;
    for (std::uint32_t b = blocks_[0].next; b != 0 && gone < count;) {
      const std::uint32_t next = blocks_[b].next;
      if (blocks_[b].continuations == 0) {
        remove(b);
        gone += granularity();
      }
      b = next;
    }
    return gone;
  }

 private:
  struct Block {
    std::uint64_t key = 0;
    std::uint32_t before = 0;         // the block that it continues; 0: none
    std::uint32_t continuations = 0;
    std::uint32_t previous = 0, next = 0;  // by use, the oldest first; block 0 is the ends of the list
  };

  View<const std::uint64_t, 1> chain_of(View<const std::uint32_t, 1> tokens) {
    hasher_.clear();
    hasher_.append(tokens);
    return hasher_.keys();
  }
  std::size_t find(View<const std::uint64_t, 1> chain) const {
    index_t i = 0;
    while (i < chain.extent(0) && table_.find(chain[i]) != detail::KeyTable::none) ++i;
    return static_cast<std::size_t>(i);
  }

  std::uint32_t add(std::uint64_t key, std::uint32_t before) {
    std::uint32_t b = static_cast<std::uint32_t>(blocks_.size());
    if (free_.empty()) {
      blocks_.emplace_back();
    } else {
      b = free_.back();
      free_.pop_back();
    }
    blocks_[b] = {key, before, 0, 0, 0};
    ++blocks_[before].continuations;
    table_[key] = b;
    detail::link_before(blocks_, 0, b);
    return b;
  }
  void remove(std::uint32_t b) {
    detail::unlink(blocks_, b);
    table_.erase(blocks_[b].key);
    --blocks_[blocks_[b].before].continuations;
    free_.push_back(b);
  }
  void use(std::uint32_t b) {
    detail::unlink(blocks_, b);
    detail::link_before(blocks_, 0, b);
  }

  ChainHasher hasher_;
  detail::KeyTable table_;
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> free_;
};

static_assert(PrefixIndex<BlockIndex>);

}  // namespace decant::scheduling

#endif
