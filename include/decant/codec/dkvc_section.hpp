// decant: one DKVC section by itself: encoding elements into its stored bytes, checking these, decoding them. The file
// reader and writer and the streams are made of these functions. Codecs are found by id: SplitZip's three and Stored
// are read without being named; any KVCodec value, the user's own included, can be given.
#ifndef DECANT_CODEC_DKVC_SECTION_HPP
#define DECANT_CODEC_DKVC_SECTION_HPP

#include <cstdint>
#include <vector>

#include "../core/cpu.hpp"
#include "crc32c.hpp"
#include "dkvc_format.hpp"
#include "splitzip.hpp"
#include "stored.hpp"
#include "xxh3.hpp"

namespace decant::codec::dkvc {

/// Which part of a cache a tensor section holds: tokens [token_begin, token_begin + token_count) of one layer.
struct Place {
  index_t layer = 0;
  Kind kind = Kind::key;
  index_t token_begin = 0;
  index_t token_count = 0;
  /// See Section::params_ref.
  std::uint64_t params_ref = 0;
};

/// How sections are checked: blocks of 2^block_log2 bytes, 6 to 30, for Check::crc32c.
struct Checks {
  Check check = Check::crc32c;
  int block_log2 = 16;
};

/// Whether decode() checks the stored bytes first.
enum class Verify : bool { no, yes };

inline void validate(const Checks& checks) {
  constexpr const char* where = "codec::dkvc::Checks";
  require(checks.check <= Check::xxh3, where, "check", "none, crc32c or xxh3", static_cast<int>(checks.check));
  require(checks.block_log2 >= 6 && checks.block_log2 <= 30, where, "block_log2", "6 to 30", checks.block_log2);
}

/// A section and memory that holds its stored bytes. One object may be filled again and again: its memory is kept.
class SectionData {
 public:
  Section section;

  /// The stored bytes: block CRCs and payload.
  View<const std::byte, 1> stored() const { return {memory_.data() + first_, section.stored_size}; }

  /// No section: what is left after an error.
  void clear() {
    section = Section{};
    first_ = 0;
  }

  /// Memory for a payload of up to `most` bytes behind room for block CRCs; the payload starts at a multiple of 64.
  /// The section is cleared. place_payload() then says how much was written.
  std::byte* payload_room(index_t most, const Checks& checks) {
    clear();
    const index_t head = payload_offset(most, checks.check, checks.block_log2);
    grow(head + most + alignment);
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data() + head);
    payload_at_ = head + static_cast<index_t>((alignment - address % alignment) % alignment);
    return memory_.data() + payload_at_;
  }

  /// The stored bytes begin with the head that this payload size needs. Sets stored_size, check and block_log2.
  void place_payload(index_t size, const Checks& checks) {
    const index_t head = payload_offset(size, checks.check, checks.block_log2);
    first_ = payload_at_ - head;
    section.stored_size = head + size;
    section.check = checks.check;
    section.block_log2 = static_cast<std::uint16_t>(checks.check == Check::crc32c ? checks.block_log2 : 0);
  }

  /// Memory of at least `size` bytes from its front; what was in there stays. For readers, which grow it as bytes come.
  std::byte* front(index_t size) {
    grow(size);
    return memory_.data();
  }

  std::byte* stored_data() { return memory_.data() + first_; }

 private:
  void grow(index_t size) {
    if (static_cast<index_t>(memory_.size()) < size) memory_.resize(static_cast<std::size_t>(size));
  }

  std::vector<std::byte> memory_;
  index_t first_ = 0;
  index_t payload_at_ = 0;
};

/// The payload within a section's stored bytes.
inline View<const std::byte, 1> payload(const Section& s, View<const std::byte, 1> stored) {
  const index_t size = payload_size(s);
  return stored.slice(0, s.stored_size - size, size);
}

namespace detail {

/// Block b of a payload.
inline View<const std::byte, 1> block(View<const std::byte, 1> payload, int block_log2, index_t b) {
  const index_t first = b << block_log2;
  const index_t rest = payload.extent(0) - first;
  const index_t size = index_t{1} << block_log2;
  return payload.slice(0, first, rest < size ? rest : size);
}

/// Threads are worth it from about a megabyte each.
inline index_t blocks_per_thread(int block_log2) {
  return block_log2 >= 20 ? 1 : index_t{1} << (20 - block_log2);
}

/// Fills in block CRCs, padding and the section's checksum; the payload is in its place.
inline void seal(Cpu& cpu, SectionData& data) {
  Section& s = data.section;
  const View<const std::byte, 1> body = payload(s, data.stored());
  if (s.check == Check::none) {
    s.checksum = 0;
  } else if (s.check == Check::xxh3) {
    s.checksum = xxh3_64(body);
  } else {
    std::byte* const crcs = data.stored_data();
    const index_t blocks = block_count(body.extent(0), s.block_log2);
    cpu.parallel_ranges(blocks, blocks_per_thread(s.block_log2), [&](index_t first, index_t last, index_t) {
      for (index_t b = first; b < last; ++b) store_le(crcs + 4 * b, crc32c(block(body, s.block_log2, b)));
    });
    const index_t head = s.stored_size - body.extent(0);
    for (index_t i = 4 * blocks; i < head; ++i) crcs[i] = std::byte{0};
    s.checksum = crc32c(View<const std::byte, 1>(crcs, 4 * blocks));
  }
}

inline std::uint32_t narrow(const char* where, const char* argument, index_t value) {
  require(value >= 0 && value < 0xffffffff, where, argument, "0 to 2^32 - 2", value);
  return static_cast<std::uint32_t>(value);
}

/// Checks and writes down a tensor section's place; sizes and checksum come later.
inline Section section_at(const char* where, const Place& place, DType dtype, index_t elements) {
  Section s;
  s.type = tensor_type;
  s.dtype = static_cast<std::uint16_t>(dtype);
  s.layer = narrow(where, "place.layer", place.layer);
  require(place.kind < Kind::meta, where, "place.kind", "key, value, c_kv or k_r", static_cast<int>(place.kind));
  s.kind = place.kind;
  s.token_begin = narrow(where, "place.token_begin", place.token_begin);
  s.token_count = narrow(where, "place.token_count", place.token_count);
  s.element_count = elements;
  s.params_ref = place.params_ref;
  return s;
}

/// The first difference between the bytes and what the entry says of them, as FormatError.
inline void verify_blocks(Cpu& cpu, const char* where, const Section& s, View<const std::byte, 1> stored) {
  const View<const std::byte, 1> body = payload(s, stored);
  const index_t blocks = block_count(body.extent(0), s.block_log2);
  const std::uint32_t sum = crc32c(stored.slice(0, 0, 4 * blocks));
  expect(sum == s.checksum, where, "checksum of the block checksums", s.checksum, sum);
  for (index_t i = 4 * blocks; i < s.stored_size - body.extent(0); ++i) {
    expect(stored[i] == std::byte{0}, where, "padding of the block checksums", 0, static_cast<int>(stored[i]));
  }
  const index_t grain = blocks_per_thread(s.block_log2);
  const index_t parts = cpu.parts(blocks, grain);
  Workspace::Scope scope(cpu.workspace());
  index_t* const bad = cpu.workspace().take<index_t>(parts);
  cpu.parallel_ranges(blocks, grain, [&](index_t first, index_t last, index_t part) {
    bad[part] = -1;
    for (index_t b = first; b < last && bad[part] < 0; ++b) {
      if (crc32c(block(body, s.block_log2, b)) != load_le<std::uint32_t>(stored.data() + 4 * b)) bad[part] = b;
    }
  });
  for (index_t part = 0; part < parts; ++part) {
    const index_t b = bad[part];
    if (b < 0) continue;
    const std::string name = "checksum of block " + std::to_string(b);
    expect(false, where, name.c_str(), load_le<std::uint32_t>(stored.data() + 4 * b),
           crc32c(block(body, s.block_log2, b)));
  }
}

}  // namespace detail

/// Encodes x [n], contiguous, into a tensor section: what `codec` makes of it, or the plain elements when that is not
/// smaller. The section's offset is 0 until a file places it. With a SectionData used before for as many elements,
/// nothing is allocated.
template <class C>
requires KVCodec<C, Cpu>
void encode(Cpu& cpu, const C& codec, const Place& place, View<const typename C::element, 1> x, SectionData& out,
            const Checks& checks = {}) {
  using T = typename C::element;
  constexpr const char* where = "codec::dkvc::encode";
  validate(checks);
  const index_t plain = x.extent(0) * index_t{sizeof(T)};
  const index_t coded = max_encoded_size(codec, x.extent(0));
  const index_t most = coded > plain ? coded : plain;
  Section section = detail::section_at(where, place, dtype_of<T>, x.extent(0));
  section.codec = C::codec_id;
  const View<std::byte, 1> room(out.payload_room(most, checks), most);
  index_t size = 0;
  encode(cpu, codec, x, room, &size);
  if (C::codec_id != CodecId::stored && size >= plain) {
    section.codec = CodecId::stored;
    encode(cpu, Stored<T>{}, x, room, &size);
  }
  out.section = section;
  out.place_payload(size, checks);
  detail::seal(cpu, out);
}

/// A section of plain bytes: META or, with a type of your own, anything. Readers that do not know the type skip it,
/// unless it has the bit `critical`.
inline void encode_bytes(Cpu& cpu, std::uint32_t type, View<const std::byte, 1> bytes, SectionData& out,
                         const Checks& checks = {}) {
  constexpr const char* where = "codec::dkvc::encode_bytes";
  validate(checks);
  require(type != tensor_type, where, "type", "not that of tensors", type);
  require_contiguous(bytes, where, "bytes");
  std::byte* const room = out.payload_room(bytes.extent(0), checks);
  codec::detail::copy_little_endian(bytes.data(), room, bytes.extent(0), 1);
  out.section.type = type;
  out.section.element_count = bytes.extent(0);
  out.place_payload(bytes.extent(0), checks);
  detail::seal(cpu, out);
}

/// FormatError unless the stored bytes are the ones that were written, as far as the section's check can tell; with
/// Check::none that is nothing.
inline void verify(Cpu& cpu, const Section& s, View<const std::byte, 1> stored) {
  constexpr const char* where = "codec::dkvc::verify";
  require_equal(stored.extent(0), s.stored_size, where, "stored");
  if (s.check == Check::crc32c) {
    detail::verify_blocks(cpu, where, s, stored);
  } else if (s.check == Check::xxh3) {
    const std::uint64_t sum = xxh3_64(stored);
    detail::expect(sum == s.checksum, where, "checksum", s.checksum, sum);
  } else {
    detail::expect(s.check == Check::none, where, "check_alg", "0, 1 or 2", static_cast<int>(s.check));
  }
}

namespace detail {

/// What decode() demands of section and y, FormatError, before anything is read.
template <class T>
void check_decode(const char* where, const Section& s, View<T, 1> y) {
  expect(s.is_tensor(), where, "type", "a tensor", [&] { return describe(s); });
  expect(s.dtype == static_cast<int>(dtype_of<T>), where, "dtype", name(dtype_of<T>), [&] {
    return s.dtype <= static_cast<int>(DType::e5m2) ? std::string(name(static_cast<DType>(s.dtype)))
                                                    : std::to_string(s.dtype);
  });
  expect(s.element_count == y.extent(0), where, "element_count", y.extent(0), s.element_count);
}

}  // namespace detail

/// Decodes a tensor section into y [element_count], contiguous, with the codec it names, whose tables are those in its
/// payload. FormatError, with y untouched, when T, the size of y or any byte of the section does not fit.
template <Storage T>
void decode(Cpu& cpu, const Section& s, View<const std::byte, 1> stored, View<T, 1> y, Verify check = Verify::yes) {
  constexpr const char* where = "codec::dkvc::decode";
  detail::check_decode(where, s, y);
  if (check == Verify::yes) verify(cpu, s, stored);
  const View<const std::byte, 1> in = payload(s, stored);
  if (s.codec == CodecId::stored) return decode(cpu, Stored<T>{}, in, y);
  if constexpr (SplitZipElement<T>) {
    if (s.codec == SplitZip<T>::codec_id) return decode(cpu, codec_of(SplitZip<T>{}, in), in, y);
  }
  detail::expect(false, where, "codec", "one that needs no value of yours", static_cast<int>(s.codec));
}

/// The same with a codec of the caller's choice, whose tables must be the payload's: for user codecs, and for peers
/// that agreed on tables before. A section that fell back to plain elements is decoded too.
template <class C>
requires KVCodec<C, Cpu>
void decode(Cpu& cpu, const C& codec, const Section& s, View<const std::byte, 1> stored, View<typename C::element, 1> y,
            Verify check = Verify::yes) {
  constexpr const char* where = "codec::dkvc::decode";
  detail::check_decode(where, s, y);
  detail::expect(s.codec == C::codec_id || s.codec == CodecId::stored, where, "codec", static_cast<int>(C::codec_id),
                 static_cast<int>(s.codec));
  if (check == Verify::yes) verify(cpu, s, stored);
  const View<const std::byte, 1> in = payload(s, stored);
  if (s.codec == CodecId::stored) return decode(cpu, Stored<typename C::element>{}, in, y);
  decode(cpu, codec, in, y);
}

}  // namespace decant::codec::dkvc

#endif
