// The codebook's laws, and the geometry of fields and planes, by exhaustion.
#include <algorithm>

#include "catch_compat.hpp"
#include "unit/codec/splitzip_data.hpp"

namespace {

using namespace codec_test;
using decant::bf16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;
namespace codec = decant::codec;

template <class T, int CodeBits>
void every_word() {
  using F = codec::FieldCodecOf<T, CodeBits>;
  static_assert(F::width == 8 * int(sizeof(T)) && F::high_bits + F::code_bits == F::exp_bits);
  for (unsigned bits = 0; bits < 1u << F::width; ++bits) {
    const unsigned exponent = F::exponent(bits), rest = F::rest(bits);
    REQUIRE((exponent < 1u << F::exp_bits && rest < 1u << F::rest_bits));
    REQUIRE(F::join(exponent, rest) == bits);
    REQUIRE(F::with_exponent(bits ^ F::join((1u << F::exp_bits) - 1, 0), exponent) == bits);
  }
}

TEST_CASE("FieldCodec takes every word apart and together") {
  every_word<bf16, 4>();
  every_word<bf16, 3>();
  every_word<fp8_e5m2, 4>();
  every_word<fp8_e5m2, 3>();
  every_word<fp8_e4m3, 3>();
  // The paper's byte plane of bf16; -1.5 is 1 01111111 1000000.
  CHECK(codec::FieldCodecOf<bf16, 4>::rest(bf16(-1.5f).bits) == 0xc0);
  CHECK(codec::FieldCodecOf<bf16, 4>::exponent(bf16(-1.5f).bits) == 127);
  // Mantissa before sign in e5m2, after it in e4m3.
  CHECK(codec::FieldCodecOf<fp8_e5m2, 4>::rest(fp8_e5m2(-1.5f).bits) == 0b101);
  CHECK(codec::FieldCodecOf<fp8_e4m3, 3>::rest(fp8_e4m3(-1.5f).bits) == 0b1100);
}

TEST_CASE("A field's planes are the binary digits of its width") {
  for (int width = 0; width <= 8; ++width) {
    int sum = 0;
    for (int p = codec::plane_count(width); p-- > 0;) {
      CHECK(codec::plane_shift(width, p) == sum);
      sum += codec::plane_width(width, p);
    }
    CHECK(sum == width);
  }
  CHECK(codec::field_bytes(3, 17) == 5 + 3);
  CHECK(codec::field_bytes(5, 1) == 2);
  CHECK(codec::field_bytes(4, 0) == 0);
  const std::byte plane[] = {std::byte{0b00011011}, std::byte{0b11000000}};
  for (index_t i = 0; i < 4; ++i) CHECK(codec::load_from_plane(plane, 2, i) == unsigned(i));
  CHECK(codec::load_from_plane(plane, 2, 4) == 3);
}

std::vector<int> exponents_of(const Codebook& book) {
  return {book.exponents, book.exponents + book.size()};
}

Codebook book_of(const std::vector<std::pair<int, int>>& counts, int code_bits, bool reserve_zero = false) {
  std::vector<std::uint64_t> all(256);
  for (const auto& [e, count] : counts) all[at(e)] = std::uint64_t(count);
  return codec::frequent_codebook<bf16>(view(all), code_bits, reserve_zero);
}

TEST_CASE("Codebook: the most frequent, ascending, ties to the larger") {
  CHECK(exponents_of(book_of({{9, 5}, {3, 9}, {200, 1}, {100, 7}, {50, 5}, {7, 5}, {8, 5}, {120, 5}, {60, 5}, {61, 1}},
                             3)) == std::vector<int>{3, 7, 8, 9, 50, 60, 100, 120});
  // Eight tie for seven places: the smallest stays out.
  CHECK(exponents_of(book_of({{1, 9}, {10, 2}, {11, 2}, {12, 2}, {13, 2}, {14, 2}, {15, 2}, {16, 2}, {17, 2}}, 3)) ==
        std::vector<int>{1, 11, 12, 13, 14, 15, 16, 17});
}

TEST_CASE("Codebook: free places extend the interval down, then up, then fill it") {
  CHECK(exponents_of(book_of({{100, 1}, {103, 1}}, 3)) == std::vector<int>{94, 95, 96, 97, 98, 99, 100, 103});
  CHECK(exponents_of(book_of({{2, 1}, {5, 1}}, 3)) == std::vector<int>{0, 1, 2, 5, 6, 7, 8, 9});
  CHECK(exponents_of(book_of({{0, 1}, {255, 1}}, 3)) == std::vector<int>{0, 249, 250, 251, 252, 253, 254, 255});
  CHECK(exponents_of(book_of({{255, 4}}, 3)) == std::vector<int>{248, 249, 250, 251, 252, 253, 254, 255});
  CHECK(book_of({}, 4).size() == 16);  // nothing known: still sixteen different ones
  CHECK(codec::is_valid<bf16>(book_of({}, 4)));
}

TEST_CASE("Codebook: reserve_zero takes the last place, once") {
  std::vector<std::pair<int, int>> counts;
  for (int e = 100; e < 110; ++e) counts.push_back({e, e});
  CHECK(exponents_of(book_of(counts, 3, true)) == std::vector<int>{0, 103, 104, 105, 106, 107, 108, 109});
  counts.push_back({0, 1000});
  CHECK(book_of(counts, 3, true) == book_of(counts, 3, false));
}

TEST_CASE("Codebook: calibration of constant, empty and strided samples") {
  decant::Cpu cpu;
  const SplitZip<bf16> fresh{.chunk = 256};
  CHECK(calibrate(cpu, fresh, View<const bf16, 1>{}) == fresh);
  const std::vector<bf16> nan(1000, element<bf16>(0x7fff));
  const SplitZip<bf16> all_nan = calibrate(cpu, fresh, view(nan));
  CHECK(all_nan.chunk == 256);
  CHECK(exponents_of(all_nan.book) == std::vector<int>{248, 249, 250, 251, 252, 253, 254, 255});
  std::vector<bf16> every_other(1000, bf16(1.0f));
  for (std::size_t i = 1; i < 1000; i += 2) every_other[i] = bf16(1e20f);
  const View<const bf16, 1> ones(every_other.data(), {500}, {2});
  CHECK(calibrate(cpu, fresh, ones).book == codec::window_codebook(3, 120));
  const std::vector<bf16> zeros(64, bf16(0.0f));
  CHECK(calibrate(cpu, fresh, view(zeros)).book == codec::window_codebook(3, 0));
  // Uniform exponents: no code saves anything.
  std::vector<bf16> uniform;
  for (unsigned i = 0; i < 65536; ++i) uniform.push_back(element<bf16>(i));
  CHECK(calibrate(cpu, fresh, view(uniform)).book == Codebook{});
}

TEST_CASE("Codebook: entropy and identity") {
  const std::vector<std::uint64_t> four = {5, 5, 0, 5, 5}, one = {0, 9}, none(8), eighth = {4, 2, 1, 1};
  CHECK(codec::exponent_entropy(four) == Approx(2));
  CHECK(codec::exponent_entropy(one) == 0);
  CHECK(codec::exponent_entropy(none) == 0);
  CHECK(codec::exponent_entropy(eighth) == Approx(1.75));
  CHECK(codec::escape_rate(none, codec::window_codebook(3, 0)) == 0);
  CHECK(codec::escape_rate(eighth, codec::window_codebook(3, 3)) == Approx(7.0 / 8));

  std::vector<std::uint64_t> ids;
  Random random{1};
  for (int i = 0; i < 2000; ++i) ids.push_back(id(random_codebook<bf16>(random, 3 + i % 2, false)));
  ids.push_back(id(Codebook{}));
  std::sort(ids.begin(), ids.end());
  CHECK(std::unique(ids.begin(), ids.end()) == ids.end());
  // FNV-1a of 17 zero bytes: a number that files and logs may hold.
  std::uint64_t zero = 0xcbf29ce484222325u;
  for (int i = 0; i < 17; ++i) zero *= 0x100000001b3u;
  CHECK(id(Codebook{}) == zero);
  CHECK(id(codec::normal_codebook<bf16>()) == id(codec::window_codebook(4, 114)));
}

TEST_CASE("Codebook: what is not one") {
  Codebook book = codec::window_codebook(4, 20);
  CHECK(codec::is_valid<bf16>(book));
  CHECK_FALSE(codec::is_valid<fp8_e5m2>(book));  // exponent 35
  CHECK_FALSE(codec::is_valid<fp8_e4m3>(codec::window_codebook(4, 0)));
  CHECK(codec::is_valid<fp8_e4m3>(codec::window_codebook(3, 8)));
  std::swap(book.exponents[0], book.exponents[1]);
  CHECK_FALSE(codec::is_valid<bf16>(book));
  book = codec::window_codebook(3, 20);
  book.exponents[15] = 1;
  CHECK_FALSE(codec::is_valid<bf16>(book));
  CHECK(codec::is_valid<bf16>(Codebook{}));
  CHECK(book.contiguous());
  CHECK_FALSE(Codebook{}.contiguous());
}

}  // namespace
