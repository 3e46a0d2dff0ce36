// decant: CacheReplay, what a block cache of some capacity would have found of a trace of prompts, each a chain of
// block digests or ids (Mooncake's hash_ids): least recently used over blocks, those of a prompt used from first to last,
// a hit being a block whose whole prefix is there. The plain definition that published hit ratios use; BlockIndex uses
// a prompt's blocks from last to first, so that no chain loses its beginning, and finds slightly more.
#ifndef DECANT_SCHEDULING_CACHE_REPLAY_HPP
#define DECANT_SCHEDULING_CACHE_REPLAY_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"
#include "detail/key_table.hpp"
#include "detail/use_list.hpp"

namespace decant::scheduling {

class CacheReplay {
 public:
  /// ArgumentError: a capacity of no blocks, or of 2^32 - 2 and more.
  explicit CacheReplay(std::size_t capacity) : capacity_(capacity), blocks_(1) {
    require(capacity >= 1 && capacity < 0xfffffffeu, "scheduling::CacheReplay", "capacity", "1 to 2^32 - 3 blocks",
            capacity);
  }

  /// The next prompt; how many of its first blocks were there. O(1) per block; allocates while the cache fills.
  std::size_t serve(View<const std::uint64_t, 1> chain) {
    const index_t n = chain.extent(0);
    index_t found = 0;
    while (found < n && table_.find(chain[found]) != detail::KeyTable::none) ++found;
    for (index_t i = 0; i < n; ++i) use(chain[i]);
    asked_ += static_cast<std::uint64_t>(n);
    hits_ += static_cast<std::uint64_t>(found);
    return static_cast<std::size_t>(found);
  }

  std::uint64_t asked() const { return asked_; }  ///< blocks of all prompts so far
  std::uint64_t hits() const { return hits_; }    ///< of them found
  std::size_t cached() const { return table_.size(); }
  /// hits() / asked(); 0 before the first block.
  double hit_ratio() const {
    return asked_ == 0 ? 0.0 : static_cast<double>(hits_) / static_cast<double>(asked_);
  }

 private:
  struct Block {
    std::uint64_t key = 0;
    std::uint32_t previous = 0, next = 0;  // by use, the oldest first; block 0 is the ends of the list
  };

  void use(std::uint64_t key) {
    std::uint32_t b = table_.find(key);
    if (b != detail::KeyTable::none) {
      detail::unlink(blocks_, b);
    } else if (table_.size() < capacity_) {
      b = static_cast<std::uint32_t>(blocks_.size());
      blocks_.push_back({key, 0, 0});
      table_[key] = b;
    } else {
      b = blocks_[0].next;
      detail::unlink(blocks_, b);
      table_.erase(blocks_[b].key);
      blocks_[b].key = key;
      table_[key] = b;
    }
    detail::link_before(blocks_, 0, b);
  }

  std::size_t capacity_;
  std::vector<Block> blocks_;
  detail::KeyTable table_;
  std::uint64_t asked_ = 0, hits_ = 0;
};

}  // namespace decant::scheduling

#endif
