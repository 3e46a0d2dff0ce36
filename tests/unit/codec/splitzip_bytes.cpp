// SplitZip writes the bytes of its description, on every path and any number of threads, and reads them back.
#include "catch_compat.hpp"
#include "unit/codec/splitzip_data.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace {

using namespace codec_test;
using decant::bf16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;

/// x through every path: the oracle's bytes, and x again.
template <class T>
void same_everywhere(const SplitZip<T>& codec, const std::vector<T>& x) {
  const Bytes bytes = expected(codec, x);
  const index_t n = static_cast<index_t>(x.size());
  for (const decant::Isa isa : paths()) {
    INFO("n " << n << " chunk " << codec.chunk << " bits " << int{codec.book.code_bits} << " first exponent "
              << int{codec.book.exponents[0]} << " on " << decant::name(isa));
    decant::Cpu cpu;
    cpu.set_isa(isa);
    REQUIRE(encoded(cpu, codec, x) == bytes);
    REQUIRE(same_bits(decoded(cpu, codec, bytes, n), x));
    REQUIRE(same_bits(decoded(cpu, codec_of(codec, bytes_of(bytes)), bytes, n), x));
  }
}

/// The same with results that are streamed around the caches, whatever their size.
template <class T>
void same_streamed(const SplitZip<T>& codec, const std::vector<T>& x) {
  namespace detail = decant::codec::detail;
  const Bytes bytes = expected(codec, x);
  const index_t n = static_cast<index_t>(x.size());
  for (const decant::Isa isa : paths()) {
    INFO("n " << n << " chunk " << codec.chunk << " bits " << int{codec.book.code_bits} << " on " << decant::name(isa));
    decant::Cpu cpu(reversed_threads(3));
    cpu.set_isa(isa);
    Lines<std::byte> out(max_encoded_size(codec, n));
    const index_t size = detail::encode_elements(cpu, codec, view(x), out.data(), 0);
    REQUIRE(size == index_t(bytes.size()));
    REQUIRE(std::memcmp(out.data(), bytes.data(), bytes.size()) == 0);
    Lines<T> y(n + 1);
    for (index_t shift = 0; shift < 2; ++shift) {  // at a line and not
      const View<T, 1> to(y.data() + shift, n);
      detail::decode_elements(cpu, "test", codec, bytes_of(bytes), n, 0, to, 0);
      REQUIRE((n == 0 || std::memcmp(to.data(), x.data(), x.size() * sizeof(T)) == 0));
    }
    // A part: only then are chunks at lines when it begins at one.
    for (const index_t first : {codec.chunk, index_t{3}}) {
      if (first + 10 > n) continue;
      const View<T, 1> to(y.data(), n - first - 5);
      detail::decode_elements(cpu, "test", codec, bytes_of(bytes), n, first, to, 0);
      REQUIRE(std::memcmp(to.data(), x.data() + first, at(to.extent(0)) * sizeof(T)) == 0);
    }
  }
}

template <class T>
void all_patterns() {
  std::vector<T> x(at(index_t{1} << (8 * sizeof(T))));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = element<T>(i);
  // Of the 8-bit formats every pattern many times, so that the coded form is the smaller.
  while (x.size() < 65536) x.insert(x.end(), x.begin(), x.end());
  const std::vector<index_t> chunks = under_asan ? std::vector<index_t>{1024} : std::vector<index_t>{64, 1024, 8192};
  for (const int code_bits : code_widths<T>()) {
    for (const index_t chunk : chunks) {
      SplitZip<T> codec{.chunk = chunk, .book = decant::codec::window_codebook(code_bits, 0)};
      same_everywhere(codec, x);
      std::vector<T> permuted = x;
      Random random{7};
      for (std::size_t i = permuted.size(); i-- > 1;)
        std::swap(permuted[i], permuted[at(random.below(index_t(i) + 1))]);
      same_everywhere(codec, permuted);
      // With the coded elements repeated, a chunk that has all of the others is kept with raw exponents.
      std::vector<T> padded = x;
      padded.resize(x.size() * 12, x[3]);
      same_everywhere(codec, padded);
    }
  }
}

template <class T>
void random_inputs(std::uint64_t seed, int draws) {
  Random random{seed};
  for (int draw = 0; draw < draws; ++draw) {
    const std::vector<int> widths = code_widths<T>();
    SplitZip<T> codec;
    codec.chunk = index_t{64} << random.below(8);
    codec.book = random_codebook<T>(random, widths[at(random.below(index_t(widths.size())))], random.below(2) == 0);
    if (random.below(4) == 0) {  // with a place for zero
      for (int c = 1; c < codec.book.size() && codec.book.exponents[0] != 0; ++c) {
        if (codec.book.exponents[c] > 0) codec.book.exponents[0] = 0;
      }
    }
    if (random.below(16) == 0) codec.book = {};
    // Rates around those where a chunk's exponents become raw, and whole chunks of either kind.
    const double rates[] = {0, 0.001, 0.03, 0.05, 0.17, 1};
    std::vector<T> x;
    const index_t n = random.below(5001);
    while (index_t(x.size()) < n) {
      const index_t run = std::min(n - index_t(x.size()), 1 + random.below(2000));
      const std::vector<T> more = mostly_coded<T>(random, run, codec.book, rates[random.below(6)]);
      x.insert(x.end(), more.begin(), more.end());
    }
    same_everywhere(codec, x);
    if (draw % 8 == 0) same_streamed(codec, x);
  }
}

TEST_CASE("SplitZip: all patterns of bf16") {
  all_patterns<bf16>();
}
TEST_CASE("SplitZip: all patterns of e5m2") {
  all_patterns<fp8_e5m2>();
}
TEST_CASE("SplitZip: all patterns of e4m3") {
  all_patterns<fp8_e4m3>();
}

TEST_CASE("SplitZip: random bf16, chunks and books") {
  random_inputs<bf16>(1, 250);
}
TEST_CASE("SplitZip: random e5m2, chunks and books") {
  random_inputs<fp8_e5m2>(2, 250);
}
TEST_CASE("SplitZip: random e4m3, chunks and books") {
  random_inputs<fp8_e4m3>(3, 250);
}

TEST_CASE("SplitZip: every length around a vector, a chunk and a group of chunks") {
  Random random{4};
  const SplitZip<bf16> codec{.chunk = 64};
  for (const index_t around : {64, 128, 1024, 64 * 64, 128 * 64}) {
    for (index_t n = around - 2; n <= around + 2; ++n) {
      same_everywhere(codec, mostly_coded<bf16>(random, n, codec.book, 0.01));
    }
  }
}

TEST_CASE("SplitZip: large results, which are streamed, have the same bytes") {
  Random random{8};
  const SplitZip<bf16> codec;
  std::vector<bf16> x = mostly_coded<bf16>(random, 200011, codec.book, 0.002);
  const std::vector<bf16> wild = mostly_coded<bf16>(random, 5000, codec.book, 1);
  std::copy(wild.begin(), wild.end(), x.begin() + 100000);
  same_streamed(codec, x);
  const SplitZip<fp8_e5m2> e5m2;
  same_streamed(e5m2, mostly_coded<fp8_e5m2>(random, 100003, e5m2.book, 0.002));
  const SplitZip<fp8_e4m3> e4m3{.chunk = 128};
  same_streamed(e4m3, mostly_coded<fp8_e4m3>(random, 100003, e4m3.book, 0.002));
  CHECK(decant::codec::detail::stream_from() >= 1 << 16);
}

TEST_CASE("SplitZip: any number of threads writes the same bytes and reads them", "[threads]") {
  Random random{5};
  const SplitZip<bf16> codec;
  std::vector<bf16> x = mostly_coded<bf16>(random, 800001, codec.book, 0.002);
  const std::vector<bf16> wild = mostly_coded<bf16>(random, 5000, codec.book, 1);
  std::copy(wild.begin(), wild.end(), x.begin() + 300000);
  decant::Cpu serial;
  const Bytes bytes = encoded(serial, codec, x);
  CHECK(bytes.size() < 2 * x.size());
  for (const int threads : {2, 5}) {
    decant::Cpu cpu(reversed_threads(threads));
    CHECK(encoded(cpu, codec, x) == bytes);
    CHECK(same_bits(decoded(cpu, codec, bytes, index_t(x.size())), x));
    std::vector<std::uint64_t> counts(256), serial_counts(256);
    histogram(cpu, codec, view(x), view(counts));
    histogram(serial, codec, view(x), view(serial_counts));
    CHECK(counts == serial_counts);
    CHECK(calibrate(cpu, codec, view(x)) == calibrate(serial, codec, view(x)));
  }
}

TEST_CASE("SplitZip: NaN payloads, signed zeros, subnormals and infinities keep their bits") {
  std::vector<bf16> x;
  for (const unsigned bits : {0x7fc1u, 0xffa5u, 0x7f81u, 0x8000u, 0x0000u, 0x0001u, 0x807fu, 0x7f80u, 0xff80u}) {
    x.insert(x.end(), 700, element<bf16>(bits));
  }
  decant::Cpu cpu;
  const SplitZip<bf16> codec = calibrate(cpu, SplitZip<bf16>{}, view(x));
  const Bytes bytes = encoded(cpu, codec, x);
  CHECK(bytes.size() < 2 * x.size());
  CHECK(same_bits(decoded(cpu, codec, bytes, index_t(x.size())), x));
}

TEST_CASE("SplitZip: decode_range gives what decode gives there", "[threads]") {
  Random random{6};
  for (const decant::Isa isa : paths()) {
    decant::Cpu cpu(reversed_threads(3));
    cpu.set_isa(isa);
    for (const SplitZip<bf16>& codec : {SplitZip<bf16>{.chunk = 64}, SplitZip<bf16>{.book = {}}, SplitZip<bf16>{}}) {
      std::vector<bf16> x = mostly_coded<bf16>(random, 300007, codec.book, 0.003);
      const std::vector<bf16> wild = mostly_coded<bf16>(random, 3000, codec.book, 1);
      std::copy(wild.begin(), wild.end(), x.begin() + 100000);
      const Bytes bytes = encoded(cpu, codec, x);
      const index_t n = index_t(x.size());
      for (int draw = 0; draw < 200; ++draw) {
        const index_t first = draw == 0 ? n : draw == 1 ? 0 : random.below(n);
        const index_t most = n - first;
        const index_t count = draw == 1 ? n : random.below(1 + (draw % 2 == 0 ? std::min<index_t>(most, 100) : most));
        std::vector<bf16> y(at(count), element<bf16>(1));
        decode_range(cpu, codec, bytes_of(bytes), first, view(y));
        REQUIRE((y.empty() || std::memcmp(y.data(), x.data() + first, y.size() * 2) == 0));
      }
      std::vector<bf16> y(10);
      CHECK_THROWS_AS(decode_range(cpu, codec, bytes_of(bytes), n - 9, view(y)), decant::ArgumentError);
      CHECK_THROWS_AS(decode_range(cpu, codec, bytes_of(bytes), -1, view(y)), decant::ArgumentError);
    }
  }
}

}  // namespace
