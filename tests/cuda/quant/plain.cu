// quant::Plain on CUDA against sums in double, for every element type, odd shapes and unaligned rows.
#include "decant/quant/plain.cuh"

#include <cmath>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "device_memory.cuh"

namespace {

using namespace cuda_test;
using decant::View;
namespace quant = decant::quant;

template <class T>
std::vector<T> values(index_t n, std::uint64_t seed) {
  std::vector<T> v;
  for (index_t i = 0; i < n; ++i)
    v.push_back(static_cast<T>(2 * decant::Philox{seed}.uniform(static_cast<std::uint32_t>(i)) - 1));
  return v;
}

/// Largest |got - exact| over sum |w x|, over all outputs. stride: of the weight rows, at least cols.
template <class T>
double worst_error(index_t tokens, index_t rows, index_t cols, index_t stride) {
  const auto w = values<T>(rows * stride, 1);
  const auto x = values<float>(tokens * cols, 2);
  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<T> device_w(w);
  const DeviceBuffer<float> device_x(x);
  const DeviceBuffer<float> device_y(tokens * rows);
  const quant::Plain<T> plain{View<const T, 2>(device_w.data(), {rows, cols}, {stride, 1})};
  matmul(cuda, plain, View<const float, 2>(device_x.data(), tokens, cols), device_y.view(tokens, rows));
  const auto y = device_y.download();
  double worst = 0;
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t r = 0; r < rows; ++r) {
      double exact = 0, size = 1e-30;
      for (index_t c = 0; c < cols; ++c) {
        const double product = static_cast<double>(static_cast<float>(w[static_cast<std::size_t>(r * stride + c)])) *
                               static_cast<double>(x[static_cast<std::size_t>(t * cols + c)]);
        exact += product;
        size += std::abs(product);
      }
      worst = std::max(worst, std::abs(static_cast<double>(y[static_cast<std::size_t>(t * rows + r)]) - exact) / size);
    }
  }
  return worst;
}

template <class T>
void check_shapes() {
  for (const auto& [tokens, rows, cols, stride] :
       {std::array<index_t, 4>{1, 1, 1, 1}, {1, 9, 32, 32}, {3, 17, 200, 200}, {8, 8, 256, 264}, {9, 5, 33, 35}, {20, 3, 7, 8}}) {
    CAPTURE(tokens, rows, cols, stride);
    CHECK(worst_error<T>(tokens, rows, cols, stride) < 1e-6);
  }
}

TEST_CASE("matmul is within rounding of the exact product") {
  check_shapes<float>();
  check_shapes<decant::bf16>();
  check_shapes<decant::fp16>();
}

TEST_CASE("a row of y does not depend on the other rows of x") {
  const index_t rows = 13, cols = 96;
  const auto w = values<decant::bf16>(rows * cols, 3);
  const auto x = values<float>(11 * cols, 4);
  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<decant::bf16> device_w(w);
  const DeviceBuffer<float> device_x(x), all(11 * rows), one(rows);
  const quant::Plain<decant::bf16> plain{View<const decant::bf16, 2>(device_w.data(), rows, cols)};
  matmul(cuda, plain, View<const float, 2>(device_x.data(), 11, cols), all.view(11, rows));
  matvec(cuda, plain, View<const float, 1>(device_x.data() + 10 * cols, cols), one.view(rows));
  const auto together = all.download(), alone = one.download();
  for (index_t r = 0; r < rows; ++r)
    CHECK(together[static_cast<std::size_t>(10 * rows + r)] == alone[static_cast<std::size_t>(r)]);
}

TEST_CASE("rows come back as floats, and what does not fit is refused") {
  const auto w = values<decant::fp16>(6, 5);
  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<decant::fp16> device_w(w);
  const DeviceBuffer<float> row(3);
  const quant::Plain<decant::fp16> plain{View<const decant::fp16, 2>(device_w.data(), 2, 3)};
  dequantize_row(cuda, plain, 1, row.view(3));
  const auto got = row.download();
  for (index_t c = 0; c < 3; ++c)
    CHECK(got[static_cast<std::size_t>(c)] == static_cast<float>(w[static_cast<std::size_t>(3 + c)]));
  CHECK_THROWS_AS(dequantize_row(cuda, plain, 2, row.view(3)), decant::ArgumentError);
  CHECK_THROWS_AS(matmul(cuda, plain, View<const float, 2>(row.data(), 1, 2), row.view(1, 2)), decant::ArgumentError);
}

}  // namespace
