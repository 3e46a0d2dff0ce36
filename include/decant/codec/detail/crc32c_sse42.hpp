// decant: CRC32C by the processor's own instruction (SSE4.2). It takes three cycles but one can start every cycle, so
// three stretches of the input run side by side; a carry-less multiplication moves a stretch's CRC over the next ones.
#ifndef DECANT_CODEC_DETAIL_CRC32C_SSE42_HPP
#define DECANT_CODEC_DETAIL_CRC32C_SSE42_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../core/error.hpp"
#include "crc32c_polynomial.hpp"

#if DECANT_X86
#include "../../core/detail/intrinsics.hpp"

#define DECANT_TARGET_CRC32C __attribute__((target("sse4.2,pclmul")))

namespace decant::codec::detail {

inline bool has_crc32c_sse42() {
  static const bool has = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  }();
  return has;
}

/// The next eight bytes. Unaligned; this file is for little-endian processors only.
DECANT_INLINE std::uint64_t crc32c_word(const std::byte* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// crc * (what `factor` stands for) mod P: the 64-bit product, reduced by the CRC instruction, which multiplies by x^32
/// and leaves one factor x from the reflected product. So factor = x^(8k - 33) moves a CRC over k bytes.
DECANT_TARGET_CRC32C inline std::uint32_t crc32c_move(std::uint64_t crc, std::uint32_t factor) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                                               _mm_cvtsi64_si128(static_cast<long long>(std::uint64_t{factor})), 0);
  return static_cast<std::uint32_t>(_mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product))));
}

/// As many runs of three stretches of Stretch bytes as fit in `size`; returns how many bytes that was.
template <std::size_t Stretch>
DECANT_TARGET_CRC32C inline std::size_t crc32c_stretches(const std::byte* data, std::size_t size, std::uint64_t& crc) {
  constexpr std::uint32_t over_one = crc32c_power(8 * Stretch - 33);
  constexpr std::uint32_t over_two = crc32c_power(16 * Stretch - 33);
  std::size_t done = 0;
  for (; size - done >= 3 * Stretch; done += 3 * Stretch) {
    const std::byte* const at = data + done;
    std::uint64_t a = crc;
    std::uint64_t b = 0;
    std::uint64_t c = 0;
    for (std::size_t i = 0; i < Stretch; i += 8) {
      a = _mm_crc32_u64(a, crc32c_word(at + i));
      b = _mm_crc32_u64(b, crc32c_word(at + Stretch + i));
      c = _mm_crc32_u64(c, crc32c_word(at + 2 * Stretch + i));
    }
    crc = crc32c_move(a, over_two) ^ crc32c_move(b, over_one) ^ c;
  }
  return done;
}

/// The register's value after `size` more bytes; no inversion at either end.
DECANT_TARGET_CRC32C inline std::uint32_t crc32c_update_sse42(std::uint32_t state, const std::byte* data,
                                                              std::size_t size) {
  std::uint64_t crc = state;
  std::size_t i = crc32c_stretches<4096>(data, size, crc);
  i += crc32c_stretches<256>(data + i, size - i, crc);
  for (; size - i >= 8; i += 8) crc = _mm_crc32_u64(crc, crc32c_word(data + i));
  auto narrow = static_cast<std::uint32_t>(crc);
  for (; i < size; ++i) narrow = _mm_crc32_u8(narrow, static_cast<unsigned char>(data[i]));
  return narrow;
}

}  // namespace decant::codec::detail

#undef DECANT_TARGET_CRC32C
#endif
#endif
