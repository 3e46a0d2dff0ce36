// decant: where the parts of a SplitZip payload lie: one function, used by the encoders and decoders of every context,
// the container's checks and the tests. Offsets count from the payload's first byte; every part begins at a multiple
// of 64.
//
//   0   u32 chunk, u8 code_bits, u8 flags = 0, u16 0, u8 codebook[16],
//       u64 n, u64 len_code, u64 len_rest, u64 len_side, u64 0
//   64  code planes, rest planes     fixed stride: element i is found without an index
//   ..  u16 directory[chunks]        bits 15..14 mode, bits 13..0 escapes
//   ..  u64 super[ceil(chunks / 64)] where in the side stream the chunks 0, 64, 128 ... begin
//   ..  side stream                  per chunk: coded: u16 position[escapes], u8 exponent[escapes];
//                                    raw exponents: the high exponent bits as planes, the low ones are its codes
//
// A raw payload (code_bits 0) is the header and the elements.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_LAYOUT_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_LAYOUT_HPP

#include <cstddef>
#include <cstdint>

#include "../field_codec.hpp"

namespace decant::codec::detail {

inline constexpr index_t splitzip_header_bytes = 64;
inline constexpr index_t splitzip_group = 64;  // chunks per super entry
inline constexpr index_t splitzip_min_chunk = 64;
inline constexpr index_t splitzip_max_chunk = 8192;
/// No payload has more elements, so that no size below overflows.
inline constexpr index_t splitzip_max_elements = index_t{1} << 48;

/// What a directory entry says of a chunk.
inline constexpr unsigned splitzip_coded = 0;
inline constexpr unsigned splitzip_raw_exponents = 1;
DECANT_HD constexpr unsigned splitzip_mode(unsigned entry) {
  return entry >> 14;
}
DECANT_HD constexpr unsigned splitzip_escapes(unsigned entry) {
  return entry & 0x3fffu;
}
DECANT_HD constexpr std::uint16_t splitzip_entry(unsigned mode, unsigned escapes) {
  return static_cast<std::uint16_t>(mode << 14 | escapes);
}

/// The directory entry of a chunk with that many escapes and raw_side bytes of high exponent bits: the smaller form,
/// and the coded one when they are equal.
DECANT_HD constexpr std::uint16_t splitzip_entry_for(index_t escapes, index_t raw_side) {
  return 3 * escapes > raw_side ? splitzip_entry(splitzip_raw_exponents, 0)
                                : splitzip_entry(splitzip_coded, static_cast<unsigned>(escapes));
}

DECANT_HD constexpr bool is_splitzip_chunk(index_t chunk) {
  return chunk >= splitzip_min_chunk && chunk <= splitzip_max_chunk && (chunk & (chunk - 1)) == 0;
}

DECANT_HD constexpr index_t align_64(index_t bytes) {
  return (bytes + 63) / 64 * 64;
}

struct SplitZipLayout {
  index_t n = 0;
  index_t chunk = 0;
  index_t chunks = 0;
  index_t groups = 0;  // super entries
  int code_bits = 0;
  int high_bits = 0;     // exponent bits that a code does not hold
  index_t code[2] = {};  // planes, the wider one first
  index_t rest[2] = {};
  index_t len_code = 0;  // bytes of the planes with their padding
  index_t len_rest = 0;
  index_t directory = 0;
  index_t super = 0;
  index_t side = 0;       // the fixed part's end
  index_t raw_bytes = 0;  // a raw payload of these elements

  /// Elements of chunk c.
  DECANT_HD constexpr index_t length(index_t c) const { return c + 1 < chunks ? chunk : n - c * chunk; }
  /// Side bytes of a chunk of `length` elements with raw exponents: the most that any has.
  DECANT_HD constexpr index_t raw_side(index_t length) const { return field_bytes(high_bits, length); }
  /// Side bytes of a chunk of `length` elements with this directory entry.
  DECANT_HD constexpr index_t side_bytes(unsigned entry, index_t length) const {
    return splitzip_mode(entry) == splitzip_coded ? 3 * index_t{splitzip_escapes(entry)} : raw_side(length);
  }
  /// Where in the side stream chunk c begins when all before it are as large as can be.
  DECANT_HD constexpr index_t worst_side(index_t c) const { return c * raw_side(chunk); }
  /// The size of a payload whose side streams are as large as can be.
  DECANT_HD constexpr index_t worst_bytes() const {
    return side + (chunks == 0 ? 0 : worst_side(chunks - 1) + raw_side(length(chunks - 1)));
  }
};

/// 0 <= n <= splitzip_max_elements, a valid chunk, code_bits of T's or 0. For 0 all parts are empty: only n, chunk,
/// chunks and raw_bytes mean something.
template <SplitZipElement T>
DECANT_HD constexpr SplitZipLayout splitzip_layout(index_t n, index_t chunk, int code_bits) {
  SplitZipLayout l;
  l.n = n;
  l.chunk = chunk;
  l.chunks = (n + chunk - 1) / chunk;
  l.groups = (l.chunks + splitzip_group - 1) / splitzip_group;
  l.code_bits = code_bits;
  l.raw_bytes = splitzip_header_bytes + n * index_t{sizeof(T)};
  l.side = splitzip_header_bytes;
  if (code_bits == 0) return l;
  l.high_bits = FloatBits<T>::exponent - code_bits;
  constexpr int rest_bits = FloatBits<T>::sign + FloatBits<T>::mantissa;
  index_t at = splitzip_header_bytes;
  for (int p = 0; p < plane_count(code_bits); ++p) {
    l.code[p] = at;
    at += align_64(plane_bytes(plane_width(code_bits, p), n));
  }
  l.len_code = at - splitzip_header_bytes;
  for (int p = 0; p < plane_count(rest_bits); ++p) {
    l.rest[p] = at;
    at += align_64(plane_bytes(plane_width(rest_bits, p), n));
  }
  l.len_rest = at - splitzip_header_bytes - l.len_code;
  l.directory = at;
  l.super = l.directory + align_64(2 * l.chunks);
  l.side = l.super + align_64(8 * l.groups);
  return l;
}

/// Calls call(offset, width) for every plane of a coded payload: codes, then rests.
template <class F, class Call>
void each_plane(const SplitZipLayout& l, const Call& call) {
  for (int p = 0; p < plane_count(F::code_bits); ++p) call(l.code[p], plane_width(F::code_bits, p));
  for (int p = 0; p < plane_count(F::rest_bits); ++p) call(l.rest[p], plane_width(F::rest_bits, p));
}

/// Byte offsets in the header.
struct SplitZipHeader {
  static constexpr index_t chunk = 0, code_bits = 4, flags = 5, zero = 6, codebook = 8, n = 24, len_code = 32,
                           len_rest = 40, len_side = 48, reserved = 56;
};

}  // namespace decant::codec::detail

#endif
