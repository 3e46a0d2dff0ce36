// View, Philox, Cpu and the texts of errors.
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/cpu.hpp"
#include "decant/core/random.hpp"
#include "decant/core/view.hpp"
#include "threads.hpp"

#if __has_include(<span>)
#include <span>
#endif

namespace {

using decant::index_t;
using decant::Philox;
using decant::View;

TEST_CASE("Philox4x32-10 gives its authors' known answers") {
  // Random123's kat_vectors: counter, key, result.
  const auto words = [](std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d, std::uint64_t key) {
    const auto r = Philox{key}(a, b, c, d);
    return std::array<std::uint32_t, 4>{r.word[0], r.word[1], r.word[2], r.word[3]};
  };
  using Words = std::array<std::uint32_t, 4>;
  REQUIRE(words(0, 0, 0, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t ones = 0xffffffff;
  REQUIRE(words(ones, ones, ones, ones, ~std::uint64_t{0}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  REQUIRE(words(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0x299f31d0a4093822u) ==
          Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  static_assert(Philox{}(0).word[0] == 0x6627e8d5);
}

TEST_CASE("uniform numbers lie inside (0, 1) and spread evenly") {
  REQUIRE(Philox::to_unit(0) > 0.0f);
  REQUIRE(Philox::to_unit(0) == 0x1p-24f);
  REQUIRE(Philox::to_unit(0xffffffff) < 1.0f);
  REQUIRE(Philox::to_unit(0xffffffff) == 1.0f - 0x1p-24f);
  // Chi-square over 64 bins of 64,000 draws: 63 degrees of freedom, above 131.7 with probability 1e-6.
  std::array<int, 64> bins{};
  const Philox rng{2024};
  for (std::uint32_t i = 0; i < 64000; ++i) ++bins[static_cast<std::size_t>(rng.uniform(i, 3, 1, 7) * 64)];
  double chi = 0;
  for (const int b : bins) chi += (b - 1000.0) * (b - 1000.0) / 1000.0;
  REQUIRE(chi < 131.7);
}

TEST_CASE("random numbers depend on their coordinates alone") {
  const Philox rng{9};
  std::vector<float> forward, backward(100);
  for (std::uint32_t i = 0; i < 100; ++i) forward.push_back(rng.uniform(i, 5));
  for (std::uint32_t i = 100; i-- > 0;) backward[i] = rng.uniform(i, 5);
  REQUIRE(forward == backward);
  // Every coordinate and the seed matter.
  const auto first = [](std::uint64_t seed, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    return Philox{seed}(a, b, c, d).word[0];
  };
  const auto base = first(9, 1, 2, 3, 4);
  REQUIRE(base != first(10, 1, 2, 3, 4));
  REQUIRE(base != first(std::uint64_t{9} | (std::uint64_t{1} << 40), 1, 2, 3, 4));
  REQUIRE(base != first(9, 0, 2, 3, 4));
  REQUIRE(base != first(9, 1, 0, 3, 4));
  REQUIRE(base != first(9, 1, 2, 0, 4));
  REQUIRE(base != first(9, 1, 2, 3, 0));
}

TEST_CASE("a view indexes, slices and broadcasts") {
  std::vector<int> memory(2 * 3 * 4);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<int>(i);
  const View<int, 3> v(memory.data(), 2, 3, 4);
  REQUIRE((v.size() == 24 && v.contiguous() && !v.empty()));
  REQUIRE(v(1, 2, 3) == 23);
  REQUIRE(v[1][2][3] == 23);
  REQUIRE(&v[1](0, 0) == memory.data() + 12);
  const auto part = v.slice(1, 1, 2).slice(2, 2, 1);
  REQUIRE((part.extent(0) == 2 && part.extent(1) == 2 && part.extent(2) == 1));
  REQUIRE((part(1, 1, 0) == 22 && !part.contiguous()));
  const View<int, 3> transposed(memory.data(), {4, 3, 2}, {1, 4, 12});
  REQUIRE((transposed(3, 2, 1) == 23 && !transposed.contiguous()));
  const View<const int, 2> rows(memory.data() + 4, {1000, 4}, {0, 1});
  REQUIRE(rows(999, 3) == 7);
  const View<int, 1> reversed(memory.data() + 3, {4}, {-1});
  REQUIRE((reversed[0] == 3 && reversed[3] == 0));
  REQUIRE(View<int, 2>(memory.data(), {1, 4}, {77, 1}).contiguous());  // the stride of one row does not matter
  const View<int, 2> none;
  REQUIRE((none.empty() && none.data() == nullptr && none.extent(1) == 0));
  REQUIRE((none.contiguous() && View<int, 1>().contiguous()));
  v(0, 0, 0) = -5;
  REQUIRE(memory[0] == -5);
  const std::int32_t rank_from_int = 3;
  REQUIRE(View(memory.data(), rank_from_int, index_t{4}, 2L).extent(1) == 4);
}

TEST_CASE("extents are multiplied in 64 bits") {
  const View<char, 3> huge(nullptr, 1 << 20, 1 << 20, 4);
  REQUIRE(huge.size() == index_t{1} << 42);
  REQUIRE(huge.stride(0) == index_t{1} << 22);
}

TEST_CASE("what converts to a view and what does not") {
  std::vector<float> vector{1, 2, 3};
  const std::vector<float> constant{4, 5};
  std::array<float, 2> array{6, 7};
  const auto sum = [](View<const float, 1> v) {
    float s = 0;
    for (index_t i = 0; i < v.extent(0); ++i) s += v[i];
    return s;
  };
  REQUIRE(sum(vector) == 6);
  REQUIRE(sum(constant) == 9);
  REQUIRE(sum(array) == 13);
  REQUIRE(sum(View<float, 1>(vector)) == 6);
#if defined(__cpp_lib_span)
  REQUIRE(sum(std::span<float>(vector)) == 6);
  REQUIRE(sum(std::span<const float, 2>(array)) == 13);
#endif
  static_assert(std::is_convertible_v<View<float, 2>, View<const float, 2>>);
  static_assert(!std::is_convertible_v<View<const float, 2>, View<float, 2>>);
  static_assert(!std::is_convertible_v<View<float, 2>, View<float, 1>>);
  static_assert(!std::is_convertible_v<View<float, 1>, View<double, 1>>);
  static_assert(!std::is_constructible_v<View<float, 1>, const std::vector<float>&>);
  static_assert(!std::is_constructible_v<View<float, 1>, std::vector<double>&>);
  struct Base {};
  struct Derived : Base {
    int more;
  };
  static_assert(!std::is_convertible_v<View<Derived, 1>, View<Base, 1>>);  // elements of another size
  static_assert(std::is_trivially_copyable_v<View<float, 4>> && std::is_standard_layout_v<View<float, 4>>);
  static_assert(sizeof(View<float, 2>) == 5 * 8);
}

constexpr int in_constant_expressions() {
  int data[6] = {0, 1, 2, 3, 4, 5};
  const View<int, 2> v(data, 2, 3);
  v(0, 1) = 10;
  return v(1, 2) + v[0][1] + v.slice(1, 2, 1)(0, 0);
}
static_assert(in_constant_expressions() == 17);

TEST_CASE("errors say where, what, expected and got") {
  using decant::require;
  const auto fails = [](auto expected, auto got) { require(false, "f", "x", expected, got); };
  REQUIRE_THROWS_WITH(fails("a row", 3), "decant::f: argument `x`: expected a row, got 3");
  REQUIRE_THROWS_WITH(fails(std::string("one"), 0.5), "decant::f: argument `x`: expected one, got 0.5");
  REQUIRE_THROWS_WITH(fails(true, -1.5f), "decant::f: argument `x`: expected true, got -1.5");
  REQUIRE_THROWS_WITH(fails(std::uint8_t{7}, std::int64_t{1} << 40),
                      "decant::f: argument `x`: expected 7, got 1099511627776");
  REQUIRE_THROWS_WITH(decant::require_equal(3, 4, "g", "y"), "decant::g: argument `y`: expected 4, got 3");
  REQUIRE_NOTHROW(require(true, "f", "x", 1, 2));
  REQUIRE_THROWS_AS(fails(1, 2), decant::ArgumentError);
  REQUIRE_THROWS_AS(decant::detail::fail_format("f", "x", 1, 2), decant::FormatError);
  static_assert(std::is_base_of_v<std::runtime_error, decant::Error> &&
                std::is_base_of_v<decant::Error, decant::FormatError>);
}

TEST_CASE("Cpu splits ranges without gaps, for any thread count", "[threads]") {
  for (const int threads : {1, 2, 3, 16}) {
    decant::Cpu cpu(reversed_threads(threads));
    for (const index_t n : {0, 1, 2, 15, 16, 17, 1000}) {
      for (const index_t grain : {0, 1, 7, 16, 2000}) {
        std::vector<int> times(static_cast<std::size_t>(n), 0);
        const index_t parts = cpu.parts(n, grain);
        REQUIRE((parts <= threads && (n == 0 ? parts == 0 : parts >= 1)));
        std::vector<index_t> lengths(static_cast<std::size_t>(parts), -1);
        std::atomic<int> strays{0};
        cpu.parallel_ranges(n, grain, [&](index_t first, index_t last, index_t part) {
          if (part < 0 || part >= parts) {
            ++strays;
            return;
          }
          lengths[static_cast<std::size_t>(part)] = last - first;
          for (index_t i = first; i < last; ++i) ++times[static_cast<std::size_t>(i)];
        });
        REQUIRE(strays == 0);
        REQUIRE(times == std::vector<int>(static_cast<std::size_t>(n), 1));
        for (const index_t length : lengths) REQUIRE(length >= std::min(n, grain));
      }
    }
  }
}

TEST_CASE("Cpu refuses what it cannot do", "[threads]") {
  REQUIRE_THROWS_WITH(decant::Cpu(reversed_threads(0)),
                      "decant::Cpu: argument `parallel.threads`: expected at least 1, got 0");
  decant::Cpu cpu;
  REQUIRE(cpu.isa() == decant::best_isa());
  cpu.set_isa(decant::Isa::portable);
  REQUIRE(cpu.isa() == decant::Isa::portable);
  if (decant::best_isa() == decant::Isa::avx512) {
    decant_skip("the refusal of an instruction set that the processor lacks: this one has all");
  } else {
    REQUIRE_THROWS_WITH(cpu.set_isa(decant::Isa::avx512),
                        std::string("decant::Cpu::set_isa: argument `isa`: expected at most ") +
                            decant::name(decant::best_isa()) + ", got avx512");
    REQUIRE(cpu.isa() == decant::Isa::portable);
  }
}

}  // namespace
