// Packed matrices on the device and what their products must be, for the tests of matmul.cuh.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "catch_compat.hpp"
#include "decant/quant/matmul.cuh"
#include "device_memory.cuh"
#include "unit/quant/quantized.hpp"

namespace quant_test {

using cuda_test::DeviceBuffer;
using cuda_test::Stream;
using quant::Activations;
using quant::Packed;

template <class F>
inline constexpr bool scaled = false;
template <class F>
inline constexpr bool scaled<quant::Scaled<F>> = true;

/// A matrix, on both sides. `shift`: bytes from an aligned address.
template <class F>
struct Problem {
  F format;
  index_t rows, cols;
  std::vector<std::byte> bytes;
  std::vector<float> values;  // as the CPU decodes them
  DeviceBuffer<std::byte> data;
  index_t shift;

  Problem(const F& f, index_t r, index_t c, index_t shifted = 0)
      : format(f),
        rows(r),
        cols(c),
        bytes(at(quant::packed_bytes(f, r, c))),
        values(at(r * c)),
        data(static_cast<index_t>(bytes.size()) + shifted),
        shift(shifted) {
    Matrix m(r, c);
    for (index_t i = 0; i < c / 2 && r > 4; ++i) m.w[at(4 * c + i)] = 0;  // groups of zeros
    const Packed<F, std::byte> packed(f, r, c, View<std::byte, 1>(bytes));
    decant::Cpu cpu;
    pack(cpu, m, packed);
    for (index_t i = 0; i < r; ++i)
      dequantize_row(cpu, Packed<F>(packed), i, View<float, 1>(values.data() + i * c, c));
    std::vector<std::byte> shifted_bytes(at(shift), std::byte{0x5a});
    shifted_bytes.insert(shifted_bytes.end(), bytes.begin(), bytes.end());
    data.upload(shifted_bytes);
  }

  /// What an input is multiplied by before it is rounded.
  float factor(index_t k) const { return scaled<F> ? scale(k) : 1.0f; }
  Packed<F> packed() const {
    return {format, rows, cols, View<const std::byte, 1>(data.data() + shift, static_cast<index_t>(bytes.size()))};
  }

 private:
  static float scale(index_t k) { return 0.25f + static_cast<float>(k % 7); }

  template <class G>
  static void pack(decant::Cpu& cpu, const Matrix& m, const Packed<G, std::byte>& to) {
    quantize(cpu, quant::Rtn<G>{to.format()}, m.view(), quant::Calibration{}, to);
  }
  template <class G>
  static void pack(decant::Cpu& cpu, const Matrix& m, const Packed<quant::Scaled<G>, std::byte>& to) {
    pack(cpu, m, to.inner());
    to.clear_padding();
    for (index_t k = 0; k < m.cols; ++k) to.set_inverse_scale(k, scale(k));
  }
};

inline std::vector<float> inputs(index_t n) {
  std::vector<float> x;
  for (index_t i = 0; i < n; ++i) x.push_back(static_cast<float>(gaussian(i, 9)));
  return x;
}

/// y on the device; x rows lie `stride` apart.
template <class F>
std::vector<float> product(decant::Cuda& cuda, const Problem<F>& p, const std::vector<float>& x, index_t tokens,
                           index_t stride, Activations activations) {
  const DeviceBuffer<float> device_x(x), device_y(tokens * p.rows);
  matmul(cuda, p.packed(), View<const float, 2>(device_x.data(), {tokens, p.cols}, {stride, 1}),
         device_y.view(tokens, p.rows), activations);
  cuda.check();
  return device_y.download();
}

/// Largest |y - exact| over what the bounds allow, over all elements.
template <class F>
double worst_error(const Problem<F>& p, const std::vector<float>& x, index_t tokens, index_t stride, Activations a,
                   const std::vector<float>& y) {
  double worst = 0;
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t r = 0; r < p.rows; ++r) {
      double exact = 0, magnitude = 0;
      for (index_t k = 0; k < p.cols; ++k) {
        const float in = x[at(t * stride + k)] * p.factor(k);
        const double rounded = static_cast<double>(a == Activations::bf16 ? static_cast<float>(decant::bf16(in)) : in);
        const double weight = static_cast<double>(p.values[at(r * p.cols + k)]) / static_cast<double>(p.factor(k));
        const double product = weight * rounded;
        exact += product;
        magnitude += std::abs(product);
      }
      const double bound =
          (quant::matmul_error_bound(p.cols) + quant::cuda_weight_error_bound(tokens, a)) * magnitude + 1e-30;
      worst = std::max(worst, std::abs(static_cast<double>(y[at(t * p.rows + r)]) - exact) / bound);
    }
  }
  return worst;
}

struct Shape {
  index_t tokens, rows, cols;
  index_t shift = 0;   // bytes of the matrix
  index_t apart = 0;   // floats between rows of x
  Activations activations = Activations::bf16;
};

template <class F>
void check_product(const F& format, const Shape& s) {
  CAPTURE(s.tokens, s.rows, s.cols, s.shift, s.apart, static_cast<int>(s.activations));
  const Problem<F> p(format, s.rows, s.cols, s.shift);
  const Stream stream;
  decant::Cuda cuda(stream);
  const index_t stride = s.cols + s.apart;
  const std::vector<float> x = inputs(s.tokens * stride);
  const std::vector<float> y = product(cuda, p, x, s.tokens, stride, s.activations);
  CHECK(worst_error(p, x, s.tokens, stride, s.activations, y) <= 1);
}

template <class F>
void check_rows(const F& format, index_t rows, index_t cols, index_t shift = 0) {
  CAPTURE(rows, cols, shift);
  const Problem<F> p(format, rows, cols, shift);
  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<float> all(rows * cols), last(cols);
  dequantize(cuda, p.packed(), all.view(rows, cols));
  dequantize_row(cuda, p.packed(), rows - 1, last.view(cols));
  cuda.check();
  const auto same = [](const std::vector<float>& a, const float* b) {
    return std::memcmp(a.data(), b, 4 * a.size()) == 0;
  };
  CHECK(same(all.download(), p.values.data()));
  CHECK(same(last.download(), p.values.data() + (rows - 1) * cols));
}

/// Every kernel of a format: one token, up to four, each number of tiles; short, odd and whole rows.
template <class F>
void check_format(const F& format, index_t multiple = 1) {
  const auto cols = [&](index_t n) { return (n + multiple - 1) / multiple * multiple; };
  check_product(format, {1, 17, cols(352)});
  check_product(format, {1, 2, cols(1)});
  check_product(format, {3, 3, cols(129), 0, 4});
  check_product(format, {5, 17, cols(352)});
  check_product(format, {8, 1, cols(15)});
  check_product(format, {17, 33, cols(127), 0, 1});
  check_rows(format, 17, cols(352));
  check_rows(format, 2, cols(127));
  check_rows(format, 2, cols(15), 1);
}

}  // namespace quant_test
