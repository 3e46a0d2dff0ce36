// decant: KeyTable, from 64-bit digests to small numbers: open addressing, linear probing, no tombstones. Digests are
// random already, so they are their own hashes. Its order is nobody's business and cannot be asked.
#ifndef DECANT_SCHEDULING_DETAIL_KEY_TABLE_HPP
#define DECANT_SCHEDULING_DETAIL_KEY_TABLE_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

namespace decant::scheduling::detail {

class KeyTable {
 public:
  static constexpr std::uint32_t none = 0xffffffffu;

  /// Room for so many keys before it grows.
  explicit KeyTable(std::size_t keys = 0) { reset(keys); }

  /// Empty again, with room for so many keys; allocates only where there was less.
  void reset(std::size_t keys) {
    std::size_t slots = 16;
    while (slots < 2 * keys) slots *= 2;
    slots_.assign(slots, Slot{});
    size_ = 0;
  }

  std::size_t size() const { return size_; }
  std::size_t bytes() const { return slots_.size() * sizeof(Slot); }

  std::uint32_t find(std::uint64_t key) const {
    std::size_t s = home(key);
    while (slots_[s].value != none && slots_[s].key != key) s = next(s);
    return slots_[s].value;
  }

  /// The value of a key, which is `none` if it is new; assign one before the next call.
  std::uint32_t& operator[](std::uint64_t key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    std::size_t s = home(key);
    while (slots_[s].value != none && slots_[s].key != key) s = next(s);
    if (slots_[s].value == none) {
      slots_[s].key = key;
      ++size_;
    }
    return slots_[s].value;
  }

  /// Closes the gap, so that no search ends before what it looks for.
  void erase(std::uint64_t key) {
    std::size_t gap = home(key);
    while (slots_[gap].value != none && slots_[gap].key != key) gap = next(gap);
    if (slots_[gap].value == none) return;
    --size_;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t s = next(gap); slots_[s].value != none; s = next(s)) {
      if (((s - home(slots_[s].key)) & mask) < ((s - gap) & mask)) continue;
      slots_[gap] = slots_[s];
      gap = s;
    }
    slots_[gap] = Slot{};
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t value = none;
  };

  std::size_t home(std::uint64_t key) const {
    return static_cast<std::size_t>(key * 0x9e3779b97f4a7c15u >> 20) & (slots_.size() - 1);
  }
  std::size_t next(std::size_t s) const { return (s + 1) & (slots_.size() - 1); }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.value == none) continue;
      std::size_t s = home(slot.key);
      while (slots_[s].value != none) s = next(s);
      slots_[s] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace decant::scheduling::detail

#endif
