// decant: CRC32C (Castagnoli; RFC 3720, appendix B.4), the checksum of the DKVC container: reflected polynomial
// 0x82f63b78, register all ones at first, result inverted; "123456789" gives 0xe3069283. By the processor's instruction
// where there is one, else by eight tables. A checksum finds accidents, not attackers.
#ifndef DECANT_CODEC_CRC32C_HPP
#define DECANT_CODEC_CRC32C_HPP

#include <cstddef>
#include <cstdint>

#include "../core/bytes.hpp"
#include "../core/view.hpp"
#include "detail/crc32c_polynomial.hpp"
#include "detail/crc32c_sse42.hpp"

namespace decant::codec {

namespace detail {

/// The register's value after `size` more bytes; no inversion at either end.
constexpr std::uint32_t crc32c_update_portable(std::uint32_t state, const std::byte* data, std::size_t size) {
  const auto& rows = crc32c_tables.rows;
  std::size_t i = 0;
  for (; size - i >= 8; i += 8) {
    const std::uint32_t low = state ^ load_le<std::uint32_t>(data + i);
    const std::uint32_t high = load_le<std::uint32_t>(data + i + 4);
    state = rows[7][low & 0xffu] ^ rows[6][low >> 8 & 0xffu] ^ rows[5][low >> 16 & 0xffu] ^ rows[4][low >> 24] ^
            rows[3][high & 0xffu] ^ rows[2][high >> 8 & 0xffu] ^ rows[1][high >> 16 & 0xffu] ^ rows[0][high >> 24];
  }
  for (; i < size; ++i) state = (state >> 8) ^ rows[0][(state ^ static_cast<std::uint32_t>(data[i])) & 0xffu];
  return state;
}

inline std::uint32_t crc32c_update(std::uint32_t state, const std::byte* data, std::size_t size) {
#if DECANT_X86
  if (has_crc32c_sse42()) return crc32c_update_sse42(state, data, size);
#endif
  return crc32c_update_portable(state, data, size);
}

}  // namespace detail

/// The CRC32C of `bytes`, which must be contiguous. With `crc`, the result for what came before, it goes on from there:
/// crc32c(b, crc32c(a)) is the CRC of a followed by b. O(bytes), about 8 bytes a cycle where the instruction is.
inline std::uint32_t crc32c(View<const std::byte, 1> bytes, std::uint32_t crc = 0) {
  require_contiguous(bytes, "codec::crc32c", "bytes");
  return ~detail::crc32c_update(~crc, bytes.data(), static_cast<std::size_t>(bytes.extent(0)));
}

/// The CRC32C of a followed by b, from those of a and of b and b's length in bytes. O(log length_b).
DECANT_HD constexpr std::uint32_t crc32c_combine(std::uint32_t a, std::uint32_t b, index_t length_b) {
  return detail::crc32c_multiply(a, detail::crc32c_power(8 * static_cast<std::uint64_t>(length_b))) ^ b;
}

}  // namespace decant::codec

#endif
