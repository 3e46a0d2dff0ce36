// The 8- and 16-bit types, exhaustively: every bit pattern and every rounding boundary against a definition in double.
#include "decant/core/dtype.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/convert.hpp"
#include "decant/core/random.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using decant::bf16;
using decant::fp16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;
using decant::Isa;

/// A format by its definition: sign, exponent, mantissa.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool ieee;       // the top exponent holds infinity and NaN; else only the all-ones pattern is NaN
  bool saturates;  // what overflow and infinity become: the largest finite value, else infinity
  int patterns() const { return 1 << (1 + exponent_bits + mantissa_bits); }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  unsigned infinity() const { return ((1u << exponent_bits) - 1u) << mantissa_bits; }
  unsigned sign() const { return 1u << (exponent_bits + mantissa_bits); }
  unsigned largest() const { return ieee ? infinity() - 1 : sign() - 2; }

  bool is_nan(unsigned bits) const {
    const unsigned magnitude = bits & (sign() - 1);
    return ieee ? magnitude > infinity() : magnitude == sign() - 1;
  }
  double value(unsigned bits) const {
    const unsigned magnitude = bits & (sign() - 1);
    double v = 0;
    if (is_nan(bits)) {
      v = std::numeric_limits<double>::quiet_NaN();
    } else if (ieee && magnitude == infinity()) {
      v = std::numeric_limits<double>::infinity();
    } else {
      const int exponent = static_cast<int>(magnitude >> mantissa_bits);
      const int mantissa = static_cast<int>(magnitude & ((1u << mantissa_bits) - 1));
      v = exponent == 0 ? std::ldexp(mantissa, 1 - bias() - mantissa_bits)
                        : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
    }
    return (bits & sign()) != 0 ? -v : v;
  }
};

template <class T>
constexpr Format format_of() {
  if constexpr (std::is_same_v<T, fp16>) return {5, 10, true, false};
  else if constexpr (std::is_same_v<T, bf16>) return {8, 7, true, false};
  else if constexpr (std::is_same_v<T, fp8_e4m3>) return {4, 3, false, true};
  else return {5, 2, true, true};
}

template <class T>
using bits_of = decltype(T{}.bits);

template <class T>
T from_pattern(unsigned bits) {
  return T::from_bits(static_cast<bits_of<T>>(bits));
}

std::uint32_t float_bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Plain CHECKs over 65536 patterns and more would dominate the time: count, and report the first.
struct Mismatches {
  long count = 0;
  double first_input = 0;
  unsigned first_got = 0, first_expected = 0;
  void compare(double input, unsigned got, unsigned expected) {
    if (got == expected) return;
    if (count++ == 0) first_input = input, first_got = got, first_expected = expected;
  }
  void require_none() const {
    INFO(count << " wrong, the first for " << first_input << ": " << first_got << ", expected " << first_expected);
    REQUIRE(count == 0);
  }
};

TEMPLATE_TEST_CASE("every bit pattern widens to its definition and comes back", "", fp16, bf16, fp8_e4m3, fp8_e5m2) {
  constexpr Format format = format_of<TestType>();
  Mismatches wide, back;
  for (int i = 0; i < format.patterns(); ++i) {
    const auto bits = static_cast<unsigned>(i);
    const float x = static_cast<float>(from_pattern<TestType>(bits));
    if (format.is_nan(bits)) {
      if (!std::isnan(x) || std::signbit(x) != ((bits & format.sign()) != 0)) wide.compare(i, 1, 0);
      if (!format.is_nan(TestType(x).bits)) back.compare(i, TestType(x).bits, bits);
      continue;
    }
    wide.compare(i, float_bits(x), float_bits(static_cast<float>(format.value(bits))));
    const bool infinite = std::isinf(x) && format.saturates;
    back.compare(i, TestType(x).bits, infinite ? (bits & format.sign()) | format.largest() : bits);
  }
  wide.require_none();
  back.require_none();
}

TEMPLATE_TEST_CASE("every rounding boundary rounds to nearest even", "", fp16, bf16, fp8_e4m3, fp8_e5m2) {
  constexpr Format format = format_of<TestType>();
  constexpr float inf = std::numeric_limits<float>::infinity();
  Mismatches wrong;
  const unsigned overflow = format.saturates ? format.largest() : format.infinity();
  for (unsigned low = 0; low <= format.largest(); ++low) {
    // Between a value and its upper neighbour (one step beyond the largest there is a virtual one).
    const double a = format.value(low);
    const double b = low == format.largest() ? a + (a - format.value(low - 1)) : format.value(low + 1);
    const double middle = (a + b) / 2;
    const unsigned high = low == format.largest() ? overflow : low + 1;
    const unsigned even = low % 2 == 0 ? low : high;
    const auto test = [&](float x, unsigned expected) {
      wrong.compare(static_cast<double>(x), TestType(x).bits, expected);
      wrong.compare(-static_cast<double>(x), TestType(-x).bits, expected | format.sign());
    };
    const auto m = static_cast<float>(middle);
    if (static_cast<double>(m) == middle) {
      test(m, even);
      if (std::nextafter(m, 0.0f) > 0) test(std::nextafter(m, 0.0f), low);
      if (m < std::numeric_limits<float>::max()) test(std::nextafter(m, inf), high);
    } else {
      // bf16's smallest subnormals: the midpoint lies below float's grid or is a float itself; nothing in between.
      test(static_cast<float>(a), low);
    }
    test(std::nextafter(static_cast<float>(a), inf),
         static_cast<double>(std::nextafter(static_cast<float>(a), inf)) < middle ? low : high);
  }
  wrong.compare(1e39, TestType(inf).bits, overflow);
  wrong.compare(-1e39, TestType(-inf).bits, overflow | format.sign());
  wrong.compare(3.4e38, TestType(std::numeric_limits<float>::max()).bits, overflow);
  wrong.compare(0, TestType(0.0f).bits, 0);
  wrong.compare(-0.0, TestType(-0.0f).bits, format.sign());
  wrong.compare(1e-45, TestType(std::numeric_limits<float>::denorm_min()).bits, 0);
  wrong.require_none();
  for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    REQUIRE(format.is_nan(TestType(std::bit_cast<float>(nan)).bits));
    REQUIRE(std::isnan(static_cast<float>(TestType(std::bit_cast<float>(nan)))));
  }
}

TEMPLATE_TEST_CASE("rounding picks the nearest of all values", "", fp8_e4m3, fp8_e5m2) {
  // Brute force: 300,000 random floats against a search of the whole value table.
  constexpr Format format = format_of<TestType>();
  const decant::Philox rng{11};
  Mismatches wrong;
  for (std::uint32_t i = 0; i < 300000; ++i) {
    // Exponents around the format's range, so that most draws land in it.
    const std::uint32_t word = rng(i).word[0];
    const float x = std::bit_cast<float>((word & 0x807fffffu) | ((100 + rng(i).word[1] % 50) << 23));
    unsigned best = 0;
    double best_distance = std::abs(static_cast<double>(x));
    for (unsigned bits = 1; bits <= format.largest(); ++bits) {
      const double distance = std::abs(std::abs(static_cast<double>(x)) - format.value(bits));
      if (distance < best_distance || (distance == best_distance && bits % 2 == 0))
        best = bits, best_distance = distance;
    }
    wrong.compare(static_cast<double>(x), TestType(x).bits, best | (x < 0 ? format.sign() : 0));
  }
  wrong.require_none();
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) unsigned hardware_narrow(float x) {
  return static_cast<unsigned>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT))) & 0xffffu;
}

TEST_CASE("fp16 agrees with the processor's conversion") {
  if (decant::best_isa() < Isa::avx2) {
    decant_skip("fp16 against the processor's conversion: this one has no AVX2");
    return;
  }
  Mismatches wrong;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 997) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!std::isnan(x)) wrong.compare(static_cast<double>(x), fp16(x).bits, hardware_narrow(x));
  }
  wrong.require_none();
}
#endif

std::vector<float> conversion_inputs() {
  std::vector<float> x;
  const decant::Philox rng{4};
  for (std::uint32_t i = 0; i < 100003; ++i) x.push_back(std::bit_cast<float>(rng(i).word[0]));
  for (std::uint32_t e = 0; e < 256; ++e) {
    for (const std::uint32_t m : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0x18000u, 0x7fffffu}) {
      x.push_back(std::bit_cast<float>((e << 23) | m));
      x.push_back(std::bit_cast<float>(0x80000000u | (e << 23) | m));
    }
  }
  return x;
}

TEMPLATE_TEST_CASE("row conversions give the scalar bits on every instruction set", "", fp16, bf16, fp8_e4m3,
                   fp8_e5m2) {
  const std::vector<float> x = conversion_inputs();
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (isa > decant::best_isa()) continue;
    const auto n = static_cast<decant::index_t>(x.size());
    std::vector<TestType> narrow(x.size());
    decant::convert(isa, x.data(), n, narrow.data());
    std::vector<float> wide(x.size());
    decant::convert(isa, narrow.data(), n, wide.data());
    Mismatches wrong;
    for (std::size_t i = 0; i < x.size(); ++i) {
      wrong.compare(static_cast<double>(x[i]), narrow[i].bits, TestType(x[i]).bits);
      wrong.compare(static_cast<double>(x[i]), float_bits(wide[i]), float_bits(static_cast<float>(narrow[i])));
    }
    wrong.require_none();
    for (decant::index_t count = 0; count < 40; ++count) {  // ends of rows, and nothing behind them
      std::vector<TestType> out(41, TestType::from_bits(0x55));
      decant::convert(isa, x.data() + 7, count, out.data());
      for (decant::index_t i = 0; i < 41; ++i) {
        const auto at = static_cast<std::size_t>(i);
        REQUIRE(out[at].bits == (i < count ? TestType(x[at + 7]).bits : 0x55));
      }
    }
  }
}

TEST_CASE("types convert in constant expressions and say what they are") {
  static_assert(static_cast<float>(bf16(1.5f)) == 1.5f);
  static_assert(fp16(65520.0f).bits == 0x7c00 && fp16(65519.0f).bits == 0x7bff);
  static_assert(fp8_e4m3(1e9f).bits == 0x7e && static_cast<float>(fp8_e4m3(448.0f)) == 448.0f);
  static_assert(fp8_e5m2(-1e9f).bits == 0xfb && static_cast<float>(fp8_e5m2::from_bits(0xfb)) == -57344.0f);
  static_assert(decant::dtype_of<const bf16> == decant::DType::bf16 && decant::size_of(decant::DType::e4m3) == 1);
  static_assert(decant::Storage<float> && decant::Storage<const fp16> && !decant::Storage<double>);
  static_assert(std::is_trivial_v<fp16> && std::is_standard_layout_v<fp8_e5m2>);
  static_assert(!std::is_convertible_v<float, bf16> && std::is_convertible_v<bf16, float>);
  REQUIRE(std::string(decant::name(decant::DType::e5m2)) == "e5m2");
}

}  // namespace
