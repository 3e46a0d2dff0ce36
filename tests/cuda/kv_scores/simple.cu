// KNorm, KeyDiff, Random, StreamingLLM and Full on the device: against the definitions in double, bit for bit where the
// CPU's scores are promised, over every cache, and what happens when the device finds something wrong.
#include "catch_compat.hpp"
#include "conformance/cache_fixtures.hpp"
#include "cuda/graph.cuh"
#include "cuda/kv_scores/device_copy.cuh"
#include "cuda/kv_scores/score_error.cuh"
#include "decant/kv/full.cuh"
#include "decant/kv/keydiff.cuh"
#include "decant/kv/knorm.cuh"
#include "decant/kv/random.cuh"
#include "decant/kv/streaming_llm.cuh"

namespace {

using namespace cuda_test;
using decant::bf16;
using decant::Cpu;
using decant::Cuda;
using decant::fp16;
using oracle::Layer;
using oracle::LayerShape;
using oracle::Row;
using oracle::Table;

template <class T>
void check_key_scores(const LayerShape& s, std::uint64_t seed) {
  const Stream stream;
  Cuda cuda(stream);
  Layer<T> data(s, seed);
  Table negative = oracle::key_norms(data);
  for (Row& row : negative) {
    for (double& v : row) v = -v;
  }
  CAPTURE(s.n, s.key_dim);
  REQUIRE(error_of(cuda, kv::KNorm{}, data, negative) < 1e-6);
  REQUIRE(error_of(cuda, kv::KeyDiff{}, data, oracle::key_diff(data)) < 2e-6);
}

TEST_CASE("simple: KNorm and KeyDiff on the device") {
  for (const LayerShape& s : {LayerShape{40, 2, 3, 12, 10, 4},
                              {65, 1, 1, 16, 16, 4},
                              {257, 2, 4, 24, 40, 4},
                              {130, 1, 1, 1, 1, 1},
                              {70, 2, 1, 3, 5, 1},
                              {66, 1, 1, 576, 8, 1},
                              {1, 2, 1, 80, 8, 1}}) {
    check_key_scores<float>(s, 8);
  }
  check_key_scores<bf16>({130, 2, 1, 80, 8, 1}, 9);
  check_key_scores<fp16>({130, 2, 1, 36, 8, 1}, 10);
  check_key_scores<bf16>({65, 1, 1, 13, 8, 1}, 11);
}

/// Layers of the shapes that caches come in, each with heads of its own lengths where they may differ.
template <class Body>
void each_cache(Body body) {
  for (const int variant : {0, 1, 2}) {
    conformance::Dense<bf16> f({{33, 33}, {70, 70}}, 24, 10, variant);
    body(f.cache(), index_t{80});
  }
  for (const int variant : {0, 5, 10}) {  // pages of 1, 7 and 16 tokens
    conformance::Paged<float> f({{33, 33}, {70, 70}}, 20, 10, variant);
    body(f.cache(), index_t{70});
  }
  for (const int variant : {0, 1}) {
    conformance::Ragged<float> f({{33, 5}, {70, 0}}, 12, 10, variant);
    body(f.cache(), index_t{70});
  }
}

template <class S, class C>
void check_like_cpu(const S& scorer, const C& cache, index_t room, double bound) {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  for (index_t sequence = 0; sequence < 2; ++sequence) {
    kv::LayerView<C> x{cache};
    x.sequence = sequence;
    x.layer = 3;
    x.layers = 5;
    std::vector<float> expected(static_cast<std::size_t>(x.kv_heads() * room), -7.0f);
    score(cpu, scorer, x, View<float, 2>(expected.data(), x.kv_heads(), room));
    DeviceCopy copy;
    const std::vector<float> got = scored(cuda, scorer, copy(x), room);
    if (bound == 0) REQUIRE(got == expected);
    for (std::size_t i = 0; i < got.size(); ++i)
      REQUIRE(std::abs(got[i] - expected[i]) <= bound * std::abs(expected[i]));
  }
}

TEST_CASE("simple: every cache gives the CPU's scores, and nothing is written behind a head's tokens") {
  each_cache([](const auto& cache, index_t room) {
    check_like_cpu(kv::KNorm{}, cache, room, 1e-6);
    check_like_cpu(kv::KeyDiff{}, cache, room, 1e-4);
    check_like_cpu(kv::Random{.seed = 77}, cache, room, 0);
    check_like_cpu(kv::StreamingLLM{.sinks = 6}, cache, room, 0);
    check_like_cpu(kv::Full{}, cache, room, 0);
  });
}

TEST_CASE("simple: keys of zeros have no direction; NaN stays with its token or head") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({20, 1, 1, 8, 8, 1}, 12);
  for (index_t d = 0; d < 8; ++d) data.key(0, 3, d) = 0;
  DeviceCopy copy;
  REQUIRE(scored(cuda, kv::KeyDiff{}, copy(data.view()), 20)[3] == 0);
  data.key(0, 7, 2) = __builtin_nanf("");
  const std::vector<float> norms = scored(cuda, kv::KNorm{}, copy(data.view()), 20);
  for (std::size_t t = 0; t < 20; ++t) REQUIRE((norms[t] != norms[t]) == (t == 7));
  for (const float v : scored(cuda, kv::KeyDiff{}, copy(data.view()), 20)) REQUIRE(v != v);
}

TEST_CASE("simple: the second call allocates nothing, a captured call follows the length, and gives the same bytes") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({100, 2, 1, 16, 8, 1}, 13);
  DeviceCopy copy;
  const auto x = copy(data.view());
  const std::vector<float> first = scored(cuda, kv::KeyDiff{}, x, 100);
  const std::size_t most = cuda.workspace().high_water();
  REQUIRE(scored(cuda, kv::KeyDiff{}, x, 100) == first);
  REQUIRE(cuda.workspace().high_water() == most);

  const DeviceBuffer<float> out(std::vector<float>(200, -7.0f));
  const Graph graph(stream, [&] { score(cuda, kv::KeyDiff{}, x, out.view(2, 100)); });
  graph.launch(stream);
  stream.wait();
  REQUIRE(out.download() == first);
  // The sequence grew shorter: the same graph scores what is there.
  const std::int32_t length = 61;
  must(cudaMemcpy(x.cache.lengths.data(), &length, sizeof length, cudaMemcpyHostToDevice), "cudaMemcpy");
  const std::vector<float> shorter = scored(cuda, kv::KeyDiff{}, x, 100);
  graph.launch(stream);
  stream.wait();
  const std::vector<float> replayed = out.download();
  for (std::size_t i = 0; i < 200; ++i) REQUIRE(replayed[i] == (i % 100 < 61 ? shorter[i] : first[i]));
  REQUIRE(shorter[0] != first[0]);
}

TEST_CASE("simple: what only the device sees is told at check(), and then nothing was written") {
  const Stream stream;
  Cuda cuda(stream);
  const DeviceBuffer<float> out(std::vector<float>(200, -7.0f));
  const auto untouched = [&] { return out.download() == std::vector<float>(200, -7.0f); };
  Layer<> data({100, 2, 1, 8, 8, 1}, 14);
  DeviceCopy copy;
  for (const std::int32_t length : {101, -1}) {
    data.length = length;
    score(cuda, kv::KNorm{}, copy(data.view()), out.view(2, 100));
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("lengths from 0 to the capacity"));
    REQUIRE(untouched());
  }
  data.length = 100;
  score(cuda, kv::StreamingLLM{}, copy(data.view()), out.view(2, 99));  // no room for the scores
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("index 100"));
  REQUIRE(untouched());

  conformance::Paged<float> paged({{40, 40}}, 8, 8, 2);
  auto table = copy(kv::LayerView{paged.cache()});
  const std::int32_t page = 400;
  must(cudaMemcpy(table.cache.indices.data() + 1, &page, sizeof page, cudaMemcpyHostToDevice), "cudaMemcpy");
  score(cuda, kv::KeyDiff{}, table, out.view(2, 100));
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("pages that exist"));
  REQUIRE(untouched());
  conformance::Ragged<float> ragged({{40, 30}}, 8, 8, 0);
  ragged.lengths[1] = 41;  // its segment has 40 rows
  score(cuda, kv::KeyDiff{}, copy(kv::LayerView{ragged.cache()}), out.view(2, 100));
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("head 1, index 41"));
  REQUIRE(untouched());

  auto wrong = copy(data.view());
  wrong.sequence = 1;
  REQUIRE_THROWS_WITH(score(cuda, kv::KNorm{}, wrong, out.view(2, 100)), catch_compat::contains("sequence"));
  REQUIRE_THROWS_WITH(score(cuda, kv::KNorm{}, copy(data.view()), out.view(1, 200)), catch_compat::contains("scores"));
  cuda.check();
}

TEST_CASE("simple: empty sequences and caches without room") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({10, 2, 1, 8, 8, 1}, 15);
  data.length = 0;
  DeviceCopy copy;
  REQUIRE(scored(cuda, kv::KeyDiff{}, copy(data.view()), 10) == std::vector<float>(20, -7.0f));
  REQUIRE(scored(cuda, kv::Random{}, copy(data.view()), 10) == std::vector<float>(20, -7.0f));
  data.length = 10;
  auto x = copy(data.view());
  x.longest = 10;
  REQUIRE(scored(cuda, kv::KNorm{}, x, 40).size() == 80);
}

}  // namespace
