// CapKV on the device, in both modes: against the definition in double, over every cache, for matrices that fit into
// shared memory and for one that does not.
#include "catch_compat.hpp"
#include "conformance/cache_fixtures.hpp"
#include "cuda/graph.cuh"
#include "cuda/kv_scores/device_copy.cuh"
#include "cuda/kv_scores/score_error.cuh"
#include "decant/kv/capkv.cuh"

namespace {

using namespace cuda_test;
using decant::bf16;
using decant::Cpu;
using decant::Cuda;
using oracle::Layer;
using oracle::LayerShape;
using oracle::Row;
using oracle::Table;

const LayerShape shapes[] = {
    {40, 2, 3, 12, 10, 16}, {65, 1, 1, 16, 16, 33}, {70, 2, 4, 24, 72, 9}, {300, 1, 2, 20, 8, 20}};

TEST_CASE("capacity: CapKV on the device in both modes") {
  const Stream stream;
  Cuda cuda(stream);
  for (const LayerShape& s : shapes) {
    Layer<> data(s, 9);
    CAPTURE(s.n, s.value_dim);
    REQUIRE(error_of(cuda, kv::CapKV{}, data, oracle::cap_kv(data, 5, 1, 4, 512)) < 5e-5);
    REQUIRE(error_of(cuda, kv::CapKV{.tau = 2, .ridge = 0.5f, .sinks = 0, .future = 0}, data,
                     oracle::cap_kv(data, 2, 0.5, 0, 0)) < 5e-5);
    REQUIRE(error_of(cuda, kv::CapKV{.compat_eps = true}, data, oracle::cap_kv(data, 5, 1, 4, 512, true)) < 5e-5);
    REQUIRE(error_of(cuda, kv::CapKV{.tau = 0.25f, .mode = kv::CapKV::Mode::paper}, data,
                     oracle::cap_kv_paper(data, 0.25)) < 5e-5);
  }
  Layer<bf16> narrow({80, 1, 3, 24, 24, 12}, 11);
  REQUIRE(error_of(cuda, kv::CapKV{}, narrow, oracle::cap_kv(narrow, 5, 1, 4, 512)) < 5e-5);
}

TEST_CASE("capacity: CapKV's 1e-6, where it matters: sharp weights and next to no ridge") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({100, 1, 2, 12, 10, 16}, 9);
  REQUIRE(error_of(cuda, kv::CapKV{.tau = 100, .ridge = 1e-5f}, data, oracle::cap_kv(data, 100, 1e-5, 4, 512)) < 1e-3);
  REQUIRE(error_of(cuda, kv::CapKV{.tau = 100, .ridge = 1e-5f, .compat_eps = true}, data,
                   oracle::cap_kv(data, 100, 1e-5, 4, 512, true)) < 1e-3);
}

TEST_CASE("capacity: queries of sinks take no part; n <= sinks scores 0; one query may be the mean") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({40, 1, 2, 12, 10, 40}, 15);
  for (const index_t sinks : {index_t{1}, index_t{4}, index_t{39}}) {
    REQUIRE(error_of(cuda, kv::CapKV{.sinks = sinks}, data, oracle::cap_kv(data, 5, 1, sinks, 512)) < 5e-5);
  }
  DeviceCopy copy;
  REQUIRE(scored(cuda, kv::CapKV{.sinks = 40}, copy(data.view()), 40) == std::vector<float>(40, 0.0f));
  Layer<> one({1, 2, 1, 2, 1, 1}, 15);
  REQUIRE(error_of(cuda, kv::CapKV{.sinks = 0}, one, oracle::cap_kv(one, 5, 1, 0, 512)) < 5e-5);
}

template <class C>
void check_like_cpu(const kv::CapKV& scorer, const C& cache, index_t room) {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  std::vector<float> numbers;
  for (index_t i = 0; i < 2 * cache.kv_heads() * 20 * cache.key_dim(); ++i) {
    numbers.push_back(static_cast<float>(oracle::normal(1, i)));
  }
  for (index_t sequence = 0; sequence < 2; ++sequence) {
    kv::LayerView<C> x{cache};
    x.sequence = sequence;
    x.rope.interleaved = true;
    x.rope.dim = 8;
    x.next_position = sequence == 0 ? 1234 : -1;
    x.queries_pre_rope = View<const float, 3>(numbers.data(), 2 * cache.kv_heads(), 20, cache.key_dim());
    std::vector<float> expected(static_cast<std::size_t>(x.kv_heads() * room), -7.0f);
    score(cpu, scorer, x, View<float, 2>(expected.data(), x.kv_heads(), room));
    DeviceCopy copy;
    const std::vector<float> got = scored(cuda, scorer, copy(x), room);
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == Approx(expected[i]).epsilon(1e-4).margin(1e-6));
  }
}

TEST_CASE("capacity: every cache gives the CPU's scores") {
  conformance::Dense<bf16> dense({{33, 33}, {70, 70}}, 24, 10, 1);
  check_like_cpu(kv::CapKV{}, dense.cache(), 80);
  for (const int variant : {0, 10}) {
    conformance::Paged<float> paged({{33, 33}, {70, 70}}, 20, 12, variant);
    check_like_cpu(kv::CapKV{}, paged.cache(), 70);
  }
  conformance::Ragged<float> ragged({{33, 3}, {70, 0}}, 12, 10, 1);  // one head of sinks alone, one empty
  check_like_cpu(kv::CapKV{}, ragged.cache(), 70);
}

TEST_CASE("capacity: a matrix too large for shared memory") {
  Layer<> data({20, 1, 1, 8, 210, 5}, 16);
  const Stream stream;
  Cuda cuda(stream);
  REQUIRE(error_of(cuda, kv::CapKV{}, data, oracle::cap_kv(data, 5, 1, 4, 512)) < 5e-5);
}

TEST_CASE("capacity: NaN among the values or keys gives NaN to its head") {
  const Stream stream;
  Cuda cuda(stream);
  for (const bool key : {false, true}) {
    Layer<> data({30, 2, 2, 8, 8, 5}, 17);
    DeviceCopy copy;
    const std::vector<float> good = scored(cuda, kv::CapKV{}, copy(data.view()), 30);
    (key ? data.key(0, 9, 1) : data.value(0, 9, 1)) = __builtin_nanf("");
    const std::vector<float> bad = scored(cuda, kv::CapKV{}, copy(data.view()), 30);
    for (std::size_t t = 4; t < 30; ++t) REQUIRE((bad[t] != bad[t] && bad[30 + t] == good[30 + t]));
    for (std::size_t t = 0; t < 4; ++t) REQUIRE(bad[t] == 0);
  }
}

TEST_CASE("capacity: CapKV on the device says what is missing, allocates once, and can be captured") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<> data({60, 2, 2, 12, 10, 8}, 18);
  DeviceCopy copy;
  const auto x = copy(data.view());
  const DeviceBuffer<float> out(std::vector<float>(120, -7.0f));
  auto none = x;
  none.queries_pre_rope = {};
  REQUIRE_THROWS_WITH(score(cuda, kv::CapKV{}, none, out.view(2, 60)), catch_compat::contains("x.queries_pre_rope"));
  REQUIRE_THROWS_WITH(score(cuda, kv::CapKV{.ridge = 0}, x, out.view(2, 60)), catch_compat::contains("ridge"));
  auto odd = x;
  odd.rope.dim = 5;
  REQUIRE_THROWS_WITH(score(cuda, kv::CapKV{}, odd, out.view(2, 60)), catch_compat::contains("an even number"));
  auto early = x;
  early.next_position = 3;  // all queries are of sinks
  early.queries_pre_rope = x.queries_pre_rope.slice(1, 0, 1);
  score(cuda, kv::CapKV{}, early, out.view(2, 60));
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("queries"));
  REQUIRE(out.download() == std::vector<float>(120, -7.0f));

  const std::vector<float> first = scored(cuda, kv::CapKV{}, x, 60);
  const std::size_t most = cuda.workspace().high_water();
  const Graph graph(stream, [&] { score(cuda, kv::CapKV{}, x, out.view(2, 60)); });
  graph.launch(stream);
  stream.wait();
  REQUIRE(out.download() == first);
  REQUIRE(cuda.workspace().high_water() == most);
}

}  // namespace
