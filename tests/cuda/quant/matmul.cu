// Products with packed weights on CUDA against sums in double of what the CPU decodes, and rows to the bit: integers,
// codebooks, and what is true of all formats.
#include "packed_problem.cuh"

#include "graph.cuh"

namespace {

using namespace quant_test;
using decant::fp16;
using decant::fp8_e4m3;

TEST_CASE("products with integers are within their bounds, on every path") {
  check_format(quant::Int<2>{.group = 32, .grid = quant::IntGrid::minimum});
  check_format(quant::Int<3>{.group = 64});
  check_format(quant::Int<4>{});
  check_format(quant::Int<5>{.group = 20, .grid = quant::IntGrid::symmetric});  // a scale for each of few columns
  check_format(quant::Int<8>{.group = 0, .grid = quant::IntGrid::signed_max});
}

TEST_CASE("products with codebooks are within their bounds, on every path") {
  check_format(quant::Codebook2x16<fp16>{});
  check_format(quant::Codebook2x16<fp16>{.group = 128, .select = 16});
  check_format(quant::Codebook2x16<fp8_e4m3>{});
  check_format(quant::Codebook2x16<fp16>{.group = 24, .select = 4});
}

TEST_CASE("all numbers of tokens, rows and columns, at any address") {
  const quant::Int<4> f;
  for (const index_t tokens : {1, 2, 3, 4, 5, 8, 17, 70}) check_product(f, {tokens, 17, 129});
  for (const index_t cols : {1, 15, 64, 127, 128, 129, 352}) {
    check_product(f, {2, 3, cols});
    check_product(f, {9, 3, cols});
  }
  for (const index_t rows : {1, 17, 33}) {
    check_product(f, {1, rows, 64});
    check_product(f, {5, rows, 64});
  }
  check_product(f, {1, 3, 1300});
  check_product(f, {5, 3, 1300});
  for (const index_t shift : {1, 2, 4}) {
    check_product(f, {1, 3, 300, shift});
    check_product(f, {6, 3, 300, shift});
    check_rows(f, 3, 300, shift);
  }
  check_product(f, {9, 17, 129, 0, 3, Activations::fp32});
  check_product(f, {1, 17, 352, 0, 0, Activations::fp32});
}

TEST_CASE("a token gives the same bits alone and among others, and again") {
  const Problem<quant::Codebook2x16<fp16>> p({}, 19, 520);
  const Stream stream;
  decant::Cuda cuda(stream);
  const std::vector<float> x = inputs(40 * p.cols);
  const auto row = [&](const std::vector<float>& y, index_t t) {
    return std::vector<float>(y.begin() + t * p.rows, y.begin() + (t + 1) * p.rows);
  };
  const auto some = [&](index_t first, index_t tokens, Activations a) {
    return product(cuda, p, {x.begin() + first * p.cols, x.begin() + (first + tokens) * p.cols}, tokens, p.cols, a);
  };
  const std::vector<float> all = product(cuda, p, x, 40, p.cols, Activations::bf16);
  CHECK(row(all, 39) == row(some(34, 6, Activations::bf16), 5));
  CHECK(row(all, 10) == row(some(5, 17, Activations::bf16), 5));
  CHECK(all == product(cuda, p, x, 40, p.cols, Activations::bf16));
  const std::vector<float> exact = some(0, 7, Activations::fp32);
  CHECK(row(exact, 6) == some(6, 1, Activations::fp32));
  CHECK(row(some(2, 3, Activations::bf16), 1) == some(3, 1, Activations::bf16));
}

TEST_CASE("calls allocate once and are captured") {
  const Problem<quant::Int<4>> p({}, 18, 256);
  const Stream stream;
  decant::Cuda cuda(stream);
  DeviceBuffer<float> x(inputs(6 * p.cols));
  const DeviceBuffer<float> y(6 * p.rows), one(p.rows);
  const View<const float, 2> in(x.data(), 6, p.cols);
  const auto call = [&] {
    matmul(cuda, p.packed(), in, y.view(6, p.rows));
    matvec(cuda, p.packed(), View<const float, 1>(x.data(), p.cols), one.view(p.rows));
  };
  call();
  const std::vector<float> first = y.download(), first_one = one.download();
  const cuda_test::Graph graph(stream, call);  // refuses to allocate
  x.upload(std::vector<float>(at(6 * p.cols), 0.0f));
  graph.launch(stream);
  cuda.check();
  CHECK(y.download() == std::vector<float>(first.size(), 0.0f));
  x.upload(inputs(6 * p.cols));
  graph.launch(stream);
  cuda.check();
  CHECK(y.download() == first);
  CHECK(one.download() == first_one);
}

TEST_CASE("what does not fit is refused by name") {
  const Problem<quant::Int<4>> p({}, 4, 64);
  const Stream stream;
  decant::Cuda cuda(stream);
  const DeviceBuffer<float> x(3 * 64), y(3 * 4);
  const auto in = [&](index_t tokens, index_t cols) { return View<const float, 2>(x.data(), tokens, cols); };
  using catch_compat::contains;
  CHECK_THROWS_WITH(matmul(cuda, p.packed(), in(3, 63), y.view(3, 4)), contains("quant::matmul: argument `x`"));
  CHECK_THROWS_WITH(matmul(cuda, p.packed(), in(3, 64), y.view(2, 4)), contains("`y`"));
  CHECK_THROWS_WITH(matmul(cuda, p.packed(), in(3, 64), y.view(3, 3)), contains("`y`"));
  CHECK_THROWS_WITH(matmul(cuda, p.packed(), in(3, 64), y.view(3, 4), Activations::int8), contains("`activations`"));
  CHECK_THROWS_WITH(dequantize_row(cuda, p.packed(), 4, x.view(64)), contains("a row below 4"));
  CHECK_THROWS_WITH(dequantize_row(cuda, p.packed(), 0, x.view(63)), contains("`out`"));
  CHECK_THROWS_WITH(dequantize(cuda, p.packed(), x.view(3, 64)), contains("`out`"));
  matmul(cuda, p.packed(), in(0, 64), y.view(0, 4));  // nothing to do
  cuda.check();
}

}  // namespace
