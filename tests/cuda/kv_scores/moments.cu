// ExpectedAttention, AccumulatedAttention, Leverage and ridge_leverage on the device: against the definitions in
// double, and against the CPU where the definition is the CPU's own.
#include "catch_compat.hpp"
#include "conformance/cache_fixtures.hpp"
#include "cuda/kv_scores/device_copy.cuh"
#include "cuda/kv_scores/score_error.cuh"
#include "decant/kv/expected_attention.cuh"
#include "decant/kv/h2o.cuh"
#include "decant/kv/leverage.cuh"
#include "decant/kv/ridge_leverage.cuh"

namespace {

using namespace cuda_test;
using decant::bf16;
using decant::Cpu;
using decant::Cuda;
using oracle::Layer;
using oracle::LayerShape;
using oracle::Row;
using oracle::Table;

TEST_CASE("moments: ExpectedAttention on the device, and its switches") {
  const Stream stream;
  Cuda cuda(stream);
  for (const LayerShape& s : {LayerShape{40, 2, 3, 12, 10, 16}, {70, 2, 2, 70, 16, 33}, {150, 1, 2, 20, 8, 20}}) {
    Layer<> data(s, 10);
    CAPTURE(s.n, s.key_dim);
    REQUIRE(error_of(cuda, kv::ExpectedAttention{}, data, oracle::expected_attention(data, 4, 512, true, true, 0)) <
            2e-5);
    REQUIRE(error_of(cuda, kv::ExpectedAttention{.sinks = 0, .future = 0, .covariance = false}, data,
                     oracle::expected_attention(data, 0, 0, false, true, 0)) < 2e-5);
    REQUIRE(error_of(cuda, kv::ExpectedAttention{.value_norm = false, .eps = 1e-2f}, data,
                     oracle::expected_attention(data, 4, 512, true, false, 0.01)) < 2e-5);
  }
  Layer<bf16> narrow({80, 1, 3, 24, 24, 12}, 11);
  REQUIRE(error_of(cuda, kv::ExpectedAttention{}, narrow, oracle::expected_attention(narrow, 4, 512, true, true, 0)) <
          2e-5);
  Layer<> prompt({40, 1, 2, 12, 10, 40}, 15);
  for (const index_t sinks : {index_t{1}, index_t{39}}) {
    REQUIRE(error_of(cuda, kv::ExpectedAttention{.sinks = sinks}, prompt,
                     oracle::expected_attention(prompt, sinks, 512, true, true, 0)) < 2e-5);
  }
}

TEST_CASE("moments: AccumulatedAttention on the device, by age and plain; batches of queries") {
  const Stream stream;
  Cuda cuda(stream);
  for (const LayerShape& s : {LayerShape{90, 2, 3, 12, 10, 90}, {700, 1, 3, 4, 1, 700}}) {
    Layer<> data(s, 6);
    const Table sums = oracle::over_group(oracle::column_sums(data, s.n, [](double a) { return a; }), 3, 0);
    Table by_age = sums;
    for (Row& row : by_age) {
      for (std::size_t j = 0; j < row.size(); ++j) row[j] /= static_cast<double>(row.size() - j);
    }
    REQUIRE(error_of(cuda, kv::AccumulatedAttention{.per_query = false}, data, sums) < 2e-6);
    REQUIRE(error_of(cuda, kv::AccumulatedAttention{}, data, by_age) < 2e-6);
  }
  Layer<> few({30, 1, 1, 4, 4, 29}, 6);
  DeviceCopy copy;
  const DeviceBuffer<float> out(std::vector<float>(30, -7.0f));
  score(cuda, kv::AccumulatedAttention{}, copy(few.view()), out.view(1, 30));
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("index 29"));
}

TEST_CASE("moments: given scores are copied, as far as there are tokens") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({30, 2, 1, 4, 4, 1}, 6);
  data.length = 20;
  std::vector<float> numbers;
  for (int i = 0; i < 60; ++i) numbers.push_back(static_cast<float>(i));
  const DeviceBuffer<float> given(numbers);
  DeviceCopy copy;
  const std::vector<float> got = scored(cuda, kv::GivenScores{given.view(2, 30)}, copy(data.view()), 30);
  for (std::size_t i = 0; i < 60; ++i) REQUIRE(got[i] == (i % 30 < 20 ? numbers[i] : -7.0f));
  const DeviceBuffer<float> out(std::vector<float>(60, -7.0f));
  score(cuda, kv::GivenScores{given.view(2, 19)}, copy(data.view()), out.view(2, 30));
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("lengths"));
  REQUIRE_THROWS_WITH(score(cuda, kv::GivenScores{given.view(1, 30)}, copy(data.view()), out.view(2, 30)),
                      catch_compat::contains("kv::GivenScores"));
}

TEST_CASE("moments: exact leverage is the oracle's; RoPE comes off") {
  const Stream stream;
  Cuda cuda(stream);
  const LayerShape s{120, 1, 1, 12, 4, 4};
  Layer<> data(s, 12);
  Table centred;
  Row mean(12, 0.0);
  for (index_t t = 0; t < s.n; ++t) {
    for (index_t d = 0; d < 12; ++d) mean[static_cast<std::size_t>(d)] += data.k(0, t, d) / 120;
  }
  for (index_t j = 0; j < s.n; ++j) {
    Row row;
    for (index_t d = 0; d < 12; ++d) row.push_back(data.k(0, j, d) - mean[static_cast<std::size_t>(d)]);
    centred.push_back(row);
  }
  const Row inv = oracle::inverse(oracle::gram(centred, Row(120, 1.0), 1e-2), 12);
  Table expected(1);
  for (const Row& row : centred) expected[0].push_back(oracle::form(inv, row));
  // Rotated keys with their positions score as the plain ones do.
  std::vector<std::int32_t> at;
  for (std::int32_t t = 0; t < 120; ++t) at.push_back(t * 7);
  for (index_t t = 0; t < 120; ++t) {
    Row k;
    for (index_t d = 0; d < 12; ++d) k.push_back(data.k(0, t, d));
    const Row turned = oracle::mean_rotated(k, 10000.0, at[static_cast<std::size_t>(t)], 1);
    for (index_t d = 0; d < 12; ++d) data.key(0, t, d) = static_cast<float>(turned[static_cast<std::size_t>(d)]);
  }
  auto x = data.view();
  x.positions = View<const std::int32_t, 2>(at.data(), 1, 120);
  DeviceCopy copy;
  const auto on_device = copy(x);
  REQUIRE(score_error(scored(cuda, kv::Leverage{.sketch = 0, .z_score = false}, on_device, 120), expected) < 5e-5);
  const auto z = scored(cuda, kv::Leverage{.sketch = 0}, on_device, 120);
  double sum = 0, square = 0;
  for (const float v : z) sum += static_cast<double>(v), square += static_cast<double>(v) * static_cast<double>(v);
  REQUIRE(std::abs(sum / 120) < 1e-5);
  REQUIRE(square / 120 == Approx(1).epsilon(1e-4));
}

template <class C>
void check_like_cpu(const C& cache, index_t room) {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  for (const kv::Leverage& scorer : {kv::Leverage{.sketch = 7, .seed = 5}, kv::Leverage{.sketch = 0, .ridge = 1.0f}}) {
    for (index_t sequence = 0; sequence < 2; ++sequence) {
      kv::LayerView<C> x{cache};
      x.sequence = sequence;
      x.rope.dim = 8;
      std::vector<float> expected(static_cast<std::size_t>(x.kv_heads() * room), -7.0f);
      score(cpu, scorer, x, View<float, 2>(expected.data(), x.kv_heads(), room));
      DeviceCopy copy;
      const std::vector<float> got = scored(cuda, scorer, copy(x), room);
      for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == Approx(expected[i]).epsilon(1e-3).margin(1e-3));
    }
  }
}

TEST_CASE("moments: Leverage over every cache gives the CPU's scores, sketched or not") {
  conformance::Dense<bf16> dense({{33, 33}, {70, 70}}, 24, 10, 1);
  check_like_cpu(dense.cache(), 80);
  conformance::Paged<float> paged({{33, 33}, {70, 70}}, 12, 12, 2);
  check_like_cpu(paged.cache(), 70);
  conformance::Ragged<float> ragged({{33, 1}, {70, 0}}, 12, 10, 1);
  check_like_cpu(ragged.cache(), 70);
}

TEST_CASE("moments: keys of several heads that are no numbers: Leverage tells the first, and writes nothing") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({30, 3, 1, 6, 4, 1}, 6);
  data.key(1, 3, 2) = data.key(2, 9, 0) = __builtin_nanf("");
  DeviceCopy copy;
  const DeviceBuffer<float> out(std::vector<float>(90, -7.0f));
  score(cuda, kv::Leverage{.sketch = 4}, copy(data.view()), out.view(3, 30));
  REQUIRE_THROWS_WITH(cuda.check(),
                      catch_compat::contains("finite rows and weights") && catch_compat::contains("head 1"));
  REQUIRE(out.download() == std::vector<float>(90, -7.0f));
}

TEST_CASE("moments: ridge leverage of weighted rows; what is not positive definite is told at check()") {
  const Stream stream;
  Cuda cuda(stream);
  for (const auto& [n, dim] : {std::pair<index_t, index_t>{5, 3}, {300, 32}, {60, 70}, {1, 1}}) {
    std::vector<float> u, w;
    for (index_t i = 0; i < n * dim; ++i) u.push_back(static_cast<float>(oracle::normal(21, i, 7)));
    for (index_t i = 0; i < n; ++i) w.push_back(0.5f + std::abs(static_cast<float>(oracle::normal(21, i, 8))));
    Table rows, expected(1);
    for (index_t i = 0; i < n; ++i) rows.emplace_back(u.begin() + i * dim, u.begin() + (i + 1) * dim);
    const Row inv = oracle::inverse(oracle::gram(rows, Row(w.begin(), w.end()), 0.7), static_cast<std::size_t>(dim));
    for (std::size_t i = 0; i < rows.size(); ++i) expected[0].push_back(w[i] * oracle::form(inv, rows[i]));
    const DeviceBuffer<float> du(u), dw(w), out(n);
    kv::ridge_leverage<float>(cuda, du.view(n, dim), dw.view(n), 0.7, out.view(n));
    cuda.check();
    REQUIRE(score_error(out.download(), expected) < 5e-5);
  }
  const DeviceBuffer<float> u(std::vector<float>{1, 2, __builtin_nanf(""), 4}), w(std::vector<float>{1, 1}),
      out(std::vector<float>{-7, -7});
  kv::ridge_leverage<float>(cuda, u.view(2, 2), w.view(2), 1.0, out.view(2));
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("finite rows and weights"));
  REQUIRE(out.download() == std::vector<float>{-7, -7});
  REQUIRE_THROWS_WITH(kv::ridge_leverage<float>(cuda, u.view(2, 2), w.view(2), 0.0, out.view(2)),
                      catch_compat::contains("ridge"));
  kv::ridge_leverage<float>(cuda, u.view(0, 2), w.view(0), 1.0, out.view(0));
  cuda.check();
}

}  // namespace
