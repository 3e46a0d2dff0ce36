// decant: codes of 1 to 8 bits in planes. A plane of p bits, p = 8, 4, 2 or 1, is a little-endian bit stream: element i
// at bits p * i. A width b is the sum of such planes, widest first (3 = 2 + 1, 7 = 4 + 2 + 1), and a code's low bits
// lie in the widest plane: decoding is shifts and masks of whole registers.
#ifndef DECANT_QUANT_DETAIL_PLANES_HPP
#define DECANT_QUANT_DETAIL_PLANES_HPP

#include <cstddef>
#include <cstdint>

#include "../../core/error.hpp"

namespace decant::quant::detail {

/// Bytes of a plane of `bits` over n elements.
DECANT_HD constexpr index_t plane_bytes(int bits, index_t n) { return (n * bits + 7) / 8; }

/// Bytes of all planes of a code of `bits`.
DECANT_HD constexpr index_t code_bytes(int bits, index_t n) {
  index_t bytes = 0;
  for (int plane = 8; plane >= 1; plane /= 2)
    if ((bits & plane) != 0) bytes += plane_bytes(plane, n);
  return bytes;
}

DECANT_HD constexpr std::uint8_t load_code(int bits, const std::byte* planes, index_t n, index_t i) {
  unsigned code = 0;
  int low = 0;
  for (int plane = 8; plane >= 1; plane /= 2) {
    if ((bits & plane) == 0) continue;
    const unsigned byte = static_cast<unsigned>(planes[i * plane / 8]);
    code |= (byte >> (i * plane % 8) & ((1u << plane) - 1u)) << low;
    low += plane;
    planes += plane_bytes(plane, n);
  }
  return static_cast<std::uint8_t>(code);
}

DECANT_HD constexpr void store_code(int bits, std::uint8_t code, std::byte* planes, index_t n, index_t i) {
  unsigned left = code;
  for (int plane = 8; plane >= 1; plane /= 2) {
    if ((bits & plane) == 0) continue;
    const unsigned mask = (1u << plane) - 1u;
    const int shift = static_cast<int>(i * plane % 8);
    std::byte& byte = planes[i * plane / 8];
    byte = static_cast<std::byte>((static_cast<unsigned>(byte) & ~(mask << shift)) | (left & mask) << shift);
    left >>= plane;
    planes += plane_bytes(plane, n);
  }
}

}  // namespace decant::quant::detail

#endif
