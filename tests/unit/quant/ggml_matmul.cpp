// Products with quant::ggml's blocks against double precision, on every instruction set and for all activations: tails,
// tokens, threads, bytes as they come.
#include <cmath>
#include <cstdint>
#include <vector>

#include <decant/quant/ggml_blocks.hpp>
#include <decant/quant/ggml_fp4_blocks.hpp>
#include <decant/quant/ggml_k_blocks.hpp>
#include <decant/quant/matmul.hpp>

#include "catch_compat.hpp"
#include "threads.hpp"
#include "unit/quant/matmul_problem.hpp"

namespace quant_ggml_matmul_test {

using namespace quant_test;
using decant::Isa;
using quant::Activations;
namespace ggml = quant::ggml;

/// What a product takes for x: int8 in blocks of 32.
std::vector<float> rounded(const std::vector<float>& x, Activations a) {
  std::vector<float> to(x);
  if (a == Activations::bf16)
    for (float& v : to) v = decant::bf16(v);
  if (a != Activations::int8) return to;
  for (std::size_t k = 0; k < to.size(); k += 32) {
    float top = 0;
    for (std::size_t i = 0; i < 32; ++i) top = std::max(top, std::abs(x[k + i]));
    const float scale = top / 127;
    for (std::size_t i = 0; i < 32; ++i)
      to[k + i] = scale > 0 ? scale * static_cast<float>(std::lrint(x[k + i] * (1 / scale))) : 0.0f;
  }
  return to;
}

/// Activations with an outlier here and there, and a block of zeros.
std::vector<float> inputs(index_t tokens, index_t cols) {
  std::vector<float> x(at(tokens * cols));
  for (index_t i = 0; i < tokens * cols; ++i)
    x[at(i)] = i % 97 == 3 ? 30.0f : i / 32 % 5 == 2 ? 0.0f : static_cast<float>(gaussian(i, 9));
  return x;
}

template <class F>
void check(const Quantized<F>& q, index_t tokens) {
  const std::vector<float> x = inputs(tokens, q.cols);
  const std::vector<float> w = q.values();
  for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
    for (const Activations a : {Activations::bf16, Activations::fp32, Activations::int8}) {
      Cpu cpu;
      cpu.set_isa(static_cast<Isa>(isa));
      const std::vector<float> y = product(cpu, q, x, tokens, a);
      for (index_t t = 0; t < tokens; ++t) {
        const std::vector<float> token(x.begin() + t * q.cols, x.begin() + (t + 1) * q.cols);
        const std::vector<float> taken = rounded(token, a);
        const std::vector<float> alone = product(cpu, q, token, 1, a);
        for (index_t r = 0; r < q.rows; ++r) {
          double exact = 0, size = 0;
          for (index_t k = 0; k < q.cols; ++k) {
            const auto group = q.group(r, k / q.format.block_size);
            const double value = w[at(r * q.cols + k)];
            // Of the types with a minimum, which is what code 0 means.
            const bool minimum = std::is_same_v<F, ggml::Q4_1> || std::is_same_v<F, ggml::Q4_K>;
            const double least = minimum ? q.format.value({}, group, k % q.format.block_size, 0) : 0.0;
            exact += value * taken[at(k)];
            size += (std::abs(value - least) + std::abs(least)) * std::abs(taken[at(k)]);
          }
          INFO(name(static_cast<Isa>(isa)) << " " << name(a) << " rows " << q.rows << " cols " << q.cols << " row " << r
                                           << " token " << t << " of " << tokens);
          const float got = y[at(t * q.rows + r)];
          REQUIRE(std::abs(got - exact) <= quant::matmul_error_bound(q.cols) * size);
          // The other tokens have no say, to the bit.
          REQUIRE(got == alone[at(r)]);
        }
      }
    }
  }
}

template <class F>
void check_shapes(const F& format, index_t tail) {
  check(Quantized<F>(format, Matrix(5, tail)), 1);
  check(Quantized<F>(format, Matrix(3, format.block_size * 4 + tail)), 6);
  check(Quantized<F>(format, Matrix(2, format.block_size * 4)), 4);
  // Rows of large and small weights.
  const Matrix uneven(3, 768, [](index_t i) { return gaussian(i, 3) * std::pow(10.0, i / 32 % 5 - 2); });
  check(Quantized<F>(format, uneven), 2);
}

TEST_CASE("ggml blocks: products match double precision on every path", "[quant][ggml]") {
  check_shapes(ggml::Q8_0{}, 32);
  check_shapes(ggml::Q4_0{}, 96);
  check_shapes(ggml::Q4_1{}, 64);
  check_shapes(ggml::IQ4_NL{}, 32);
  check_shapes(ggml::MXFP4{}, 96);
  check_shapes(ggml::NVFP4{}, 64);
  check_shapes(ggml::Q4_K{}, 256);
  check_shapes(ggml::Q6_K{}, 256);
}

/// All codes and all finite scales: random bytes whose scales are made moderate.
template <class F>
void check_bytes(const F& format, const std::vector<index_t>& high_bytes) {
  Quantized<F> q(format, 3, 512);
  for (std::size_t i = 0; i < q.bytes.size(); ++i)
    q.bytes[i] = static_cast<std::byte>(static_cast<int>(256 * uniform(static_cast<index_t>(i), 4)) & 255);
  for (std::size_t b = 0; b < q.bytes.size(); b += at(format.block_bytes))
    for (const index_t high : high_bytes) q.bytes[b + at(high)] &= std::byte{0xbb};
  check(q, 1);
}

TEST_CASE("ggml blocks: products with any bytes", "[quant][ggml]") {
  // fp16 with an exponent bit cleared is neither infinite nor NaN.
  check_bytes(ggml::Q8_0{}, {1});
  check_bytes(ggml::Q4_0{}, {1});
  check_bytes(ggml::Q4_1{}, {1, 3});
  check_bytes(ggml::IQ4_NL{}, {1});
  check_bytes(ggml::NVFP4{}, {});
  check_bytes(ggml::Q4_K{}, {1, 3});
  check_bytes(ggml::Q6_K{}, {209});
}

TEST_CASE("ggml blocks: subnormal scales of MXFP4 and unusual ones of NVFP4", "[quant][ggml]") {
  Quantized<ggml::MXFP4> small(ggml::MXFP4{}, 1, 128);
  for (std::size_t i = 0; i < small.bytes.size(); ++i) small.bytes[i] = static_cast<std::byte>(37 * i);
  for (std::size_t b = 0; b < 4; ++b) small.bytes[17 * b] = static_cast<std::byte>(b);  // e = 0 ... 3
  Quantized<ggml::NVFP4> strange(ggml::NVFP4{}, 1, 128);
  const int scales[] = {0x7f, 0xff, 0x80, 0x01, 0x7e, 0x08, 0x07, 0x85};
  for (std::size_t i = 0; i < 8; ++i) strange.bytes[i / 4 * 36 + i % 4] = static_cast<std::byte>(scales[i]);
  for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
    Cpu cpu;
    cpu.set_isa(static_cast<Isa>(isa));
    // One column at a time: each weight comes back as it is, up to a power of two.
    for (index_t k = 0; k < 128; ++k) {
      std::vector<float> x(128, 0.0f);
      x[at(k)] = 0x1p100f;
      CHECK(product(cpu, small, x, 1, Activations::fp32)[0] == small.values()[at(k)] * 0x1p100f);
      x[at(k)] = 0.5f;
      CHECK(product(cpu, strange, x, 1, Activations::fp32)[0] == strange.values()[at(k)] * 0.5f);
    }
  }
}

template <class F>
void check_threads(const F& format) {
  const Quantized<F> q(format, Matrix(70, 256));
  const std::vector<float> x = inputs(5, 256);
  for (const Activations a : {Activations::bf16, Activations::int8}) {
    Cpu one;
    const std::vector<float> y = product(one, q, x, 5, a);
    for (const int threads : {2, 7}) {
      Cpu many(real_threads(threads));
      REQUIRE(product(many, q, x, 5, a) == y);
    }
  }
}

TEST_CASE("ggml blocks: products are the same on any number of threads", "[quant][ggml][threads]") {
  check_threads(ggml::Q4_0{});
  check_threads(ggml::Q4_K{});
}

}  // namespace quant_ggml_matmul_test
