// decant: a codebook as SplitZip's CPU kernels want it, and where a chunk's planes lie.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_TABLES_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_TABLES_HPP

#include <cstddef>
#include <cstdint>

#include "../../core/bytes.hpp"
#include "../codebook.hpp"
#include "splitzip_layout.hpp"

namespace decant::codec::detail {

/// A set of exponents as bits.
struct ExponentSet {
  std::uint64_t bits[4] = {};
  DECANT_HD constexpr explicit ExponentSet(const Codebook& book) {
    for (int c = 0; c < book.size(); ++c) bits[book.exponents[c] >> 6] |= std::uint64_t{1} << (book.exponents[c] & 63);
  }
  DECANT_HD constexpr bool contains(unsigned e) const { return (bits[e >> 6] >> (e & 63) & 1u) != 0; }
};

inline constexpr std::uint8_t splitzip_escape = 0x80;

struct SplitZipTables {
  alignas(64) std::uint8_t code[256];  // of an exponent, or splitzip_escape
  alignas(16) std::uint8_t exponent[16];
  std::uint8_t codes;  // how many
  bool window;         // exponent[c] == exponent[0] + c

  explicit SplitZipTables(const Codebook& book)
      : codes(static_cast<std::uint8_t>(book.size())), window(book.contiguous()) {
    for (std::uint8_t& c : code) c = splitzip_escape;
    for (int c = 0; c < 16; ++c) exponent[c] = book.exponents[c];
    for (int c = 0; c < codes; ++c) code[exponent[c]] = static_cast<std::uint8_t>(c);
  }
};

/// The planes of a run of elements that begins at a byte of each: Byte is std::byte or const std::byte.
template <class Byte>
struct SplitZipPlanes {
  Byte* code[2];
  Byte* rest[2];
};

/// A field's planes moved on by i elements, a multiple of 8.
template <int Width, class Byte>
void advance(Byte* (&planes)[2], index_t i) {
  constexpr int first = plane_width(Width, 0);
  constexpr int second = plane_width(Width, 1);
  planes[0] += i / 8 * first;
  if constexpr (second != 0) planes[1] += i / 8 * second;
}

/// The planes from element i on, a multiple of 8.
template <class F, class Byte>
SplitZipPlanes<Byte> advanced(SplitZipPlanes<Byte> planes, index_t i) {
  advance<F::code_bits>(planes.code, i);
  advance<F::rest_bits>(planes.rest, i);
  return planes;
}

/// A payload's planes from element `first` on, a multiple of 8.
template <class F, class Byte>
SplitZipPlanes<Byte> planes_at(const SplitZipLayout& l, Byte* payload, index_t first) {
  return advanced<F>(
      SplitZipPlanes<Byte>{{payload + l.code[0], payload + l.code[1]}, {payload + l.rest[0], payload + l.rest[1]}},
      first);
}

/// The escapes of a chunk while it is encoded. A kernel stops once there are more than are worth listing, which it sees
/// after at most 64 elements.
struct SplitZipEscapes {
  static constexpr index_t most = (splitzip_max_chunk / 2 + splitzip_max_chunk / 8) / 3;  // of bf16 with 3-bit codes
  alignas(64) std::uint16_t position[most + 64];
  alignas(64) std::uint8_t exponent[most + 64];
  index_t count = 0;
};

/// The escapes of a chunk that is decoded, of which a kernel puts the exponents in their places: positions[count] and
/// exponents[count], little-endian at `bytes`, that were checked.
struct SplitZipList {
  const std::byte* bytes;
  index_t count;

  index_t position(index_t k) const { return load_le<std::uint16_t>(bytes + 2 * k); }
  unsigned exponent(index_t k) const { return static_cast<unsigned>(bytes[2 * count + k]); }

  /// Puts the escapes from k on into y, whose first element is the chunk's i-th, up to the one at `end`; returns the
  /// next.
  template <class F, class T>
  index_t patch(index_t k, T* y, index_t i, index_t end) const {
    for (; k < count && position(k) < end; ++k) {
      T& element = y[position(k) - i];
      element.bits = F::with_exponent(element.bits, exponent(k));
    }
    return k;
  }
};

}  // namespace decant::codec::detail

#endif
