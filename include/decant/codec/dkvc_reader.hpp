// decant: dkvc::Reader, a DKVC file that lies in memory (read, mapped or received), never copied. The constructor
// checks everything but the payloads: prologue, table, order, bounds, gaps, trailer and totals against the limits,
// before it allocates. So every section that a Reader names lies inside the bytes and is safe to verify and decode.
#ifndef DECANT_CODEC_DKVC_READER_HPP
#define DECANT_CODEC_DKVC_READER_HPP

#include <cstdint>
#include <vector>

#include "dkvc_section.hpp"

namespace decant::codec::dkvc {

namespace detail {

/// The prologue of a file (or, with total_size and section_count 0, of a stream).
struct Prologue {
  int minor_version = version_minor;
  std::uint32_t flags = 0;
  index_t total_size = 0;
  index_t section_count = 0;
  index_t header_bytes = prologue_size;
  std::uint64_t content_id = 0;
  std::uint32_t table_crc = 0;
};

/// Critical: sections follow in frames (dkvc_stream.hpp), not in a file.
inline constexpr std::uint32_t flag_stream = 1;

inline void write_prologue(const Prologue& p, std::byte* to) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<std::byte>(magic[i]);
  store_le(to + 8, static_cast<std::uint16_t>(version_major));
  store_le(to + 10, static_cast<std::uint16_t>(p.minor_version));
  store_le(to + 12, p.flags);
  store_le(to + 16, static_cast<std::uint64_t>(p.total_size));
  store_le(to + 24, static_cast<std::uint32_t>(p.section_count));
  store_le(to + 28, static_cast<std::uint32_t>(p.header_bytes));
  store_le(to + 32, p.content_id);
  for (int i = 40; i < 56; ++i) to[i] = std::byte{0};
  store_le(to + 56, p.table_crc);
  store_le(to + 60, crc32c(View<const std::byte, 1>(to, 60)));
}

/// Checks what a prologue says by itself: magic, checksum, version, flags, reserved bytes.
inline Prologue read_prologue(const char* where, const std::byte* from, std::uint32_t flags) {
  for (int i = 0; i < 8; ++i) {
    expect(from[i] == static_cast<std::byte>(magic[i]), where, "magic", static_cast<int>(magic[i]),
           static_cast<int>(from[i]));
  }
  const std::uint32_t crc = crc32c(View<const std::byte, 1>(from, 60));
  expect(load_le<std::uint32_t>(from + 60) == crc, where, "prologue_crc32c", crc, load_le<std::uint32_t>(from + 60));
  const int major_number = load_le<std::uint16_t>(from + 8);
  expect(major_number == version_major, where, "major version", version_major, major_number);
  Prologue p;
  p.minor_version = load_le<std::uint16_t>(from + 10);
  p.flags = load_le<std::uint32_t>(from + 12);
  expect((p.flags & 0xffffu) == flags, where, "critical flags", flags, p.flags & 0xffffu);
  const auto total = load_le<std::uint64_t>(from + 16);
  expect(total <= largest_size, where, "total_size", "a size below 2^61", total);
  p.total_size = static_cast<index_t>(total);
  p.section_count = load_le<std::uint32_t>(from + 24);
  p.header_bytes = load_le<std::uint32_t>(from + 28);
  p.content_id = load_le<std::uint64_t>(from + 32);
  for (int i = 40; i < 56; ++i) expect(from[i] == std::byte{0}, where, "reserved", 0, static_cast<int>(from[i]));
  p.table_crc = load_le<std::uint32_t>(from + 56);
  return p;
}

inline void write_trailer(std::uint32_t checksums_crc, std::byte* to) {
  store_le(to, checksums_crc);
  store_le(to + 4, std::uint32_t{0});
  for (int i = 0; i < 8; ++i) to[8 + i] = static_cast<std::byte>(magic[7 - i]);
}

inline void check_trailer(const char* where, const std::byte* from, std::uint32_t checksums_crc) {
  const auto crc = load_le<std::uint32_t>(from);
  expect(crc == checksums_crc, where, "trailer crc32c", checksums_crc, crc);
  const auto zero = load_le<std::uint32_t>(from + 4);
  expect(zero == 0, where, "trailer reserved", 0, zero);
  for (int i = 0; i < 8; ++i) {
    expect(from[8 + i] == static_cast<std::byte>(magic[7 - i]), where, "trailer magic", static_cast<int>(magic[7 - i]),
           static_cast<int>(from[8 + i]));
  }
}

/// The trailer's CRC, one section on.
inline std::uint32_t add_checksum(std::uint32_t crc, const Section& s) {
  std::byte bytes[8];
  store_le(bytes, s.checksum);
  return crc32c(View<const std::byte, 1>(bytes, 8), crc);
}

}  // namespace detail

/// Sections [first, first + count) of a reader.
struct SectionRange {
  index_t first = 0;
  index_t count = 0;
  bool operator==(const SectionRange&) const = default;
};

/// A view of a file's bytes, which must outlive it. Const calls from several threads at once are safe, each with its
/// own context. FormatError names what is wrong in the bytes.
class Reader {
 public:
  /// O(sections), and the META payload's size. `bytes` contiguous; no alignment is needed.
  explicit Reader(View<const std::byte, 1> bytes, const Limits& limits = {}) : bytes_(bytes) {
    validate(limits);
    require_contiguous(bytes, where, "bytes");
    const detail::Prologue p = check_prologue(limits);
    check_table(p, limits);
    sections_.reserve(static_cast<std::size_t>(p.section_count));
    for (index_t i = 0; i < p.section_count; ++i) sections_.push_back(entry(i));
    content_id_ = p.content_id;
    minor_version_ = p.minor_version;
    const std::uint64_t id = sections_.empty() || !sections_[0].is_meta() ? 0 : xxh3_64(payload(0));
    detail::expect(content_id_ == id, where, "content_id", id, content_id_);
  }

  /// All sections in file order, those of unknown, non-critical types included.
  View<const Section, 1> sections() const { return sections_; }
  index_t size() const { return static_cast<index_t>(sections_.size()); }
  const Section& section(index_t i) const {
    require(
        i >= 0 && i < size(), "codec::dkvc::Reader::section", "i", [&] { return "0 to " + std::to_string(size() - 1); },
        i);
    return sections_[static_cast<std::size_t>(i)];
  }

  /// The stored bytes of section i, and the payload in them.
  View<const std::byte, 1> stored(index_t i) const {
    const Section& s = section(i);
    return bytes_.slice(0, s.offset, s.stored_size);
  }
  View<const std::byte, 1> payload(index_t i) const { return dkvc::payload(section(i), stored(i)); }

  /// The META payload (read_card() in cache_card.hpp reads it); empty if there is none.
  View<const std::byte, 1> card() const {
    return sections_.empty() || !sections_[0].is_meta() ? View<const std::byte, 1>() : payload(0);
  }
  /// XXH3-64 of the card, 0 if there is none.
  std::uint64_t content_id() const { return content_id_; }
  int minor_version() const { return minor_version_; }

  /// FormatError unless section i is as it was written. O(stored_size).
  void verify(Cpu& cpu, index_t i) const { dkvc::verify(cpu, section(i), stored(i)); }
  /// The same for all sections but those, of unknown types, whose kind of check is unknown too.
  void verify(Cpu& cpu) const {
    for (index_t i = 0; i < size(); ++i) {
      if (section(i).check <= Check::xxh3) verify(cpu, i);
    }
  }

  /// See dkvc::decode.
  template <Storage T>
  void decode(Cpu& cpu, index_t i, View<T, 1> y, Verify check = Verify::yes) const {
    dkvc::decode(cpu, section(i), stored(i), y, check);
  }
  template <class C>
  requires KVCodec<C, Cpu>
  void decode(Cpu& cpu, const C& codec, index_t i, View<typename C::element, 1> y, Verify check = Verify::yes) const {
    dkvc::decode(cpu, codec, section(i), stored(i), y, check);
  }

  /// The tensor sections of a layer and kind that hold any of `token_count` tokens from token_begin. O(log sections).
  SectionRange find(index_t layer, Kind kind, index_t token_begin = 0, index_t token_count = index_t{1} << 32) const {
    constexpr index_t most = index_t{1} << 32;
    require(token_begin >= 0 && token_begin <= most && token_count >= 0 && token_count <= most,
            "codec::dkvc::Reader::find", "tokens", "a range within [0, 2^33)", token_begin);
    const auto before = [&](const Section& s, index_t token) {
      if (detail::rank(s) != 1) return detail::rank(s) < 1;
      if (s.layer != layer) return s.layer < layer;
      if (s.kind != kind) return s.kind < kind;
      return index_t{s.token_begin} + s.token_count <= token;
    };
    const auto starts_before = [&](const Section& s, index_t token) {
      return before(s, 0) || (s.is_tensor() && s.layer == layer && s.kind == kind && s.token_begin < token);
    };
    const index_t first = partition_point([&](const Section& s) { return before(s, token_begin); });
    const index_t last = partition_point([&](const Section& s) { return starts_before(s, token_begin + token_count); });
    return {first, token_count > 0 && last > first ? last - first : 0};
  }

 private:
  static constexpr const char* where = "codec::dkvc::Reader";

  detail::Prologue check_prologue(const Limits& limits) const {
    const index_t size = bytes_.extent(0);
    detail::expect(size >= prologue_size + trailer_size, where, "size", "at least 80 bytes", size);
    detail::expect(
        size <= limits.max_total_bytes, where, "size", [&] { return detail::at_most(limits.max_total_bytes); }, size);
    const detail::Prologue p = detail::read_prologue(where, bytes_.data(), 0);
    detail::expect(p.total_size == size, where, "total_size", size, p.total_size);
    const index_t most = limits.max_sections < most_sections ? limits.max_sections : most_sections;
    detail::expect(
        p.section_count <= most, where, "section_count", [&] { return detail::at_most(most); }, p.section_count);
    const index_t header = prologue_size + entry_size * p.section_count;
    detail::expect(p.header_bytes == header, where, "header_bytes", header, p.header_bytes);
    detail::expect(
        header <= size - trailer_size, where, "header_bytes", [&] { return detail::at_most(size - trailer_size); },
        header);
    const std::uint32_t crc = crc32c(bytes_.slice(0, prologue_size, header - prologue_size));
    detail::expect(p.table_crc == crc, where, "table_crc32c", crc, p.table_crc);
    return p;
  }

  Section entry(index_t i) const {
    return detail::read_entry(where, i, bytes_.data() + prologue_size + entry_size * i);
  }

  /// Every entry by itself and in its place; the gaps and the trailer.
  void check_table(const detail::Prologue& p, const Limits& limits) const {
    const index_t end = p.total_size - trailer_size;
    index_t at = p.header_bytes;
    std::uint32_t checksums = 0;
    detail::Totals totals;
    Section before;
    for (index_t i = 0; i < p.section_count; ++i) {
      const Section s = entry(i);
      detail::check_section(where, i, s, limits, totals);
      if (i > 0) detail::check_order(where, i, before, s);
      detail::expect_section(s.offset == at, where, i, "offset", at, s.offset);
      detail::expect_section(
          s.stored_size <= end - at, where, i, "stored_size", [&] { return detail::at_most(end - at); }, s.stored_size);
      at = check_gap(at + s.stored_size, end);
      checksums = detail::add_checksum(checksums, s);
      before = s;
    }
    detail::expect(at == end, where, "total_size", at + trailer_size, p.total_size);
    detail::check_trailer(where, bytes_.data() + end, checksums);
  }

  /// The zeros from `at` to the next multiple of 64; returns that.
  index_t check_gap(index_t at, index_t end) const {
    const index_t next = padded(at);
    detail::expect(next <= end, where, "total_size", next + trailer_size, end + trailer_size);
    for (; at < next; ++at) {
      detail::expect(bytes_[at] == std::byte{0}, where, "gap", 0, static_cast<int>(bytes_[at]));
    }
    return next;
  }

  /// How many sections from the front satisfy `in_front`, which holds for a front part.
  template <class Predicate>
  index_t partition_point(const Predicate& in_front) const {
    index_t low = 0;
    index_t high = size();
    while (low < high) {
      const index_t middle = low + (high - low) / 2;
      if (in_front(sections_[static_cast<std::size_t>(middle)])) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  View<const std::byte, 1> bytes_;
  std::vector<Section> sections_;
  std::uint64_t content_id_ = 0;
  int minor_version_ = 0;
};

}  // namespace decant::codec::dkvc

#endif
