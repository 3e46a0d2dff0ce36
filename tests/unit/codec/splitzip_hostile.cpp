// SplitZip's decoder against damaged and forged payloads: an error before anything is written, or the elements whose
// payload these very bytes are. DECANT_FUZZ_MUTATIONS sets how many random mutations are tried per format.
#include <cstdlib>

#include "catch_compat.hpp"
#include "sanitizers.hpp"
#include "unit/codec/splitzip_data.hpp"

namespace {

using namespace codec_test;
using decant::bf16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;

/// Decodes with whatever codec the payload names. Returns whether that worked.
template <class T>
bool error_or_canonical(decant::Cpu& cpu, const SplitZip<T>& codec, const Bytes& payload, index_t n) {
  std::vector<T> y(at(n), element<T>(0x55));
  SplitZip<T> found;
  try {
    found = codec_of(codec, bytes_of(payload));
    decode(cpu, found, bytes_of(payload), view(y));
  } catch (const decant::FormatError&) {
    for (const T e : y) {
      if (e.bits != element<T>(0x55).bits) FAIL("elements were written before the error");
    }
    return false;
  }
  if (encoded(cpu, found, y) != payload) FAIL("decoded bytes that encode does not write");
  return true;
}

/// A small payload with coded chunks, two with raw exponents, a group boundary and a ragged end.
template <class T>
struct Sample {
  SplitZip<T> codec{.chunk = 64, .book = random_codebook<T>(random, code_widths<T>()[0], false)};
  std::vector<T> x;
  Bytes payload;

  static constexpr index_t n = 64 * 66 + 13;
  static inline Random random{11};

  Sample() {
    decant::Cpu cpu;
    x = mostly_coded<T>(random, n, codec.book, 0.004);
    const std::vector<T> wild = mostly_coded<T>(random, 64, codec.book, 1);
    std::copy(wild.begin(), wild.end(), x.begin() + 64 * 3);
    std::copy_n(wild.begin(), 13, x.begin() + 64 * 66);
    payload = encoded(cpu, codec, x);
    REQUIRE(payload == expected(codec, x));
    REQUIRE(payload.size() < x.size() * sizeof(T));
  }
};

template <class T>
void truncations_and_flips() {
  const Sample<T> s;
  decant::Cpu cpu;
  for (std::size_t size = 0; size < s.payload.size(); ++size) {
    const Bytes cut(s.payload.begin(),
                    s.payload.begin() + static_cast<std::ptrdiff_t>(size));  // exactly this much memory
    REQUIRE_FALSE(error_or_canonical(cpu, s.codec, cut, s.n));
  }
  Bytes longer = s.payload;
  longer.push_back(0);
  CHECK_FALSE(error_or_canonical(cpu, s.codec, longer, s.n));
  CHECK_FALSE(error_or_canonical(cpu, s.codec, s.payload, s.n - 1));
  CHECK_FALSE(error_or_canonical(cpu, s.codec, s.payload, s.n + 1));

  int accepted = 0;
  constexpr int step = under_asan ? 9 : 1;
  for (std::size_t bit = 0; bit < 8 * s.payload.size(); bit += step) {
    Bytes flipped = s.payload;
    flipped[bit / 8] = static_cast<std::uint8_t>(flipped[bit / 8] ^ 1u << bit % 8);
    accepted += error_or_canonical(cpu, s.codec, flipped, s.n) ? 1 : 0;
  }
  // Every bit of a sign or mantissa makes another tensor, and so do many of the codes; no other bit does so by itself.
  constexpr int rest_bits = 1 + decant::codec::FloatBits<T>::mantissa;
  if (step > 1) return;
  CHECK(accepted >= s.n * rest_bits);
  CHECK(accepted <= s.n * (rest_bits + s.codec.book.code_bits + 2));
}

TEST_CASE("SplitZip: every truncation and every flipped bit, bf16") {
  truncations_and_flips<bf16>();
}
TEST_CASE("SplitZip: every truncation and every flipped bit, e5m2") {
  truncations_and_flips<fp8_e5m2>();
}
TEST_CASE("SplitZip: every truncation and every flipped bit, e4m3") {
  truncations_and_flips<fp8_e4m3>();
}

TEST_CASE("SplitZip: another codec's payload is an error, not wrong numbers") {
  const Sample<bf16> s;
  decant::Cpu cpu;
  std::vector<bf16> y(at(s.n), element<bf16>(0x55));
  SplitZip<bf16> other = s.codec;
  other.chunk = 128;
  CHECK_THROWS_AS(decode(cpu, other, bytes_of(s.payload), view(y)), decant::FormatError);
  for (const Codebook& book : {Codebook{}, decant::codec::window_codebook(3, 100), SplitZip<bf16>{}.book}) {
    other = s.codec;
    other.book = book;
    CHECK_THROWS_WITH(decode(cpu, other, bytes_of(s.payload), view(y)), catch_compat::contains("codebook"));
  }
  CHECK(y == std::vector<bf16>(y.size(), element<bf16>(0x55)));
  CHECK_THROWS_AS(decode_range(cpu, other, bytes_of(s.payload), 0, view(y)), decant::FormatError);

  // A raw payload needs no book.
  SplitZip<bf16> raw = s.codec;
  raw.book = {};
  const Bytes stored = encoded(cpu, raw, s.x);
  CHECK(stored.size() == 64 + 2 * s.x.size());
  CHECK(same_bits(decoded(cpu, s.codec, stored, s.n), s.x));
  CHECK(codec_of(s.codec, bytes_of(stored)) == raw);
  CHECK(codec_of(raw, bytes_of(s.payload)) == s.codec);
}

template <class T>
void other_forms() {
  const Sample<T> s;
  decant::Cpu cpu;
  for (const std::size_t chunk : {0u, 3u, 65u, 66u}) {  // coded, raw, coded, raw and ragged
    const Bytes forged = expected(s.codec, s.x, chunk);
    REQUIRE(forged != s.payload);
    CHECK_FALSE(error_or_canonical(cpu, s.codec, forged, s.n));
  }
}

TEST_CASE("SplitZip: a chunk in the form that is not its own is refused, though it decodes to the same elements") {
  other_forms<bf16>();
  other_forms<fp8_e5m2>();
  other_forms<fp8_e4m3>();
}

TEST_CASE("SplitZip: a coded payload that is no smaller than the raw one is refused") {
  // What the oracle would write if it did not compare sizes: forged from the parts of a longer payload's layout.
  decant::Cpu cpu;
  const SplitZip<bf16> codec;
  const std::vector<bf16> x(100, bf16(1.0f));
  const auto l = decant::codec::detail::splitzip_layout<bf16>(100, codec.chunk, 4);
  REQUIRE(l.side >= l.raw_bytes);
  std::vector<std::byte> forged(at(l.side));
  decant::codec::detail::store_header(l, codec.book, 0, forged.data());
  std::vector<bf16> y(100);
  CHECK_THROWS_WITH(decode(cpu, codec, View<const std::byte, 1>(forged.data(), l.side), view(y)),
                    catch_compat::contains("fewer bytes than a raw payload"));
}

TEST_CASE("SplitZip: arguments that do not fit are refused before anything is written") {
  decant::Cpu cpu;
  for (const index_t chunk : {0, 32, 96, 16384, -64}) {
    CHECK_THROWS_AS(max_encoded_size(SplitZip<bf16>{.chunk = chunk}, 10), decant::ArgumentError);
  }
  SplitZip<bf16> codec;
  codec.book.exponents[3] = codec.book.exponents[2];
  CHECK_THROWS_AS(max_encoded_size(codec, 10), decant::ArgumentError);
  codec = {};
  codec.book.code_bits = 5;
  CHECK_THROWS_AS(max_encoded_size(codec, 10), decant::ArgumentError);
  CHECK_THROWS_AS(max_encoded_size(SplitZip<bf16>{}, -1), decant::ArgumentError);
  SplitZip<fp8_e4m3> four;
  four.book = decant::codec::window_codebook(4, 0);
  CHECK_THROWS_AS(max_encoded_size(four, 10), decant::ArgumentError);
  std::vector<std::uint64_t> counts(255);
  CHECK_THROWS_AS(histogram(cpu, SplitZip<bf16>{}, View<const bf16, 1>{}, view(counts)), decant::ArgumentError);
}

/// One of the changes that find holes in parsers.
void mutate(Random& random, Bytes& payload) {
  const index_t size = index_t(payload.size());
  const auto set = [&](index_t where, std::uint64_t value, int bytes) {
    for (int b = 0; b < bytes && where + b < index_t(payload.size()); ++b) {
      payload[at(where + b)] = static_cast<std::uint8_t>(value >> 8 * b);
    }
  };
  constexpr std::uint64_t bytes[] = {0, 1, 0x7f, 0x80, 0xff};
  constexpr std::uint64_t numbers[] = {
      0, 1, 0x7f, 0x4000, 0xffff, 0xffffffffu, std::uint64_t{1} << 48, std::uint64_t{1} << 63, ~std::uint64_t{0}};
  // Half of the changes hit what is not a plane: the header, or the directory, super entries and side stream at the
  // end.
  const index_t part = random.below(4);
  const index_t where = part == 0   ? random.below(64)
                        : part == 1 ? size - 1 - random.below(std::min<index_t>(size, 400))
                                    : random.below(size);
  switch (random.below(7)) {
    case 0:
    case 1:
      payload[at(where)] = static_cast<std::uint8_t>(payload[at(where)] ^ 1u << random.below(8));
      break;
    case 2:
      payload[at(where)] = static_cast<std::uint8_t>(bytes[random.below(5)]);
      break;
    case 3:
      set(24 + 8 * random.below(5), numbers[random.below(9)], 8);
      break;
    case 4: {  // a field one off
      std::uint64_t value = 0;
      const index_t field = 24 + 8 * random.below(5);
      for (int b = 7; b >= 0; --b) value = value << 8 | payload[at(field + b)];
      set(field, value + (random.below(2) == 0 ? 1 : ~std::uint64_t{0}), 8);
      break;
    }
    case 5: {  // a piece of the payload at another place
      const index_t from = random.below(size), length = 1 + random.below(16);
      for (index_t b = 0; b < length && std::max(from, where) + b < size; ++b)
        payload[at(where + b)] = payload[at(from + b)];
      break;
    }
    default:
      payload.resize(at(64 + random.below(size - 63)));
      break;
  }
}

template <class T>
void mutations(std::uint64_t seed, long count) {
  const Sample<T> s;
  decant::Cpu cpu;
  Random random{seed};
  long accepted = 0;
  for (long i = 0; i < count; ++i) {
    Bytes payload = s.payload;
    for (index_t changes = 1 + random.below(3); changes > 0; --changes) mutate(random, payload);
    accepted += error_or_canonical(cpu, s.codec, payload, s.n) ? 1 : 0;
  }
  CHECK(accepted > count / 50);  // the changes reach the inside
  CHECK(accepted < count);
}

TEST_CASE("SplitZip: mutated payloads are errors or other tensors") {
  const char* const wanted = std::getenv("DECANT_FUZZ_MUTATIONS");
  const long count = wanted ? std::atol(wanted) : under_asan ? 4000 : 20000;
  mutations<bf16>(21, count);
  mutations<fp8_e5m2>(22, count);
  mutations<fp8_e4m3>(23, count);
}

}  // namespace
