// Calls of the codecs on CUDA: odd addresses, ranges, counts and calibration, capture and replay, what is refused.
#include "catch_compat.hpp"
#include "fixtures.cuh"
#include "graph.cuh"

namespace {

using namespace cuda_test;
using decant::bf16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;

struct Context {
  Stream stream;
  decant::Cuda cuda{stream};
};

template <class T>
void check_offsets(codec::SplitZip<T> c) {
  Context context;
  c.chunk = 128;
  const index_t n = 128 * 30 + 77;
  const auto x = mixed_elements<T>(n, first_of(c), c.book.size() - 1u, 900, 5);
  const Bytes expected = encoded_on_cpu(c, x);
  for (const index_t offset : {1, 2, 4, 8}) {
    CAPTURE(offset);
    CHECK(encoded_on_device(context.cuda, c, x, offset, 0) == expected);
    CHECK(encoded_on_device(context.cuda, c, x, 0, offset) == expected);
    CHECK(same_bits(decoded_on_device(context.cuda, c, expected, 0, n, false, offset, 0), x));
    CHECK(same_bits(decoded_on_device(context.cuda, c, expected, 0, n, false, 0, offset), x));
  }
}

TEST_CASE("addresses need no alignment") {
  check_offsets<bf16>({});
  check_offsets<bf16>({.book = codec::window_codebook(3, 120)});
  check_offsets<fp8_e5m2>({});
  check_offsets<fp8_e4m3>({});
}

TEST_CASE("ranges are those elements, wherever they begin and end") {
  Context context;
  const codec::SplitZip<bf16> c{.chunk = 64};
  const index_t group = 64 * 64, n = 2 * group + 333;
  const auto x = mixed_elements<bf16>(n, first_of(c), 15, 700, 6);
  const Bytes coded = encoded_on_cpu(c, x);
  const Bytes raw = encoded_on_cpu(codec::SplitZip<bf16>{.chunk = 64, .book = {}}, x);
  REQUIRE(coded.size() < raw.size());
  const auto check = [&](index_t first, index_t count) {
    CAPTURE(first, count);
    const std::vector<bf16> expected(x.begin() + first, x.begin() + first + count);
    CHECK(same_bits(decoded_on_device(context.cuda, c, coded, first, count, true, 0, first % 3), expected));
    CHECK(same_bits(decoded_on_device(context.cuda, c, raw, first, count, true), expected));
  };
  for (const index_t first :
       {index_t{0}, index_t{1}, index_t{63}, index_t{64}, 5 * index_t{64} + 8, group - 1, group, n - 40}) {
    for (const index_t count : {0, 1, 8, 64, 700}) {
      if (first + count <= n) check(first, count);
    }
    check(first, n - first);
  }
  CHECK_THROWS_AS(decoded_on_device(context.cuda, c, coded, n - 5, 6, true), decant::ArgumentError);
  CHECK_THROWS_AS(decoded_on_device(context.cuda, c, coded, -1, 6, true), decant::ArgumentError);
  CHECK_THROWS_AS(decoded_on_device(context.cuda, c, Bytes(40), 0, 6, true), decant::FormatError);
}

TEST_CASE("what follows a payload is ignored; another codec's payload is refused") {
  Context context;
  const codec::SplitZip<bf16> c{.chunk = 256};
  const auto x = mixed_elements<bf16>(3000, first_of(c), 15, 500, 7);
  Bytes payload = encoded_on_cpu(c, x);
  codec::SplitZip<bf16> other = c;
  other.chunk = 512;
  CHECK_THROWS_AS(decoded_on_device(context.cuda, other, payload, 0, 3000, false), decant::FormatError);
  for (const codec::Codebook& book :
       {codec::Codebook{}, codec::window_codebook(3, 114), codec::window_codebook(4, 113)}) {
    other = c;
    other.book = book;
    CHECK_THROWS_AS(decoded_on_device(context.cuda, other, payload, 0, 3000, false), decant::FormatError);
  }
  CHECK_THROWS_AS(decoded_on_device(context.cuda, c, payload, 0, 2999, false), decant::FormatError);
  payload.insert(payload.end(), 77, std::byte{0xcd});
  CHECK(same_bits(decoded_on_device(context.cuda, c, payload, 0, 3000, false), x));
}

template <class T>
void check_counts(index_t n, index_t stride) {
  Context context;
  decant::Cpu cpu;
  const auto x = mixed_elements<T>(n * stride + 1, 3, 9, 4000, 8);
  const DeviceBuffer<T> device_x(x);
  const View<const T, 1> host(x.data() + 1, {n}, {stride}), device(device_x.data() + 1, {n}, {stride});
  const index_t exponents = codec::detail::exponent_count<T>;
  std::vector<std::uint64_t> expected(static_cast<std::size_t>(exponents));
  const DeviceBuffer<std::uint64_t> counts(exponents);
  for (const bool zero : {false, true}) {
    const codec::SplitZip<T> c{.reserve_zero = zero};
    histogram(cpu, c, host, View<std::uint64_t, 1>(expected));
    histogram(context.cuda, c, device, counts.view(exponents));
    CHECK(counts.download() == expected);
    CHECK(calibrate(context.cuda, c, device) == calibrate(cpu, c, host));
  }
}

TEST_CASE("counts and calibration are the CPU's") {
  check_counts<bf16>(40000, 1);
  check_counts<bf16>(3001, 3);
  check_counts<fp8_e5m2>(5000, 1);
  check_counts<fp8_e4m3>(20011, 1);
  check_counts<fp8_e4m3>(0, 1);
}

TEST_CASE("a second call allocates nothing, and a captured one codes what is there when it is replayed") {
  Context context;
  const codec::SplitZip<bf16> c;
  const index_t n = 9000, room = max_encoded_size(c, n);
  const auto calm = elements<bf16>(n, first_of(c), 16, 0.001, 9);
  const auto wild = elements<bf16>(n, first_of(c), 16, 1, 10);  // a raw payload
  DeviceBuffer<bf16> x(calm);
  const DeviceBuffer<bf16> y(n);
  const DeviceBuffer<std::byte> out(room);
  const DeviceBuffer<index_t> size(1);
  const auto call = [&] {
    encode(context.cuda, c, View<const bf16, 1>(x.data(), n), out.view(room), size.data());
    decode(context.cuda, c, View<const std::byte, 1>(out.data(), room), y.view(n));
  };
  call();
  context.cuda.check();
  const std::size_t high_water = context.cuda.workspace().high_water();
  const Graph graph(context.stream, call);
  for (const auto& now : {wild, calm, mixed_elements<bf16>(n, first_of(c), 16, 1500, 11)}) {
    x.upload(now);
    graph.launch(context.stream);
    context.cuda.check();
    CHECK(same_bits(y.download(), now));
    const Bytes expected = encoded_on_cpu(c, now);
    Bytes got = out.download();
    CHECK(size.download()[0] == static_cast<index_t>(expected.size()));
    got.resize(expected.size());
    CHECK(got == expected);
  }
  CHECK(context.cuda.workspace().high_water() == high_water);
}

TEST_CASE("after a fault, nothing is written until check() has told it") {
  Context context;
  const codec::SplitZip<bf16> c;
  const auto x = elements<bf16>(3000, first_of(c), 16, 0.01, 12);
  const Bytes payload = encoded_on_cpu(c, x);
  const index_t room = max_encoded_size(c, 3000);
  const DeviceBuffer<std::byte> bad(Bytes(payload.size())), good(payload), out(Bytes(static_cast<std::size_t>(room)));
  const DeviceBuffer<bf16> y(std::vector<bf16>(3000, bf16(7.0f))), device_x(x);
  const DeviceBuffer<index_t> size(std::vector<index_t>{-3});
  const auto bytes = static_cast<index_t>(payload.size());
  decode(context.cuda, c, View<const std::byte, 1>(bad.data(), bytes), y.view(3000));
  decode(context.cuda, c, View<const std::byte, 1>(good.data(), bytes), y.view(3000));
  encode(context.cuda, c, View<const bf16, 1>(device_x.data(), 3000), out.view(room), size.data());
  encode(context.cuda, codec::SplitZip<bf16>{.book = {}}, View<const bf16, 1>(device_x.data(), 3000), out.view(room),
         size.data());
  encode(context.cuda, codec::Stored<bf16>{}, View<const bf16, 1>(device_x.data(), 3000), out.view(room), size.data());
  decode(context.cuda, codec::Stored<bf16>{}, View<const std::byte, 1>(good.data(), 20), y.view(10));
  CHECK_THROWS_AS(context.cuda.check(), decant::FormatError);
  CHECK(same_bits(y.download(), std::vector<bf16>(3000, bf16(7.0f))));
  CHECK(out.download() == Bytes(static_cast<std::size_t>(room)));
  CHECK(size.download()[0] == -3);
  decode(context.cuda, c, View<const std::byte, 1>(good.data(), bytes), y.view(3000));
  context.cuda.check();
  CHECK(same_bits(y.download(), x));
}

TEST_CASE("what the host can see is refused at once") {
  Context context;
  const codec::SplitZip<bf16> c;
  const DeviceBuffer<bf16> x(std::vector<bf16>(100, bf16(1.0f)));
  const DeviceBuffer<std::byte> out(1000);
  const DeviceBuffer<index_t> size(1);
  const index_t room = max_encoded_size(c, 100);
  CHECK_THROWS_AS(encode(context.cuda, c, View<const bf16, 1>(x.data(), 100), out.view(room - 1), size.data()),
                  decant::ArgumentError);
  CHECK_THROWS_AS(encode(context.cuda, c, View<const bf16, 1>(x.data(), {50}, {2}), out.view(room), size.data()),
                  decant::ArgumentError);
  CHECK_THROWS_AS(decode(context.cuda, c, View<const std::byte, 1>(out.data(), 63), x.view(100)), decant::FormatError);
  CHECK_THROWS_AS(
      decode(context.cuda, c, View<const std::byte, 1>(out.data(), 1000), View<bf16, 1>(x.data(), {50}, {2})),
      decant::ArgumentError);
  CHECK_THROWS_AS(histogram(context.cuda, c, View<const bf16, 1>(x.data(), 100), View<std::uint64_t, 1>{}),
                  decant::ArgumentError);
  CHECK_THROWS_AS(encode(context.cuda, codec::SplitZip<bf16>{.chunk = 100}, View<const bf16, 1>(x.data(), 100),
                         out.view(1000), size.data()),
                  decant::ArgumentError);
  for (const index_t bytes : {199, 201}) {
    CHECK_THROWS_AS(
        decode(context.cuda, codec::Stored<bf16>{}, View<const std::byte, 1>(out.data(), bytes), x.view(100)),
        decant::FormatError);
  }
}

TEST_CASE("Stored copies") {
  Context context;
  const codec::Stored<float> c;
  for (const index_t n : {0, 1, 5, 4000, 70001}) {
    for (const index_t offset : {0, 1}) {
      std::vector<float> x(static_cast<std::size_t>(n + offset));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
      const DeviceBuffer<float> device_x(x), y(n);
      const DeviceBuffer<std::byte> out(4 * n + 8);
      const DeviceBuffer<index_t> size(1);
      encode(context.cuda, c, View<const float, 1>(device_x.data() + offset, n), out.view(4 * n + 8), size.data());
      decode(context.cuda, c, View<const std::byte, 1>(out.data(), 4 * n), y.view(n));
      context.cuda.check();
      CHECK(size.download()[0] == 4 * n);
      CHECK(y.download() == std::vector<float>(x.begin() + offset, x.end()));
    }
  }
}

}  // namespace
