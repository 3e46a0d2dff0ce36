#pragma once
// Mutations of DKVC files that tend to get past the first check: fields set to what overflows or is just off, sections
// swapped, doubled and overlapped, cuts and splices.
#include <algorithm>

#include "dkvc_repair.hpp"

namespace dkvc_test {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : state_(seed) {}

  /// One change. The file may grow by at most 256 bytes.
  void mutate(Bytes& file, const Bytes& other) {
    if (file.size() < 80) return;
    switch (below(11)) {
      case 0:
        return flip(any_place(file));
      case 1:
        return set_byte(any_place(file));
      case 2:
        return set_field(file);
      case 3:
        return set_field(file);
      case 4:
        return set_number(any_place(file), std::size_t{1} << below(4));
      case 5:
        return swap_entries(file);
      case 6:
        return copy_entry(file);
      case 7:
        return file.resize(below(file.size()) + 1);
      case 8:
        return splice(file, other);
      case 9:
        return overlap(file);
      default:
        return insert_section(file);
    }
  }

  /// One field of the entry at `entry`.
  void mutate_field(Bytes& file, std::size_t entry) {
    constexpr Field fields[] = {{0, 4},  {4, 2},  {6, 2},  {8, 4},  {12, 1}, {13, 1}, {14, 2},
                                {16, 8}, {24, 8}, {32, 8}, {40, 4}, {44, 4}, {48, 8}, {56, 8}};
    const Field f = fields[below(14)];
    set_number({file, entry + f.at}, f.size);
  }

  std::uint64_t below(std::uint64_t n) { return n == 0 ? 0 : word() % n; }

 private:
  struct Field {
    std::size_t at, size;
  };
  struct Place {
    Bytes& file;
    std::size_t at;
  };

  std::uint64_t word() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

  static std::size_t sections(const Bytes& file) {
    const std::size_t claimed = decant::load_le<std::uint32_t>(file.data() + 24);
    const std::size_t room = (file.size() - 80) / 64;
    return claimed < room ? claimed : room;
  }
  std::size_t any_entry(const Bytes& file) { return 64 + 64 * below(sections(file)); }

  /// Prologue and entries as often as all the rest; and the front of a stored section.
  Place any_place(Bytes& file) {
    const std::size_t header = std::min(64 + 64 * sections(file), file.size());
    if (word() % 3 == 0) return {file, below(header)};
    if (word() % 2 == 0 && sections(file) > 0) {
      const auto offset = decant::load_le<std::uint64_t>(file.data() + any_entry(file) + 16);
      if (offset < file.size()) return {file, std::min(offset + below(200), file.size() - 1)};
    }
    return {file, below(file.size())};
  }

  void flip(Place p) { p.file[p.at] ^= static_cast<std::byte>(1u << below(8)); }

  void set_byte(Place p) {
    constexpr unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
    p.file[p.at] = static_cast<std::byte>(values[below(5)]);
  }

  /// Some number of `size` bytes there becomes one that is dangerous, or one that is near.
  void set_number(Place p, std::size_t size) {
    if (p.file.size() < size) return;
    const std::size_t at = std::min(p.at, p.file.size() - size);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value |= std::to_integer<std::uint64_t>(p.file[at + i]) << (8 * i);
    const std::uint64_t values[] = {0,           ~std::uint64_t{0},      value + 1,      value - 1,
                                    0xffffffffu, std::uint64_t{1} << 63, value * 2,      value + 64,
                                    value - 64,  p.file.size(),          value ^ 0x8000, below(64)};
    value = values[below(12)];
    for (std::size_t i = 0; i < size; ++i) p.file[at + i] = static_cast<std::byte>(value >> (8 * i));
  }

  /// A field of the prologue or of an entry, whole.
  void set_field(Bytes& file) {
    constexpr Field prologue[] = {{8, 2}, {10, 2}, {12, 4}, {16, 8}, {24, 4}, {28, 4}, {32, 8}, {40, 8}};
    if (word() % 4 != 0) return mutate_field(file, any_entry(file));
    const Field f = prologue[below(8)];
    set_number({file, f.at}, f.size);
  }

  void swap_entries(Bytes& file) {
    if (sections(file) < 2) return;
    const std::size_t a = any_entry(file);
    const std::size_t b = any_entry(file);
    for (std::size_t i = 0; i < 64; ++i) std::swap(file[a + i], file[b + i]);
  }

  void copy_entry(Bytes& file) {
    if (sections(file) < 2) return;
    const std::size_t a = any_entry(file);
    const std::size_t b = any_entry(file);
    for (std::size_t i = 0; i < 64; ++i) file[a + i] = file[b + i];
  }

  /// One section's offset or size becomes another's.
  void overlap(Bytes& file) {
    if (sections(file) < 2) return;
    const std::size_t field = word() % 2 == 0 ? 16 : 24;
    const std::size_t a = any_entry(file) + field;
    const std::size_t b = any_entry(file) + field;
    for (std::size_t i = 0; i < 8; ++i) file[a + i] = file[b + i];
  }

  void splice(Bytes& file, const Bytes& other) {
    const std::size_t from = below(other.size());
    const std::size_t to = below(file.size());
    const std::size_t size = std::min({below(300), other.size() - from, file.size() - to});
    for (std::size_t i = 0; i < size; ++i) file[to + i] = other[from + i];
  }

  /// An entry twice, with everything behind it moved: all that says how long the file is fits again.
  void insert_section(Bytes& file) {
    if (sections(file) == 0) return;
    const std::size_t count = sections(file);
    const std::size_t entry = any_entry(file);
    const Bytes copy(file.begin() + static_cast<std::ptrdiff_t>(entry),
                     file.begin() + static_cast<std::ptrdiff_t>(entry + 64));
    file.insert(file.begin() + static_cast<std::ptrdiff_t>(entry + 64), copy.begin(), copy.end());
    for (std::size_t i = 0; i <= count; ++i) {
      std::byte* const offset = file.data() + 64 + 64 * i + 16;
      decant::store_le(offset, decant::load_le<std::uint64_t>(offset) + 64);
    }
    if (word() % 2 == 0) {  // an empty one, which need not overlap
      std::byte* const stored = file.data() + entry + 64 + 24;
      decant::store_le(file.data() + entry + 64 + 16, decant::load_le<std::uint64_t>(file.data() + entry + 16));
      decant::store_le(stored, std::uint64_t{0});
      decant::store_le(stored + 8, std::uint64_t{0});
    }
    decant::store_le(file.data() + 16, static_cast<std::uint64_t>(file.size()));
    decant::store_le(file.data() + 24, static_cast<std::uint32_t>(count + 1));
    decant::store_le(file.data() + 28, static_cast<std::uint32_t>(64 * (count + 2)));
  }

  std::uint64_t state_;
};

}  // namespace dkvc_test
