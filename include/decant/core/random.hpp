// decant: Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror, Shaw: Parallel random numbers:
// as easy as 1, 2, 3; SC 2011). key = seed, counter = (draw, step, request, stream): every number is a pure function of
// those, so it is the same on CPU and GPU, in any order, in any batch. Bit-exact with the authors' known answers.
#ifndef DECANT_CORE_RANDOM_HPP
#define DECANT_CORE_RANDOM_HPP

#include <cstdint>

#include "../config.hpp"

namespace decant {

/// Four random words.
struct Philox4 {
  std::uint32_t word[4];
};

struct Philox {
  std::uint64_t seed = 0;

  /// The 128 random bits of one counter value.
  DECANT_HD constexpr Philox4 operator()(std::uint32_t draw, std::uint32_t step = 0, std::uint32_t request = 0,
                                         std::uint32_t stream = 0) const {
    std::uint32_t c[4] = {draw, step, request, stream};
    std::uint32_t k0 = static_cast<std::uint32_t>(seed);
    std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
      const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0;
      const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1;
      c[1] = static_cast<std::uint32_t>(p1);
      c[3] = static_cast<std::uint32_t>(p0);
      c[0] = n0;
      c[2] = n2;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {{c[0], c[1], c[2], c[3]}};
  }

  /// A float uniform on the open interval (0, 1): 23 bits, centred, so that neither 0 nor 1 ever occurs.
  DECANT_HD static constexpr float to_unit(std::uint32_t word) {
    return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
  }

  DECANT_HD constexpr float uniform(std::uint32_t draw, std::uint32_t step = 0, std::uint32_t request = 0,
                                    std::uint32_t stream = 0) const {
    return to_unit((*this)(draw, step, request, stream).word[0]);
  }

  /// A double uniform on the half-open interval [0, 1): 53 bits of the first two words.
  DECANT_HD constexpr double uniform_double(std::uint32_t draw, std::uint32_t step = 0, std::uint32_t request = 0,
                                            std::uint32_t stream = 0) const {
    const Philox4 bits = (*this)(draw, step, request, stream);
    return static_cast<double>((std::uint64_t{bits.word[0]} << 32 | bits.word[1]) >> 11) * 0x1p-53;
  }
};

}  // namespace decant

#endif
