// Shared-prefix attention on a device against the definition in double, over forests of every shape, on CUDA cores and
// on tensor cores.

#include "catch_compat.hpp"
#include "device_forest.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class T, class M = Causal>
void agrees(const Forest<T>& f, const Dense& a = {}, const M& mask = {}, const std::vector<float>& sinks = {},
            index_t piece = 8192, bool offsets = false) {
  Context c;
  const Exact expected = exact(f.flat, a, mask, sinks);
  const Result r = run_cascade(c.cuda, plan_of(f, piece), f.flat, DenseCache<T>(f.stored), a, mask, sinks, offsets);
  CHECK(error(r, expected) <= Dense::error_bound);
  CHECK(lse_error(r, expected) <= 2e-5);
}

TEST_CASE("Cuda Cascade: random forests, on CUDA cores") {
  for (unsigned seed = 0; seed < 8; ++seed) {
    INFO("seed " << seed);
    agrees(random_forest(seed, 90, 1));
  }
  agrees(random_forest(9, 60, 5, 1, 1), Dense{.chunk = 40});
}

TEST_CASE("Cuda Cascade: random forests, on tensor cores, with tiles of few rows and of many") {
  for (unsigned seed = 20; seed < 25; ++seed) {
    INFO("seed " << seed);
    agrees(random_forest<bf16>(seed, 90, 1, 1, 4, 24, 16));
  }
  agrees(random_forest<fp16>(26, 70, 1, 1, 1, 16, 136));                                // middle dims
  agrees(random_forest<bf16>(27, 60, 4, 1, 3, 20, 12), Dense{.chunk = 48});             // several queries each
  agrees(make_forest<bf16>(1, 20, 72, 264, {-1, 0, 0}, {70, 5, 9}, {1, 2}, {}, 28));    // wide dims
}

TEST_CASE("Cuda Cascade: masks along the whole path, sinks, a soft cap, segments in pieces and chunks") {
  const std::vector<float> sinks{0.5f, -1.0f, 2.0f, 0.0f, -infinity, 1.0f};
  const Forest<float> f = make_forest(2, 3, 20, 12, {-1, 0, 0, 1}, {300, 130, 64, 70}, {1, 2, 3, 0, 3},
                                      {3, 1, 2, 4, 0}, 11);
  agrees(f, {.scale = 0.3f, .soft_cap = 4, .chunk = 40}, Causal{}, sinks, 100);
  agrees(f, {}, Window{150}, {}, 64);
  agrees(f, {}, Window{0});
  const Forest<bf16> b = make_forest<bf16>(2, 3, 20, 12, {-1, 0, 0, 1}, {300, 130, 64, 70}, {1, 2, 3, 0, 3},
                                           {3, 1, 2, 4, 0}, 11);
  agrees(b, {.chunk = 40}, Window{150}, sinks, 100);
  agrees(b, {}, Full{}, {}, 64);
}

TEST_CASE("Cuda Cascade: no prefix, no suffix, one request, a request that is its prefix, a chain, nothing at all") {
  const auto everywhere = [](const std::vector<index_t>& parents, const std::vector<index_t>& lengths,
                             const std::vector<index_t>& leaves) {
    for (const bool offsets : {false, true}) {
      agrees(make_forest(1, 2, 20, 12, parents, lengths, leaves, {}, 3), {}, Causal{}, {}, 8192, offsets);
      agrees(make_forest<bf16>(1, 2, 20, 12, parents, lengths, leaves, {}, 3), {}, Causal{}, {}, 8192, offsets);
    }
  };
  everywhere({-1, 0, 0}, {0, 20, 30}, {1, 2});
  everywhere({-1, 0, 0}, {70, 0, 1}, {1, 2, 0, 0});
  everywhere({-1, 0}, {70, 10}, {1});
  everywhere({-1, 0, 1, 2, 3}, {10, 20, 0, 30, 5}, {4});
  everywhere({-1}, {0}, {0, -1});
}

/// Every third key of a request's path is hidden from all of its queries, and key 11 from its first one.
struct Holes {
  DECANT_HD bool allowed(index_t, index_t query, index_t key, index_t, index_t) const {
    return key % 3 != 1 && !(query == 0 && key == 11);
  }
  DECANT_HD KeyRange range(index_t, index_t, index_t, index_t keys) const { return {0, keys}; }
};

template <class T>
void check_unseen() {
  Forest<T> f = make_forest<T>(1, 2, 20, 12, {-1, 0, 0, -1}, {60, 30, 45, 9}, {1, 2, 2, 3, 0}, {2, 1, 9, 1, 1}, 5);
  const Exact expected = exact(f.flat, Dense{}, Holes{});
  Context c;
  const Result before = run_cascade(c.cuda, plan_of(f), f.flat, DenseCache<T>(f.stored), Dense{}, Holes{});
  CHECK(error(before, expected) <= Dense::error_bound);
  // What lies around segments, and hidden keys, may be anything.
  for (std::size_t s = 0; s < f.segments.size(); ++s) {
    const index_t start = f.segments[s].parent < 0 ? 0 : 60;
    for (index_t t = 0; t < f.stored.lengths[s]; ++t) {
      const bool outside = t < f.segments[s].first || t >= f.segments[s].last;
      if (!outside && (start + t - f.segments[s].first) % 3 != 1) continue;
      std::fill_n(f.stored.key(static_cast<index_t>(s), 0, t), 20, T(quiet_nan));
      std::fill_n(f.stored.value(static_cast<index_t>(s), 0, t), 12, T(t % 2 == 0 ? quiet_nan : infinity));
    }
  }
  CHECK(run_cascade(c.cuda, plan_of(f), f.flat, DenseCache<T>(f.stored), Dense{}, Holes{}).same_bits(before));
}

TEST_CASE("Cuda Cascade: what a query does not see does not matter to any bit") {
  check_unseen<float>();
  check_unseen<bf16>();
}

TEST_CASE("Cuda Cascade: a part whose weight is 0 adds nothing, whatever it holds, as in merge()") {
  Forest<float> f = make_forest(1, 1, 16, 12, {-1, 0}, {5, 5}, {1}, {});
  std::fill_n(f.flat.q.data(), 16, 1.0f);
  for (index_t t = 0; t < 5; ++t) {
    std::fill_n(f.stored.key(0, 0, f.segments[0].first + t), 16, -500.0f);
    std::fill_n(f.stored.value(0, 0, f.segments[0].first + t), 12, infinity);
    std::fill_n(f.stored.key(1, 0, f.segments[1].first + t), 16, 0.0f);
  }
  Context c;
  const Result r = run_cascade(c.cuda, plan_of(f), f.flat, DenseCache<float>(f.stored));
  for (index_t d = 0; d < 12; ++d) {
    double mean = 0;
    for (index_t t = 0; t < 5; ++t)
      mean += static_cast<double>(f.stored.value(1, 0, f.segments[1].first + t)[d]) / 5;
    CHECK(static_cast<double>(r.o[at(d)]) == Approx(mean).margin(1e-6));
  }
}

}  // namespace
}  // namespace attention_test
