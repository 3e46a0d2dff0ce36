// decant: kv::PageTable, a small page table for hosts that have none: hands out the pages of a pool, shares them
// between sequences, and keeps the CSR arrays that PagedKV reads. An engine with a block manager of its own does not
// need it.
#ifndef DECANT_KV_PAGE_TABLE_HPP
#define DECANT_KV_PAGE_TABLE_HPP

#include <cstdint>
#include <vector>

#include "paged_kv.hpp"

namespace decant::kv {

/// Owns the table, not the pool. Views of it (and PagedKV values) are good until the next call that changes it.
/// Free pages are handed out lowest first at the beginning, later in the order last freed, first used.
class PageTable {
 public:
  PageTable(index_t pages, index_t page_size, index_t sequences) : page_size_(page_size) {
    constexpr const char* where = "kv::PageTable";
    require(pages >= 0 && pages <= 0x7fffffff, where, "pages", "0 to 2^31 - 1", pages);
    require(page_size >= 1 && page_size <= 0x7fffffff, where, "page_size", "1 to 2^31 - 1", page_size);
    require(sequences >= 0, where, "sequences", "at least 0", sequences);
    references_.assign(static_cast<std::size_t>(pages), 0);
    indptr_.assign(static_cast<std::size_t>(sequences) + 1, 0);
    last_page_len_.assign(static_cast<std::size_t>(sequences), 0);
    indices_.reserve(static_cast<std::size_t>(pages));
    free_.reserve(static_cast<std::size_t>(pages));
    for (index_t p = pages - 1; p >= 0; --p) free_.push_back(static_cast<std::int32_t>(p));
  }

  index_t pages() const { return static_cast<index_t>(references_.size()); }
  index_t page_size() const { return page_size_; }
  index_t sequences() const { return static_cast<index_t>(last_page_len_.size()); }
  index_t free_pages() const { return static_cast<index_t>(free_.size()); }
  /// How many sequences hold a page.
  index_t references(index_t page) const { return references_[static_cast<std::size_t>(page)]; }
  index_t length(index_t sequence) const {
    const index_t used = used_pages(sequence);
    return used == 0 ? 0 : (used - 1) * page_size_ + last_page_len_[static_cast<std::size_t>(sequence)];
  }

  View<std::int32_t, 1> indptr() { return indptr_; }
  View<std::int32_t, 1> indices() { return indices_; }
  View<std::int32_t, 1> last_page_len() { return last_page_len_; }

  /// The cache: this table over a pool of pages, keys [pages, kv_heads, page_size, key_dim] in any strides.
  template <class T>
  PagedKV<T> attach(View<T, 4> keys, View<T, 4> values) {
    require_equal(keys.extent(0), pages(), "kv::PageTable::attach", "keys");
    require_equal(keys.extent(2), page_size_, "kv::PageTable::attach", "keys");
    return {keys, values, indptr(), indices(), last_page_len()};
  }

  /// Makes room for `tokens` more tokens. ArgumentError, and no change, when there are not enough free pages, or when
  /// the partly filled last page is shared (the new rows would show in the other sequence). O(table) if it takes pages.
  void extend(index_t sequence, index_t tokens) {
    constexpr const char* where = "kv::PageTable::extend";
    require_sequence(sequence, where);
    require(tokens >= 0 && tokens <= 0x7fffffff, where, "tokens", "0 to 2^31 - 1", tokens);
    if (tokens == 0) return;
    const index_t used = used_pages(sequence);
    const index_t length_after = length(sequence) + tokens;
    const index_t wanted = (length_after + page_size_ - 1) / page_size_;
    require(wanted - used <= free_pages(), where, "tokens",
            [&] {
              return "at most the " +
                     std::to_string(used * page_size_ - length(sequence) + free_pages() * page_size_) +
                     " that free pages hold";
            },
            tokens);
    if (used > 0 && last_page_len_[static_cast<std::size_t>(sequence)] < page_size_) {
      const index_t last = indices_[static_cast<std::size_t>(end(sequence) - 1)];
      require(references(last) == 1, where, "sequence", "a last page that no other sequence shares", last);
    }
    indices_.insert(indices_.begin() + static_cast<std::ptrdiff_t>(end(sequence)),
                    static_cast<std::size_t>(wanted - used), 0);
    for (index_t i = used; i < wanted; ++i) {
      const std::int32_t page = free_.back();
      free_.pop_back();
      references_[static_cast<std::size_t>(page)] = 1;
      indices_[static_cast<std::size_t>(begin(sequence) + i)] = page;
    }
    move_ends(sequence, wanted - used);
    set_last(sequence, length_after, wanted);
  }

  /// Keeps the first `tokens` tokens; pages that no sequence holds any more are free again.
  void truncate(index_t sequence, index_t tokens) {
    constexpr const char* where = "kv::PageTable::truncate";
    require_sequence(sequence, where);
    require(tokens >= 0 && tokens <= length(sequence), where, "tokens",
            [&] { return "0 to the length of " + std::to_string(length(sequence)); }, tokens);
    const index_t used = used_pages(sequence);
    const index_t wanted = (tokens + page_size_ - 1) / page_size_;
    const auto first = indices_.begin() + static_cast<std::ptrdiff_t>(begin(sequence) + wanted);
    const auto last = first + static_cast<std::ptrdiff_t>(used - wanted);
    for (auto page = last; page != first;) release(*--page);
    indices_.erase(first, last);
    move_ends(sequence, wanted - used);
    set_last(sequence, tokens, wanted);
  }

  /// Lets the empty sequence `to` begin with the first `count` pages of `from`, all of them full: a common prefix.
  void share(index_t from, index_t to, index_t count) {
    constexpr const char* where = "kv::PageTable::share";
    require_sequence(from, where);
    require_sequence(to, where);
    require(length(to) == 0, where, "to", "an empty sequence", length(to));
    require(count >= 0 && count <= length(from) / page_size_, where, "count",
            [&] { return "0 to the " + std::to_string(length(from) / page_size_) + " full pages"; }, count);
    if (count == 0) return;
    const index_t source = begin(from);
    const index_t target = begin(to);
    indices_.insert(indices_.begin() + static_cast<std::ptrdiff_t>(target), static_cast<std::size_t>(count), 0);
    const index_t moved = source + (target <= source ? count : 0);
    for (index_t i = 0; i < count; ++i) {
      const std::int32_t page = indices_[static_cast<std::size_t>(moved + i)];
      indices_[static_cast<std::size_t>(target + i)] = page;
      ++references_[static_cast<std::size_t>(page)];
    }
    move_ends(to, count);
    set_last(to, count * page_size_, count);
  }

 private:
  index_t begin(index_t sequence) const { return indptr_[static_cast<std::size_t>(sequence)]; }
  index_t end(index_t sequence) const { return indptr_[static_cast<std::size_t>(sequence) + 1]; }
  index_t used_pages(index_t sequence) const { return end(sequence) - begin(sequence); }

  void require_sequence(index_t sequence, const char* where) const {
    require(sequence >= 0 && sequence < sequences(), where, "sequence",
            [&] { return "an index below " + std::to_string(sequences()); }, sequence);
  }
  void release(std::int32_t page) {
    if (--references_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);
  }
  void move_ends(index_t sequence, index_t by) {
    for (index_t s = sequence; s < sequences(); ++s) {
      indptr_[static_cast<std::size_t>(s) + 1] += static_cast<std::int32_t>(by);
    }
  }
  void set_last(index_t sequence, index_t tokens, index_t used) {
    last_page_len_[static_cast<std::size_t>(sequence)] =
        static_cast<std::int32_t>(used == 0 ? 0 : tokens - (used - 1) * page_size_);
  }

  index_t page_size_;
  std::vector<std::int32_t> references_;
  std::vector<std::int32_t> indptr_;
  std::vector<std::int32_t> indices_;
  std::vector<std::int32_t> last_page_len_;
  std::vector<std::int32_t> free_;
};

}  // namespace decant::kv

#endif
