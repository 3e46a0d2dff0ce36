// decant: arithmetic of the CRC32C polynomial, reflected: bit 31 is the coefficient of x^0, so multiplying by x is a
// shift to the right. What joins the CRCs of parts, and the tables and constants of every path, follow from it at
// compile time.
#ifndef DECANT_CODEC_DETAIL_CRC32C_POLYNOMIAL_HPP
#define DECANT_CODEC_DETAIL_CRC32C_POLYNOMIAL_HPP

#include <cstdint>

#include "../../config.hpp"

namespace decant::codec::detail {

inline constexpr std::uint32_t crc32c_polynomial = 0x82f63b78u;

/// a * x mod P.
DECANT_HD constexpr std::uint32_t crc32c_times_x(std::uint32_t a) {
  return (a >> 1) ^ ((a & 1u) != 0 ? crc32c_polynomial : 0u);
}

/// a * b mod P.
DECANT_HD constexpr std::uint32_t crc32c_multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a >> 31) != 0) product ^= b;
    b = crc32c_times_x(b);
  }
  return product;
}

/// x^n mod P.
DECANT_HD constexpr std::uint32_t crc32c_power(std::uint64_t n) {
  std::uint32_t result = 0x80000000u;
  std::uint32_t square = 0x40000000u;
  for (; n != 0; n >>= 1) {
    if ((n & 1u) != 0) result = crc32c_multiply(result, square);
    square = crc32c_multiply(square, square);
  }
  return result;
}

/// rows[k][b]: what the byte b, followed by k zero bytes, adds to a CRC. Slicing by 8 looks up eight bytes at once.
struct Crc32cTables {
  std::uint32_t rows[8][256];
};

constexpr Crc32cTables make_crc32c_tables() {
  Crc32cTables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc32c_times_x(crc);
    tables.rows[0][b] = crc;
  }
  for (int k = 1; k < 8; ++k) {
    for (int b = 0; b < 256; ++b) {
      const std::uint32_t before = tables.rows[k - 1][b];
      tables.rows[k][b] = (before >> 8) ^ tables.rows[0][before & 0xffu];
    }
  }
  return tables;
}

inline constexpr Crc32cTables crc32c_tables = make_crc32c_tables();

}  // namespace decant::codec::detail

#endif
