// Aaac on CUDA: the bytes of the CPU's, whose laws the unit tests check, in both modes, for every start, and for odd
// matrices; what it refuses; calls in a graph.
#include "decant/quant/aaac.cuh"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "catch_compat.hpp"
#include "device_memory.cuh"
#include "graph.cuh"
#include "unit/quant/quantized.hpp"

namespace {

using namespace cuda_test;
using decant::View;
using decant::fp16;
using decant::fp8_e4m3;
using quant_test::Matrix;
using quant_test::Quantized;
namespace quant = decant::quant;
using quant::Aaac;
using quant::AaacMode;
using quant::AaacRefit;
using quant::AaacStarts;

std::vector<float> importance_of(index_t cols) {
  std::vector<float> importance;
  for (index_t k = 0; k < cols; ++k) importance.push_back(static_cast<float>(std::exp(quant_test::gaussian(k, 7))));
  return importance;
}

/// What the device makes of a matrix whose rows are `stride` apart.
template <class Q>
std::vector<std::byte> on_device(const Q& q, const Matrix& m, const std::vector<float>& importance, index_t stride) {
  using F = typename Q::Format;
  std::vector<float> rows(static_cast<std::size_t>(m.rows * stride), 1e30f);
  for (index_t i = 0; i < m.rows * m.cols; ++i)
    rows[static_cast<std::size_t>(i / m.cols * stride + i % m.cols)] = m.w[static_cast<std::size_t>(i)];
  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<float> w(rows), weights(importance);
  const index_t bytes = packed_bytes(q.format(), m.rows, m.cols);
  const DeviceBuffer<std::byte> out(std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0xa5}));
  quant::Calibration c;
  if (!importance.empty()) c.importance = weights.view(m.cols);
  quantize(cuda, q, View<const float, 2>(w.data(), {m.rows, m.cols}, {stride, 1}), c,
           quant::Packed<F, std::byte>(q.format(), m.rows, m.cols, out.view(bytes)));
  cuda.check();
  return out.download();
}

template <class Q>
void check(const Q& q, const Matrix& m, const std::vector<float>& importance, index_t more_stride = 0) {
  CAPTURE(m.rows, m.cols, q.group, q.select, static_cast<int>(q.mode), q.passes);
  decant::Cpu cpu;
  Quantized<typename Q::Format> expected(q.format(), m.rows, m.cols);
  quant::Calibration c;
  c.importance = View<const float, 1>(importance);
  quantize(cpu, q, m.view(), c, expected.packed());
  const std::vector<std::byte> got = on_device(q, m, importance, m.cols + more_stride);
  CHECK((got == expected.bytes));
}

template <class Scale>
Aaac<Scale> paper(int outer, int inner) {
  Aaac<Scale> q;
  q.mode = AaacMode::paper;
  q.outer = outer;
  q.inner = inner;
  return q;
}

/// Groups of zeros, an outlier, and rows of different scales.
Matrix mixed(index_t rows, index_t cols, std::uint32_t stream) {
  return Matrix(rows, cols, [&](index_t i) {
    const index_t r = i / cols, k = i % cols;
    if (r == 1 && k < 40) return k % 3 == 0 ? -0.0 : 0.0;
    return std::ldexp(quant_test::gaussian(i, stream), static_cast<int>(r % 4) - 2) * (k == 7 ? 6 : 1);
  });
}

TEST_CASE("Mode paper gives the CPU's bytes") {
  check(paper<fp16>(0, 0), mixed(3, 128, 1), importance_of(128));
  check(paper<fp16>(2, 3), mixed(70, 256, 2), importance_of(256));  // three chunks
  check(paper<fp16>(1, 2), mixed(5, 129, 3), {}, 3);
  check(paper<fp8_e4m3>(2, 2), mixed(6, 100, 4), importance_of(100));
  Aaac<> q = paper<fp16>(2, 2);
  q.select = 16;
  check(q, mixed(6, 300, 5), importance_of(300));
  q.group = 24;
  q.select = 4;
  q.entries = 9;
  check(q, mixed(4, 77, 6), importance_of(77));
}

TEST_CASE("Each start of mode best_of gives the CPU's bytes") {
  for (int which = 0; which < 4; ++which) {
    Aaac<> q;
    q.passes = 3;
    q.starts = {which == 0, which == 1, which == 2, which == 3};
    for (const AaacRefit refit : {AaacRefit::no, AaacRefit::yes}) {
      q.refit = refit;
      check(q, mixed(4, 256, 8), importance_of(256));
    }
    q.select = 16;
    check(q, mixed(3, 145, 9), importance_of(145), 1);
  }
}

TEST_CASE("Mode best_of of all starts gives the CPU's bytes") {
  Aaac<> q;
  q.passes = 4;
  check(q, mixed(8, 256, 10), importance_of(256));
  Aaac<fp8_e4m3> small;
  small.passes = 2;
  check(small, mixed(5, 130, 11), importance_of(130));
  small.entries = 15;
  check(small, mixed(4, 64, 12), {});
}

TEST_CASE("Matrices of nothing, of two values, and of a table that nothing chooses") {
  Aaac<> q;
  q.passes = 3;
  check(q, Matrix(2, 128, [](index_t) { return 0.0; }), {});
  check(q, Matrix(2, 128, [](index_t i) { return i % 3 == 0 ? 0.5 : -0.5; }), {});
  check(paper<fp16>(2, 2), Matrix(2, 128, [](index_t) { return 0.0; }), {});
  q.starts = {false, false, true, false};
  // No group whose largest weight is negative; and groups that are all better off with integers.
  check(q, Matrix(4, 128, [](index_t i) { return quant_test::uniform(i, 13); }), {});
  q.starts = {false, false, false, true};
  check(q, Matrix(24, 128, [](index_t i) { return 2 * quant_test::uniform(i, 14) - 1; }), importance_of(128));
}

TEST_CASE("Starts are compared on some rows, and the best one fitted to more, as on the CPU") {
  Aaac<> q;
  q.passes = 3;
  q.starts = {true, false, false, false};
  q.sample = 1024;
  q.most = 3000;
  for (const std::uint32_t stream : {1u, 12u})  // with refitted scales, and without
    check(q, Matrix(16, 256, stream), importance_of(256));
}

TEST_CASE("What Aaac refuses on CUDA, an empty matrix, a graph, and no allocation the second time") {
  const Stream stream;
  decant::Cuda cuda(stream);
  Aaac<> q;
  q.passes = 1;
  q.starts = {true, false, false, false};
  const Matrix m(3, 128);
  const DeviceBuffer<float> w(m.w), importance(importance_of(128));
  const index_t bytes = packed_bytes(q.format(), 3, 128);
  const std::vector<std::byte> before(static_cast<std::size_t>(bytes), std::byte{0xa5});
  DeviceBuffer<std::byte> out(before);
  const quant::Packed<quant::Codebook2x16<>, std::byte> packed(q.format(), 3, 128, out.view(bytes));
  quant::Calibration c;
  c.importance = importance.view(128);
  const auto run = [&](const View<const float, 2>& of) { quantize(cuda, q, of, c, packed); };
  CHECK_THROWS_AS(run(View<const float, 2>(w.data(), 2, 128)), decant::ArgumentError);
  CHECK_THROWS_AS(run(View<const float, 2>(w.data(), {3, 128}, {1, 3})), decant::ArgumentError);

  Matrix bad = m;
  bad.w[200] = std::numeric_limits<float>::quiet_NaN();
  const DeviceBuffer<float> bad_w(bad.w);
  run(View<const float, 2>(bad_w.data(), 3, 128));
  CHECK_THROWS_WITH(cuda.check(), catch_compat::contains("finite weights"));
  CHECK((out.download() == before));
  std::vector<float> negative = importance_of(128);
  negative[3] = -1;
  const DeviceBuffer<float> bad_importance(negative);
  c.importance = bad_importance.view(128);
  run(w.view(3, 128));
  CHECK_THROWS_AS(cuda.check(), decant::ArgumentError);
  CHECK((out.download() == before));
  c.importance = importance.view(128);

  run(w.view(3, 128));
  const auto first = out.download();
  const std::size_t high = cuda.workspace().high_water();
  out.upload(before);
  const Graph graph(stream, [&] { run(w.view(3, 128)); });
  graph.launch(stream);
  CHECK((out.download() == first));
  CHECK(cuda.workspace().high_water() == high);

  const DeviceBuffer<std::byte> none(64);
  quantize(cuda, q, View<const float, 2>(nullptr, 0, 128), {},
           quant::Packed<quant::Codebook2x16<>, std::byte>(q.format(), 0, 128, none.view(64)));
  cuda.check();
}

}  // namespace
