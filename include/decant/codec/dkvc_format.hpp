// decant: DKVC v1, the container for KV caches: constants, the 64-byte section entry, limits, and the rules that a
// section obeys by itself. All integers little-endian, all bytes canonical: the same sections make the same file.
//
//   file     := prologue (64) | entry (64) per section | stored sections, each at a multiple of 64 | trailer (16)
//   prologue := "\x89" "DKV\r\n\x1a\n" | u16 major | u16 minor | u32 flags | u64 total size | u32 sections
//               | u32 prologue + entries | u64 content id (XXH3-64 of the META payload, 0: none) | 16 zeros
//               | u32 CRC32C of the entries | u32 CRC32C of the prologue so far
//   trailer  := u32 CRC32C of all sections' checksums (as u64) | u32 0 | the magic backwards
//   stored   := u32 CRC32C per block of 2^block_log2 payload bytes, zeros to a multiple of 64 | payload (Check::crc32c)
//             | payload (other checks)
//
// A section's checksum is the CRC32C of its array of block CRCs (without the padding), or the XXH3-64 of its payload.
// Between stored sections, and before the trailer, lie only the zeros that the next multiple of 64 needs. The order is:
// META, tensors by layer, kind and token, then sections of other types by type.
#ifndef DECANT_CODEC_DKVC_FORMAT_HPP
#define DECANT_CODEC_DKVC_FORMAT_HPP

#include <cstddef>
#include <cstdint>
#include <string>

#include "../core/bytes.hpp"
#include "../core/dtype.hpp"
#include "policy.hpp"

namespace decant::codec::dkvc {

inline constexpr index_t prologue_size = 64;
inline constexpr index_t entry_size = 64;
inline constexpr index_t trailer_size = 16;
/// Of every stored section's offset.
inline constexpr index_t alignment = 64;
inline constexpr int version_major = 1;
inline constexpr int version_minor = 0;
/// 65535: prologue and entries fit in 4 MiB.
inline constexpr index_t most_sections = 65535;

/// What a tensor section holds: keys or values, or the two parts of a latent (MLA) cache.
enum class Kind : std::uint8_t { key = 0, value = 1, c_kv = 2, k_r = 3, meta = 4 };

/// How stored bytes are checked. 3 and up are kept free, for keyed codes.
enum class Check : std::uint8_t { none = 0, crc32c = 1, xxh3 = 2 };

/// A section type from four characters: fourcc("META").
constexpr std::uint32_t fourcc(const char (&name)[5]) {
  std::uint32_t type = 0;
  for (int i = 0; i < 4; ++i) type |= std::uint32_t{static_cast<unsigned char>(name[i])} << (8 * i);
  return type;
}

/// The bit of a section type that says: whoever does not know this type cannot use the file.
inline constexpr std::uint32_t critical = 0x80000000u;
inline constexpr std::uint32_t tensor_type = fourcc("TNSR") | critical;
/// The cache card (cache_card.hpp).
inline constexpr std::uint32_t meta_type = fourcc("META");
/// The layer of a section that belongs to none.
inline constexpr std::uint32_t no_layer = 0xffffffffu;
/// The dtype of sections that are plain bytes; others have the number of their DType.
inline constexpr std::uint16_t no_dtype = 0xffff;
static_assert(static_cast<int>(DType::f32) == 0 && static_cast<int>(DType::f16) == 1 &&
              static_cast<int>(DType::bf16) == 2 && static_cast<int>(DType::e4m3) == 3 &&
              static_cast<int>(DType::e5m2) == 4);  // part of the format

/// A section's entry.
struct Section {
  std::uint32_t type = 0;
  CodecId codec = CodecId::stored;
  std::uint16_t dtype = no_dtype;
  std::uint32_t layer = no_layer;
  Kind kind = Kind::meta;
  Check check = Check::none;
  std::uint16_t block_log2 = 0;
  /// From the front of the file; 0 in a stream.
  index_t offset = 0;
  index_t stored_size = 0;
  index_t element_count = 0;
  std::uint32_t token_begin = 0;
  std::uint32_t token_count = 0;
  std::uint64_t checksum = 0;
  /// 0, or where parameters lie in the META payload: offset in the low 40 bits, length in the high 24.
  std::uint64_t params_ref = 0;

  bool operator==(const Section&) const = default;
  bool is_tensor() const { return type == tensor_type; }
  bool is_meta() const { return type == meta_type; }
};

/// What a reader accepts, whatever the bytes claim. Sizes are bytes.
struct Limits {
  /// The whole file, or all of a stream.
  index_t max_total_bytes = index_t{1} << 37;
  /// All tensors together.
  index_t max_elements = index_t{1} << 36;
  index_t max_sections = 4096;
  index_t max_layers = 1024;
  /// One past the last token of any section.
  index_t max_tokens = index_t{1} << 24;
  /// All tensors together, decoded.
  index_t max_decoded_bytes = index_t{1} << 36;
  /// Decoded bytes per payload byte, for codecs that do not fix it themselves.
  index_t expansion_limit = 64;
  bool operator==(const Limits&) const = default;
};

inline void validate(const Limits& limits) {
  constexpr const char* where = "codec::dkvc::Limits";
  constexpr index_t most = index_t{1} << 61;
  const auto in_range = [](index_t limit, const char* name, index_t least) {
    require(
        limit >= least && limit <= most, where, name, [&] { return std::to_string(least) + " to 2^61"; }, limit);
  };
  in_range(limits.max_total_bytes, "max_total_bytes", 0);
  in_range(limits.max_elements, "max_elements", 0);
  in_range(limits.max_sections, "max_sections", 0);
  in_range(limits.max_layers, "max_layers", 0);
  in_range(limits.max_tokens, "max_tokens", 0);
  in_range(limits.max_decoded_bytes, "max_decoded_bytes", 0);
  in_range(limits.expansion_limit, "expansion_limit", 1);
}

/// The next multiple of 64.
constexpr index_t padded(index_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// How many blocks of 2^block_log2 bytes a payload has.
constexpr index_t block_count(index_t payload_size, int block_log2) {
  return (payload_size >> block_log2) + ((payload_size & ((index_t{1} << block_log2) - 1)) != 0 ? 1 : 0);
}

/// What lies before a payload: its block CRCs and their padding, if that is how it is checked.
constexpr index_t payload_offset(index_t payload_size, Check check, int block_log2) {
  return check == Check::crc32c ? padded(4 * block_count(payload_size, block_log2)) : 0;
}

/// The payload's size in a section of this stored size; -1 when no payload gives that size. The sixteen CRCs that fill
/// 64 bytes cover sixteen blocks, so stored bytes come in groups of 64 + 16 blocks, and only the last may be shorter.
constexpr index_t payload_size(index_t stored_size, Check check, int block_log2) {
  if (check != Check::crc32c) return stored_size;
  const index_t group = alignment + (index_t{16} << block_log2);
  const index_t groups = stored_size / group + (stored_size % group != 0 ? 1 : 0);
  const index_t payload = stored_size - alignment * groups;
  return stored_size == 0 || stored_size - (groups - 1) * group > alignment ? payload : -1;
}

constexpr index_t payload_size(const Section& s) {
  return payload_size(s.stored_size, s.check, s.block_log2);
}

namespace detail {

inline constexpr unsigned char magic[8] = {0x89, 'D', 'K', 'V', '\r', '\n', 0x1a, '\n'};

/// Sizes above this are errors before they meet arithmetic: sums of two of them still fit.
inline constexpr std::uint64_t largest_size = std::uint64_t{1} << 61;

/// Raises FormatError unless `ok`, as require() does for arguments.
template <class Expected, class Got>
void expect(bool ok, const char* where, const char* field, const Expected& expected, const Got& got) {
  if (!ok) decant::detail::fail_format(where, field, expected, got);
}

/// "section 3: offset" for a field of an entry.
template <class Expected, class Got>
[[noreturn]] DECANT_NOINLINE void fail_section(const char* where, index_t section, const char* field,
                                               const Expected& expected, const Got& got) {
  const std::string name = "section " + std::to_string(section) + ": " + field;
  decant::detail::fail_format(where, name.c_str(), expected, got);
}

template <class Expected, class Got>
void expect_section(bool ok, const char* where, index_t section, const char* field, const Expected& expected,
                    const Got& got) {
  if (!ok) fail_section(where, section, field, expected, got);
}

inline std::string at_most(index_t limit) {
  return "at most " + std::to_string(limit);
}

/// Writes the 64 bytes of an entry.
inline void write_entry(const Section& s, std::byte* to) {
  store_le(to, s.type);
  store_le(to + 4, static_cast<std::uint16_t>(s.codec));
  store_le(to + 6, s.dtype);
  store_le(to + 8, s.layer);
  store_le(to + 12, static_cast<std::uint8_t>(s.kind));
  store_le(to + 13, static_cast<std::uint8_t>(s.check));
  store_le(to + 14, s.block_log2);
  store_le(to + 16, static_cast<std::uint64_t>(s.offset));
  store_le(to + 24, static_cast<std::uint64_t>(s.stored_size));
  store_le(to + 32, static_cast<std::uint64_t>(s.element_count));
  store_le(to + 40, s.token_begin);
  store_le(to + 44, s.token_count);
  store_le(to + 48, s.checksum);
  store_le(to + 56, s.params_ref);
}

inline index_t read_size(const char* where, index_t section, const char* field, const std::byte* from) {
  const auto size = load_le<std::uint64_t>(from);
  expect_section(size <= largest_size, where, section, field, "a size below 2^61", size);
  return static_cast<index_t>(size);
}

/// Reads the 64 bytes of an entry. Only its sizes are checked here.
inline Section read_entry(const char* where, index_t section, const std::byte* from) {
  Section s;
  s.type = load_le<std::uint32_t>(from);
  s.codec = static_cast<CodecId>(load_le<std::uint16_t>(from + 4));
  s.dtype = load_le<std::uint16_t>(from + 6);
  s.layer = load_le<std::uint32_t>(from + 8);
  s.kind = static_cast<Kind>(load_le<std::uint8_t>(from + 12));
  s.check = static_cast<Check>(load_le<std::uint8_t>(from + 13));
  s.block_log2 = load_le<std::uint16_t>(from + 14);
  s.offset = read_size(where, section, "offset", from + 16);
  s.stored_size = read_size(where, section, "stored_size", from + 24);
  s.element_count = read_size(where, section, "element_count", from + 32);
  s.token_begin = load_le<std::uint32_t>(from + 40);
  s.token_count = load_le<std::uint32_t>(from + 44);
  s.checksum = load_le<std::uint64_t>(from + 48);
  s.params_ref = load_le<std::uint64_t>(from + 56);
  return s;
}

/// What a reader has taken in so far, and what it may take.
struct Totals {
  index_t elements = 0;
  index_t decoded = 0;
  index_t meta_size = 0;
};

/// The dtype that a codec of this library codes.
constexpr DType codec_dtype(CodecId codec) {
  return codec == CodecId::splitzip_bf16 ? DType::bf16 : codec == CodecId::splitzip_e5m2 ? DType::e5m2 : DType::e4m3;
}

/// The rules for codec, dtype and sizes of a tensor section.
inline void check_sizes(const char* where, index_t i, const Section& s, index_t payload, const Limits& limits,
                        Totals& totals) {
  expect_section(s.dtype <= static_cast<int>(DType::e5m2), where, i, "dtype", "an element type, 0 to 4", s.dtype);
  const auto dtype = static_cast<DType>(s.dtype);
  // element_count is below 2^61, totals stay within the limits: no sum below overflows.
  expect_section(
      s.element_count <= limits.max_elements - totals.elements, where, i, "element_count",
      [&] { return at_most(limits.max_elements - totals.elements); }, s.element_count);
  totals.elements += s.element_count;
  const index_t room = limits.max_decoded_bytes - totals.decoded;
  expect_section(
      s.element_count <= room / size_of(dtype), where, i, "decoded bytes", [&] { return at_most(room); },
      [&] { return std::to_string(s.element_count) + " elements of " + name(dtype); });
  const index_t decoded = s.element_count * size_of(dtype);
  totals.decoded += decoded;
  if (s.codec == CodecId::stored) {
    expect_section(payload == decoded, where, i, "payload size", decoded, payload);
  } else if (s.codec <= CodecId::splitzip_e4m3) {
    expect_section(dtype == codec_dtype(s.codec), where, i, "dtype", name(codec_dtype(s.codec)), name(dtype));
    // Whoever writes falls back to stored elements where coding does not save; and no layout codes 3 bits in 2.
    expect_section(
        payload < decoded, where, i, "payload size", [&] { return "less than " + std::to_string(decoded); }, payload);
    expect_section(
        payload >= decoded / 3 * 2, where, i, "payload size",
        [&] { return "at least " + std::to_string(decoded / 3 * 2); }, payload);
  } else {
    expect_section(s.codec >= CodecId::user, where, i, "codec", "one that this version reads",
                   static_cast<int>(s.codec));
    const index_t least = decoded / limits.expansion_limit + (decoded % limits.expansion_limit != 0 ? 1 : 0);
    expect_section(
        payload >= least, where, i, "payload size", [&] { return "at least " + std::to_string(least); }, payload);
  }
}

/// The rules for check_alg, block_log2 and checksum; returns the payload's size. Only sections of unknown types, which
/// may be newer than this code, may have a check that it does not know: then all that is stored counts as payload.
inline index_t check_check(const char* where, index_t i, const Section& s) {
  if (s.check == Check::crc32c) {
    expect_section(s.block_log2 >= 6 && s.block_log2 <= 30, where, i, "block_log2", "6 to 30", s.block_log2);
    expect_section(s.checksum <= 0xffffffffu, where, i, "checksum", "32 bits", s.checksum);
  } else if (s.check <= Check::xxh3) {
    expect_section(s.block_log2 == 0, where, i, "block_log2", 0, s.block_log2);
    expect_section(s.check != Check::none || s.checksum == 0, where, i, "checksum", 0, s.checksum);
  } else {
    expect_section(!s.is_tensor() && !s.is_meta(), where, i, "check_alg", "0, 1 or 2", static_cast<int>(s.check));
  }
  const index_t payload = payload_size(s);
  expect_section(payload >= 0, where, i, "stored_size", "block CRCs, padding and a payload that they cover",
                 s.stored_size);
  return payload;
}

/// Checks all that an entry says by itself, and against `totals`, which it updates.
inline void check_section(const char* where, index_t i, const Section& s, const Limits& limits, Totals& totals) {
  expect_section(
      s.stored_size <= limits.max_total_bytes, where, i, "stored_size", [&] { return at_most(limits.max_total_bytes); },
      s.stored_size);
  const index_t payload = check_check(where, i, s);
  if (!s.is_tensor() && !s.is_meta()) {
    expect_section((s.type & critical) == 0, where, i, "type", "one that this version knows, or not critical", s.type);
    return;
  }
  if (s.is_meta()) {
    expect_section(s.codec == CodecId::stored, where, i, "codec", 0, static_cast<int>(s.codec));
    expect_section(s.dtype == no_dtype, where, i, "dtype", no_dtype, s.dtype);
    expect_section(s.layer == no_layer, where, i, "layer", no_layer, s.layer);
    expect_section(s.kind == Kind::meta, where, i, "kind", static_cast<int>(Kind::meta), static_cast<int>(s.kind));
    expect_section(s.element_count == payload, where, i, "element_count", payload, s.element_count);
    expect_section(s.token_begin == 0 && s.token_count == 0, where, i, "tokens", "none", s.token_count);
    expect_section(s.params_ref == 0, where, i, "params_ref", 0, s.params_ref);
    totals.meta_size = payload;
    return;
  }
  expect_section(
      s.layer < limits.max_layers, where, i, "layer", [&] { return at_most(limits.max_layers - 1); }, s.layer);
  expect_section(s.kind < Kind::meta, where, i, "kind", "0 to 3", static_cast<int>(s.kind));
  expect_section(
      index_t{s.token_begin} + s.token_count <= limits.max_tokens, where, i, "tokens",
      [&] { return at_most(limits.max_tokens); }, index_t{s.token_begin} + s.token_count);
  const auto params_end = static_cast<index_t>((s.params_ref & 0xffffffffffu) + (s.params_ref >> 40));
  expect_section(
      params_end <= totals.meta_size, where, i, "params_ref",
      [&] { return "within the META payload of " + std::to_string(totals.meta_size) + " bytes"; }, params_end);
  check_sizes(where, i, s, payload, limits, totals);
}

/// META, then tensors, then the rest.
inline int rank(const Section& s) {
  return s.is_meta() ? 0 : s.is_tensor() ? 1 : 2;
}

/// Whether b may come after a: the canonical order, without duplicates or overlapping token ranges.
inline bool may_follow(const Section& a, const Section& b) {
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  if (a.is_meta()) return false;
  if (!a.is_tensor()) return a.type <= b.type;
  if (a.layer != b.layer) return a.layer < b.layer;
  if (a.kind != b.kind) return a.kind < b.kind;
  return b.token_begin > a.token_begin && b.token_begin - a.token_begin >= a.token_count;
}

/// Which part of a cache, in the words of an error.
inline std::string describe(const Section& s) {
  if (s.is_meta()) return "META";
  if (!s.is_tensor()) return "type " + std::to_string(s.type);
  constexpr const char* kinds[] = {"keys", "values", "c_kv", "k_r"};
  return "layer " + std::to_string(s.layer) + " " + kinds[static_cast<int>(s.kind) & 3] + ", " +
         std::to_string(s.token_count) + " tokens from " + std::to_string(s.token_begin);
}

inline void check_order(const char* where, index_t i, const Section& before, const Section& s) {
  if (!may_follow(before, s)) {
    fail_section(
        where, i, "order", [&] { return "a section that may follow " + describe(before); },
        [&] { return describe(s); });
  }
}

}  // namespace detail

}  // namespace decant::codec::dkvc

#endif
