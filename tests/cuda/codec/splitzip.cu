// codec::SplitZip on CUDA against the CPU: the same payloads byte for byte, and the elements back.
#include "decant/codec/splitzip.cuh"

#include "catch_compat.hpp"
#include "fixtures.cuh"
#include "graph.cuh"

namespace {

using namespace cuda_test;
using decant::bf16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;

template <class T>
codec::SplitZip<T> windowed(int code_bits, unsigned first, index_t chunk = 1024) {
  return {.chunk = chunk, .book = codec::window_codebook(code_bits, first)};
}

/// Exponent 0 and a window.
template <class T>
codec::SplitZip<T> with_zero(int code_bits, unsigned first, index_t chunk = 1024) {
  codec::SplitZip<T> c = windowed<T>(code_bits, first, chunk);
  c.book.exponents[0] = 0;
  return c;
}

template <class T>
void check_both_ways(decant::Cuda& cuda, const codec::SplitZip<T>& c, const std::vector<T>& x, index_t offset = 0) {
  CAPTURE(x.size(), c.chunk, int{c.book.code_bits}, offset);
  const Bytes expected = encoded_on_cpu(c, x);
  const Bytes got = encoded_on_device(cuda, c, x, offset, offset);
  CHECK(got == expected);
  const auto n = static_cast<index_t>(x.size());
  CHECK(same_bits(decoded_on_device(cuda, c, expected, 0, n, false, offset, offset), x));
}

template <class T>
void check_codec(decant::Cuda& cuda, codec::SplitZip<T> c) {
  const unsigned window = c.book.code_bits == 0 ? 4u : c.book.size() - 1u;
  for (const index_t chunk : {64, 1024, 8192}) {
    c.chunk = chunk;
    for (const index_t n : {0, 1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 130, 511, 520, 1024, 1025, 2500, 5003}) {
      check_both_ways(cuda, c, mixed_elements<T>(n, first_of(c), window, 1100, static_cast<unsigned>(n)));
    }
  }
}

TEST_CASE("bf16 payloads are the CPU's") {
  const Stream stream;
  decant::Cuda cuda(stream);
  check_codec<bf16>(cuda, {});
  check_codec(cuda, with_zero<bf16>(4, 110));
  check_codec(cuda, windowed<bf16>(3, 120));
  check_codec(cuda, with_zero<bf16>(3, 248));
}

TEST_CASE("fp8 payloads are the CPU's") {
  const Stream stream;
  decant::Cuda cuda(stream);
  check_codec<fp8_e5m2>(cuda, {});
  check_codec(cuda, with_zero<fp8_e5m2>(4, 9));
  check_codec(cuda, windowed<fp8_e5m2>(3, 24));
  check_codec<fp8_e4m3>(cuda, {});
  check_codec(cuda, with_zero<fp8_e4m3>(3, 8));
}

TEST_CASE("payloads of more tiles than threads that add them up are the CPU's") {
  const Stream stream;
  decant::Cuda cuda(stream);
  const codec::SplitZip<bf16> c{.chunk = 64};
  check_both_ways(cuda, c, mixed_elements<bf16>(64 * 8 * 1025 + 70, first_of(c), 15, 40000, 13));
}

}  // namespace
