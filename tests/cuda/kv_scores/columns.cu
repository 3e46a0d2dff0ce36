// The scorers that read attention weights, on the device: against the definitions in double, with and without
// log-sum-exps, every reduction, and over every cache.
#include "catch_compat.hpp"
#include "conformance/cache_fixtures.hpp"
#include "cuda/graph.cuh"
#include "cuda/kv_scores/device_copy.cuh"
#include "cuda/kv_scores/score_error.cuh"
#include "decant/kv/snapkv.cuh"
#include "decant/kv/tova.cuh"

namespace {

using namespace cuda_test;
using decant::bf16;
using decant::Cpu;
using decant::Cuda;
using oracle::Layer;
using oracle::LayerShape;
using oracle::Row;
using oracle::Table;

// Around the kernels' tiles of 16 and 64 keys and queries.
const LayerShape shapes[] = {{40, 2, 3, 12, 10, 16}, {65, 1, 1, 16, 16, 33}, {129, 2, 4, 24, 40, 9},
                             {70, 1, 2, 1, 1, 4},    {17, 1, 3, 3, 3, 17},   {1, 2, 2, 80, 8, 1}};

template <class T>
Table weights(Layer<T>& data, index_t w) {
  return oracle::column_sums(data, w, [](double a) { return a; });
}

TEST_CASE("columns: WindowAttention on the device: every window and reduction") {
  const Stream stream;
  Cuda cuda(stream);
  for (const LayerShape& s : shapes) {
    Layer<> data(s, 3);
    CAPTURE(s.n, s.key_dim);
    const index_t w = s.queries;
    for (const index_t some : {index_t{1}, (w + 1) / 2}) {
      if (some >= s.n) continue;  // nothing but zeros
      REQUIRE(error_of(cuda, kv::WindowAttention{.window = some}, data, oracle::window_attention(data, some)) < 2e-6);
    }
    if (w >= s.n) continue;
    const Table columns = weights(data, w);
    for (const int how : {0, 1, 2}) {
      Table expected = oracle::over_group(columns, s.group, how);
      for (Row& row : expected) {
        for (std::size_t j = row.size() - static_cast<std::size_t>(w); j < row.size(); ++j) row[j] = 0;
      }
      const kv::WindowAttention scorer{w, kv::Reduce::sum, static_cast<kv::Reduce>(how)};
      REQUIRE(error_of(cuda, scorer, data, expected) < 2e-6);
    }
  }
  // A window as long as the prompt hides every token.
  Layer<> data({30, 2, 2, 8, 8, 30}, 3);
  DeviceCopy copy;
  REQUIRE(scored(cuda, kv::WindowAttention{}, copy(data.view()), 30) == std::vector<float>(60, 0.0f));
}

TEST_CASE("columns: log-sum-exps at hand give the same scores in one pass") {
  const Stream stream;
  Cuda cuda(stream);
  for (const LayerShape& s : shapes) {
    if (s.n <= 7) continue;
    Layer<> data(s, 5);
    std::vector<float> lse;
    for (index_t hq = 0; hq < s.kv_heads * s.group; ++hq) {
      for (index_t i = 0; i < s.queries; ++i) {
        double sum = 0;
        for (index_t j = 0; j <= s.n - s.queries + i; ++j) {
          double dot = 0;
          for (index_t d = 0; d < s.key_dim; ++d) dot += data.q(hq, i, d) * data.k(hq / s.group, j, d);
          sum += std::exp(dot / std::sqrt(static_cast<double>(s.key_dim)));
        }
        lse.push_back(static_cast<float>(std::log(sum)));
      }
    }
    auto x = data.view();
    x.lse = View<const float, 2>(lse.data(), s.kv_heads * s.group, s.queries);
    DeviceCopy copy;
    const index_t w = s.queries < 7 ? s.queries : 7;
    const auto got = scored(cuda, kv::WindowAttention{.window = w}, copy(x), s.n);
    REQUIRE(score_error(got, oracle::window_attention(data, w)) < 2e-6);
  }
}

TEST_CASE("columns: TOVA on the device: the last query, the same for every head") {
  const Stream stream;
  Cuda cuda(stream);
  for (const LayerShape& s : shapes) {
    Layer<> data(s, 7);
    const Table last = weights(data, 1);
    const Table mean = oracle::over_group(last, static_cast<index_t>(last.size()), 0);
    REQUIRE(error_of(cuda, kv::TOVA{}, data, Table(static_cast<std::size_t>(s.kv_heads), mean[0])) < 2e-6);
  }
  Layer<bf16> data({130, 2, 3, 24, 24, 12}, 11);
  REQUIRE(error_of(cuda, kv::WindowAttention{.window = 12}, data, oracle::window_attention(data, 12)) < 2e-6);
  Layer<> wide({30, 1, 2, 576, 8, 5}, 11);
  REQUIRE(error_of(cuda, kv::WindowAttention{.window = 5}, wide, oracle::window_attention(wide, 5)) < 2e-6);
}

/// Queries for one of a cache's sequences.
template <class C>
kv::LayerView<C> with_queries(const C& cache, index_t sequence, const std::vector<float>& numbers, index_t window) {
  kv::LayerView<C> x{cache};
  x.sequence = sequence;
  x.queries = View<const float, 3>(numbers.data(), 2 * cache.kv_heads(), window, cache.key_dim());
  return x;
}

template <class S, class C>
void check_like_cpu(const S& scorer, const C& cache, index_t room) {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  std::vector<float> numbers;
  for (index_t i = 0; i < 2 * cache.kv_heads() * 20 * cache.key_dim(); ++i) {
    numbers.push_back(static_cast<float>(oracle::normal(1, i)));
  }
  for (index_t sequence = 0; sequence < 2; ++sequence) {
    const auto x = with_queries(cache, sequence, numbers, 20);
    std::vector<float> expected(static_cast<std::size_t>(x.kv_heads() * room), -7.0f);
    score(cpu, scorer, x, View<float, 2>(expected.data(), x.kv_heads(), room));
    DeviceCopy copy;
    const std::vector<float> got = scored(cuda, scorer, copy(x), room);
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == Approx(expected[i]).epsilon(1e-5).margin(1e-7));
  }
}

TEST_CASE("columns: every cache gives the CPU's scores") {
  conformance::Dense<bf16> dense({{33, 33}, {70, 70}}, 24, 10, 1);
  check_like_cpu(kv::WindowAttention{.window = 20}, dense.cache(), 80);
  check_like_cpu(kv::TOVA{}, dense.cache(), 80);
  for (const int variant : {0, 5, 10}) {
    conformance::Paged<float> paged({{33, 33}, {70, 70}}, 20, 10, variant);
    check_like_cpu(kv::WindowAttention{.window = 20}, paged.cache(), 70);
    check_like_cpu(kv::TOVA{}, paged.cache(), 70);
  }
  conformance::Ragged<float> ragged({{33, 5}, {70, 0}}, 12, 10, 1);  // one head shorter than the window, one empty
  check_like_cpu(kv::WindowAttention{.window = 20}, ragged.cache(), 70);
}

TEST_CASE("columns: many queries come in batches, and a head may have none in the last") {
  // 2048 queries of a group at a time: 700 of each of 3 heads are more.
  Layer<> data({710, 1, 3, 4, 1, 700}, 16);
  const Stream stream;
  Cuda cuda(stream);
  REQUIRE(error_of(cuda, kv::WindowAttention{.window = 700}, data, oracle::window_attention(data, 700)) < 2e-6);
}

TEST_CASE("columns: missing queries are told by the host where it can see them, else at check()") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({30, 2, 2, 8, 8, 5}, 17);
  DeviceCopy copy;
  const auto x = copy(data.view());
  const DeviceBuffer<float> out(std::vector<float>(60, -7.0f));
  score(cuda, kv::WindowAttention{.window = 6}, x, out.view(2, 30));
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("queries of as many of the last tokens"));
  auto none = x;
  none.queries = {};
  REQUIRE_THROWS_WITH(score(cuda, kv::TOVA{}, none, out.view(2, 30)), catch_compat::contains("x.queries"));
  REQUIRE_THROWS_WITH(score(cuda, kv::WindowAttention{.window = 0}, x, out.view(2, 30)),
                      catch_compat::contains("window"));
  conformance::Ragged<float> ragged({{30, 29}}, 8, 8, 0);
  std::vector<float> numbers(2 * 2 * 8, 1.0f);
  score(cuda, kv::TOVA{}, copy(with_queries(ragged.cache(), 0, numbers, 1)), out.view(2, 30));
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("heads of one length"));
  REQUIRE(out.download() == std::vector<float>(60, -7.0f));
}

TEST_CASE(
    "NaN in a query gives its heads NaN scores; the second call allocates nothing; capture gives the same bytes") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({100, 2, 2, 12, 8, 40}, 18);
  DeviceCopy copy;
  const auto x = copy(data.view());
  const kv::WindowAttention scorer{.window = 40};
  const std::vector<float> first = scored(cuda, scorer, x, 100);
  const std::size_t most = cuda.workspace().high_water();
  const DeviceBuffer<float> out(std::vector<float>(200, -7.0f));
  const Graph graph(stream, [&] { score(cuda, scorer, x, out.view(2, 100)); });
  graph.launch(stream);
  stream.wait();
  REQUIRE(out.download() == first);
  REQUIRE(cuda.workspace().high_water() == most);

  data.queries[5] = __builtin_nanf("");
  const std::vector<float> bad = scored(cuda, scorer, copy(data.view()), 100);
  for (std::size_t i = 0; i < 60; ++i) REQUIRE((bad[i] != bad[i] && bad[100 + i] == first[100 + i]));
}

}  // namespace
