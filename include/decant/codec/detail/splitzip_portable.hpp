// decant: SplitZip's kernels in plain C++, eight elements at a time: dense coding, and chunks whose exponents are kept
// raw.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_PORTABLE_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_PORTABLE_HPP

#include <utility>

#include "splitzip_tables.hpp"

namespace decant::codec::detail {

/// Eight fields, unpacked.
using Eight = std::uint8_t[8];

/// Writes `count` <= 8 elements of one plane of a field. The fields behind them are 0.
template <int Width, int Shift>
inline void store_plane(const Eight& fields, index_t count, std::byte* plane) {
  constexpr int per_byte = 8 / Width;
  const index_t bytes = (count * Width + 7) / 8;
  for (index_t b = 0; b < bytes; ++b) {
    unsigned packed = 0;
    for (int j = 0; j < per_byte; ++j)
      packed = packed << Width | (fields[b * per_byte + j] >> Shift & ((1u << Width) - 1u));
    plane[b] = static_cast<std::byte>(packed);
  }
}

/// Reads `count` <= 8 elements of one plane into the fields' bits.
template <int Width, int Shift>
inline void load_plane(const std::byte* plane, index_t count, Eight& fields) {
  constexpr int per_byte = 8 / Width;
  const index_t bytes = (count * Width + 7) / 8;
  for (index_t b = 0; b < bytes; ++b) {
    const unsigned packed = static_cast<unsigned>(plane[b]);
    for (int j = 0; j < per_byte; ++j) {
      const unsigned bits = packed >> (8 - Width - j * Width) & ((1u << Width) - 1u);
      fields[b * per_byte + j] = static_cast<std::uint8_t>(fields[b * per_byte + j] | bits << Shift);
    }
  }
}

/// Elements i ... i + count - 1 of all planes of a field of `Width` bits; i a multiple of 8.
template <int Width>
inline void store_field(const Eight& fields, index_t count, std::byte* const* planes, index_t i) {
  [&]<int... P>(std::integer_sequence<int, P...>) {
    (store_plane<plane_width(Width, P), plane_shift(Width, P)>(fields, count,
                                                               planes[P] + i / 8 * plane_width(Width, P)),
     ...);
  }
  (std::make_integer_sequence<int, plane_count(Width)>{});
}
template <int Width>
inline void load_field(const std::byte* const* planes, index_t i, index_t count, Eight& fields) {
  for (std::uint8_t& f : fields) f = 0;
  [&]<int... P>(std::integer_sequence<int, P...>) {
    (load_plane<plane_width(Width, P), plane_shift(Width, P)>(planes[P] + i / 8 * plane_width(Width, P), count, fields),
     ...);
  }
  (std::make_integer_sequence<int, plane_count(Width)>{});
}

/// Lists those of x's elements from i on whose bit in `escaped` is set.
template <class F, class T>
inline void list_escapes(std::uint64_t escaped, const T* x, index_t i, SplitZipEscapes& escapes) {
  index_t count = escapes.count;
  for (; escaped != 0; escaped &= escaped - 1) {
    const index_t at = i + __builtin_ctzll(escaped);
    escapes.position[count] = static_cast<std::uint16_t>(at);
    escapes.exponent[count] = static_cast<std::uint8_t>(F::exponent(x[at].bits));
    ++count;
  }
  escapes.count = count;
}

/// Codes x[i ... n) of a chunk and lists its escapes; stops early when there are more than `limit`. i: a multiple of 8.
template <class F, class T>
void encode_portable(const SplitZipTables& tables, const T* x, index_t i, index_t n,
                     const SplitZipPlanes<std::byte>& planes, SplitZipEscapes& escapes, index_t limit) {
  for (; i < n && escapes.count <= limit; i += 8) {
    const index_t count = n - i < 8 ? n - i : 8;
    Eight code = {};
    Eight rest = {};
    unsigned any = 0;
    for (index_t j = 0; j < count; ++j) {
      const unsigned bits = x[i + j].bits;
      const unsigned looked_up = tables.code[F::exponent(bits)];
      any |= looked_up;
      code[j] = static_cast<std::uint8_t>(looked_up & 15u);
      rest[j] = static_cast<std::uint8_t>(F::rest(bits));
    }
    store_field<F::code_bits>(code, count, planes.code, i);
    store_field<F::rest_bits>(rest, count, planes.rest, i);
    if ((any & splitzip_escape) == 0) continue;
    for (index_t j = 0; j < count; ++j) {
      const unsigned exponent = F::exponent(x[i + j].bits);
      if (tables.code[exponent] != splitzip_escape) continue;
      escapes.position[escapes.count] = static_cast<std::uint16_t>(i + j);
      escapes.exponent[escapes.count] = static_cast<std::uint8_t>(exponent);
      ++escapes.count;
    }
  }
}

/// Decodes elements i ... n - 1 of a run, escapes aside. i: a multiple of 8.
template <class F, class T>
void decode_portable(const SplitZipTables& tables, const SplitZipPlanes<const std::byte>& planes, index_t i, index_t n,
                     T* y) {
  for (; i < n; i += 8) {
    const index_t count = n - i < 8 ? n - i : 8;
    Eight code;
    Eight rest;
    load_field<F::code_bits>(planes.code, i, count, code);
    load_field<F::rest_bits>(planes.rest, i, count, rest);
    for (index_t j = 0; j < count; ++j) y[i + j].bits = F::join(tables.exponent[code[j]], rest[j]);
  }
}

/// Where the planes of n raw exponents' high bits lie in a chunk's side bytes.
template <class F, class Byte>
void high_planes(Byte* side, index_t n, Byte* (&planes)[2]) {
  static_assert(plane_count(F::high_bits) <= 2);
  planes[0] = side;
  planes[1] = side + plane_bytes(plane_width(F::high_bits, 0), n);
}

/// Writes elements i ... n - 1 of a chunk of n with raw exponents: the low bits as codes, the high ones to `side`. i: a
/// multiple of 8.
template <class F, class T>
void encode_raw_exponents(const T* x, index_t i, index_t n, const SplitZipPlanes<std::byte>& planes, std::byte* side) {
  std::byte* high[2];
  high_planes<F>(side, n, high);
  for (; i < n; i += 8) {
    const index_t count = n - i < 8 ? n - i : 8;
    Eight low_bits = {};
    Eight high_bits = {};
    Eight rest = {};
    for (index_t j = 0; j < count; ++j) {
      const unsigned exponent = F::exponent(x[i + j].bits);
      low_bits[j] = static_cast<std::uint8_t>(exponent & ((1u << F::code_bits) - 1u));
      high_bits[j] = static_cast<std::uint8_t>(exponent >> F::code_bits);
      rest[j] = static_cast<std::uint8_t>(F::rest(x[i + j].bits));
    }
    store_field<F::code_bits>(low_bits, count, planes.code, i);
    store_field<F::high_bits>(high_bits, count, high, i);
    store_field<F::rest_bits>(rest, count, planes.rest, i);
  }
}

/// Reads them back.
template <class F, class T>
void decode_raw_exponents(const SplitZipPlanes<const std::byte>& planes, const std::byte* side, index_t i, index_t n,
                          T* y) {
  const std::byte* high[2];
  high_planes<F>(side, n, high);
  for (; i < n; i += 8) {
    const index_t count = n - i < 8 ? n - i : 8;
    Eight low_bits;
    Eight high_bits;
    Eight rest;
    load_field<F::code_bits>(planes.code, i, count, low_bits);
    load_field<F::high_bits>(high, i, count, high_bits);
    load_field<F::rest_bits>(planes.rest, i, count, rest);
    for (index_t j = 0; j < count; ++j) {
      y[i + j].bits = F::join(static_cast<unsigned>(high_bits[j]) << F::code_bits | low_bits[j], rest[j]);
    }
  }
}

}  // namespace decant::codec::detail

#endif
