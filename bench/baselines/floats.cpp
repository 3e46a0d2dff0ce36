#include "floats.hpp"

#include <cstring>

namespace baselines {
namespace {

template <class Word, int ExponentBits, int MantissaBits>
struct Format {
  static constexpr std::size_t rest_bits = MantissaBits + 1;
  static constexpr unsigned exponent_mask = (1u << ExponentBits) - 1, mantissa_mask = (1u << MantissaBits) - 1;

  static unsigned exponent_of(unsigned x) { return x >> MantissaBits & exponent_mask; }
  static unsigned rest_of(unsigned x) { return (x >> ExponentBits & (1u << MantissaBits)) | (x & mantissa_mask); }
  static Word join(unsigned exponent, unsigned rest) {
    return static_cast<Word>((rest >> MantissaBits) << (ExponentBits + MantissaBits) | exponent << MantissaBits |
                             (rest & mantissa_mask));
  }

  static void split_eight(const Word* x, std::uint8_t* exponents, std::byte* rest) {
    std::uint64_t packed = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      exponents[k] = static_cast<std::uint8_t>(exponent_of(x[k]));
      packed |= std::uint64_t{rest_of(x[k])} << (rest_bits * k);
    }
    std::memcpy(rest, &packed, rest_bits);
  }

  static void join_eight(const std::uint8_t* exponents, const std::byte* rest, Word* x) {
    std::uint64_t packed = 0;
    std::memcpy(&packed, rest, rest_bits);
    for (std::size_t k = 0; k < 8; ++k)
      x[k] = join(exponents[k], static_cast<unsigned>(packed >> (rest_bits * k)) & ((1u << rest_bits) - 1));
  }

  static void split(const std::byte* from, std::size_t n, std::uint8_t* exponents, std::byte* rest) {
    const auto* x = reinterpret_cast<const Word*>(from);
    std::size_t i = 0;
    if constexpr (rest_bits == 8) {  // the compiler makes vectors of this loop, but not of the other
      for (; i < n / 8 * 8; ++i) {
        exponents[i] = static_cast<std::uint8_t>(exponent_of(x[i]));
        rest[i] = static_cast<std::byte>(rest_of(x[i]));
      }
    } else {
      for (; i + 8 <= n; i += 8) split_eight(x + i, exponents + i, rest + i / 8 * rest_bits);
    }
    if (i == n) return;
    Word last[8] = {};
    std::uint8_t last_exponents[8];
    std::memcpy(last, x + i, (n - i) * sizeof(Word));
    split_eight(last, last_exponents, rest + i / 8 * rest_bits);
    std::memcpy(exponents + i, last_exponents, n - i);
  }

  static void join(const std::uint8_t* exponents, const std::byte* rest, std::size_t n, std::byte* to) {
    auto* x = reinterpret_cast<Word*>(to);
    std::size_t i = 0;
    if constexpr (rest_bits == 8) {
      for (; i < n / 8 * 8; ++i) x[i] = join(exponents[i], static_cast<unsigned>(rest[i]));
    } else {
      for (; i + 8 <= n; i += 8) join_eight(exponents + i, rest + i / 8 * rest_bits, x + i);
    }
    if (i == n) return;
    std::uint8_t last_exponents[8] = {};
    Word last[8];
    std::memcpy(last_exponents, exponents + i, n - i);
    join_eight(last_exponents, rest + i / 8 * rest_bits, last);
    std::memcpy(x + i, last, (n - i) * sizeof(Word));
  }
};

using Bf16 = Format<std::uint16_t, 8, 7>;
using E5m2 = Format<std::uint8_t, 5, 2>;
using E4m3 = Format<std::uint8_t, 4, 3>;

}  // namespace

void split_floats(const FloatFormat& format, const std::byte* x, std::size_t n, std::uint8_t* exponents,
                  std::byte* rest) {
  const auto split = format.exponent_bits == 8 ? Bf16::split : format.exponent_bits == 5 ? E5m2::split : E4m3::split;
  split(x, n, exponents, rest);
}

void join_floats(const FloatFormat& format, const std::uint8_t* exponents, const std::byte* rest, std::size_t n,
                 std::byte* x) {
  if (format.exponent_bits == 8) return Bf16::join(exponents, rest, n, x);
  if (format.exponent_bits == 5) return E5m2::join(exponents, rest, n, x);
  E4m3::join(exponents, rest, n, x);
}

}  // namespace baselines
