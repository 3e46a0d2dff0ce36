// Shared-prefix attention against the definition in double, over forests of every shape, and against merge() of dense
// attention over each segment, bit by bit.

#include "catch_compat.hpp"
#include "decant/attention/santa.hpp"
#include "forest.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class T, class M = Causal>
void agrees(const Forest<T>& f, const Dense& a = {}, const M& mask = {}, const std::vector<float>& sinks = {},
            const Cascade& cut = {}) {
  const Exact expected = exact(f.flat, a, mask, sinks);
  const DenseCache<T> cache(f.stored);
  const CascadePlan p = plan(cut, f.segment_view(), f.leaf_view());
  for (const Isa isa : paths()) {
    INFO(name(isa));
    Cpu cpu;
    cpu.set_isa(isa);
    const Result r = run_cascade(cpu, p, f.flat, cache.view, a, mask, sinks);
    CHECK(error(r, expected) <= Dense::error_bound);
    CHECK(lse_error(r, expected) <= 2e-5);
  }
}

TEST_CASE("Cascade: random forests, every instruction set, against the definition") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    agrees(random_forest(seed, 90, 1));
  }
  agrees(random_forest<bf16>(100, 90, 1, 1, 8, 64, 64));
  agrees(random_forest(101, 700, 1, 1, 1));
}

TEST_CASE("Cascade: several queries per request, masks along the request's whole path, sinks, a soft cap") {
  const std::vector<float> sinks{0.5f, -1.0f, 2.0f, 0.0f, -infinity, 1.0f};
  for (unsigned seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    const Forest<float> f = random_forest(200 + seed, 60, 5);
    agrees(f);
    agrees(f, {.scale = 0.3f, .soft_cap = 4}, Causal{}, sinks, {.piece = 64});
    agrees(f, {}, Window{20});
    agrees(f, {}, Full{});
  }
}

TEST_CASE("Cascade: segments in several pieces, and masks that end within them") {
  const Forest<float> f = make_forest(2, 3, 20, 12, {-1, 0, 0, 1}, {300, 130, 64, 70}, {1, 2, 3, 0, 3},
                                      {3, 1, 2, 4, 0}, 11);
  for (const index_t piece : {64, 100, 8192}) {
    agrees(f, {.chunk = 40}, Causal{}, {}, {.piece = piece});
    agrees(f, {}, Window{150}, {}, {.piece = piece});
    agrees(f, {}, Window{0}, {}, {.piece = piece});
  }
  CHECK(plan(Cascade{.piece = 64}, f.segment_view(), f.leaf_view()).pieces() == 5 + 3 + 1 + 2);
}

TEST_CASE("Cascade: a part whose weight is 0 adds nothing, whatever it holds, as in merge()") {
  Forest<float> f = make_forest(1, 1, 16, 12, {-1, 0}, {5, 5}, {1}, {});
  std::fill_n(f.flat.q.data(), 16, 1.0f);
  const Segment& low = f.segments[0];
  const Segment& high = f.segments[1];
  for (index_t t = 0; t < 5; ++t) {
    std::fill_n(f.stored.key(0, 0, low.first + t), 16, -500.0f);
    std::fill_n(f.stored.value(0, 0, low.first + t), 12, infinity);
    std::fill_n(f.stored.key(1, 0, high.first + t), 16, 0.0f);
  }
  Cpu cpu;
  const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
  const Result r = run_cascade(cpu, p, f.flat, DenseCache<float>(f.stored).view);
  for (index_t d = 0; d < 12; ++d) {
    double mean = 0;
    for (index_t t = 0; t < 5; ++t) mean += static_cast<double>(f.stored.value(1, 0, high.first + t)[d]) / 5;
    CHECK(static_cast<double>(r.o[at(d)]) == Approx(mean).margin(1e-6));
  }
}

TEST_CASE("Cascade: keys that no query sees may be anything") {
  Forest<float> f = random_forest(300, 60, 1);
  const Exact expected = exact(f.flat, Dense{}, Window{7});
  // Everything further back than 7 in all requests: poison the segments that no request ends in.
  for (const Segment& s : f.segments)
    for (index_t t = 0; t < f.stored.lengths[at(s.sequence)]; ++t) {
      bool seen = false;
      for (index_t r = 0; r < f.flat.sequences(); ++r) {
        index_t position = 0;
        for (const index_t i : f.path(r)) {
          const Segment& x = f.segments[at(i)];
          const bool here = x.sequence == s.sequence && t >= x.first && t < x.last;
          seen = seen || (here && position + t - x.first >= f.flat.lengths[at(r)] - 8);
          position += x.last - x.first;
        }
      }
      if (seen) continue;
      for (index_t h = 0; h < 2; ++h) {
        std::fill_n(f.stored.key(s.sequence, h, t), 20, quiet_nan);
        std::fill_n(f.stored.value(s.sequence, h, t), 12, quiet_nan);
      }
    }
  Cpu cpu;
  const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
  CHECK(error(run_cascade(cpu, p, f.flat, DenseCache<float>(f.stored).view, {}, Window{7}), expected) <= 5e-6);
}

TEST_CASE("Cascade: is merge() of dense attention over the segments, bit by bit") {
  for (unsigned seed = 0; seed < 15; ++seed) {
    INFO("seed " << seed);
    const Forest<float> f = random_forest(400 + seed, 80, 1);
    const DenseCache<float> cache(f.stored);
    const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
    for (const Isa isa : paths()) {
      Cpu cpu;
      cpu.set_isa(isa);
      const Result r = run_cascade(cpu, p, f.flat, cache.view);

      // Each segment by its sharers, from a cache that holds it alone.
      std::vector<Result> states(f.segments.size());
      std::vector<std::vector<index_t>> sharers(f.segments.size());
      for (index_t i = 0; i < f.flat.sequences(); ++i)
        for (const index_t s : f.path(i)) sharers[at(s)].push_back(i);
      for (std::size_t s = 0; s < f.segments.size(); ++s) {
        const Segment& x = f.segments[s];
        Problem<float> one(2, 3, 20, 12, {x.last - x.first}, {static_cast<index_t>(sharers[s].size())});
        for (index_t h = 0; h < 2; ++h)
          for (index_t t = x.first; t < x.last; ++t) {
            std::copy_n(f.stored.key(x.sequence, h, t), 20, one.key(0, h, t - x.first));
            std::copy_n(f.stored.value(x.sequence, h, t), 12, one.value(0, h, t - x.first));
          }
        for (std::size_t i = 0; i < sharers[s].size(); ++i)
          std::copy_n(f.flat.q.data() + sharers[s][i] * 6 * 20, 6 * 20, one.q.data() + i * 6 * 20);
        states[s] = run(cpu, one, DenseCache<float>(one).view, Dense{}, Full{});
      }
      for (index_t i = 0; i < f.flat.sequences(); ++i) {
        std::vector<State<const float>> parts;
        for (const index_t s : f.path(i)) {
          const auto found = std::find(sharers[at(s)].begin(), sharers[at(s)].end(), i);
          const index_t k = found - sharers[at(s)].begin();
          parts.push_back({View<const float, 3>(states[at(s)].o.data() + k * 6 * 12, 1, 6, 12),
                           View<const float, 2>(states[at(s)].lse.data() + k * 6, 1, 6)});
        }
        std::vector<float> o(6 * 12), lse(6);
        merge(cpu, View<const State<const float>, 1>(parts),
              State<float>{View<float, 3>(o.data(), 1, 6, 12), View<float, 2>(lse.data(), 1, 6)});
        CHECK(std::memcmp(o.data(), r.o.data() + i * 6 * 12, o.size() * 4) == 0);
        CHECK(std::memcmp(lse.data(), r.lse.data() + i * 6, lse.size() * 4) == 0);
      }
    }
  }
}

TEST_CASE("Cascade: with Santa, exact where all rows are taken, else an estimate without bias, its lse always exact") {
  const Santa every{.samples = 1 << 20, .scheme = SantaScheme::threshold_systematic};
  for (unsigned seed = 0; seed < 10; ++seed) {
    INFO("seed " << seed);
    const Forest<float> f = random_forest(450 + seed, 90, 1);
    const Exact expected = exact(f.flat);
    const DenseCache<float> cache(f.stored);
    const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
    for (const Isa isa : paths()) {
      Cpu cpu;
      cpu.set_isa(isa);
      const Result r = run_cascade(cpu, p, f.flat, cache.view, every);
      CHECK(error(r, expected) <= Dense::error_bound);
      CHECK(lse_error(r, expected) <= 2e-5);
      CHECK(lse_error(run_cascade(cpu, p, f.flat, cache.view, Santa{.samples = 3}), expected) <= 2e-5);
    }
  }
  // Two requests, 100 keys in common: 4000 draws, every coordinate's mean within 4.8 standard errors. 2 x 2 x 8
  // coordinates: falsely rejected once in 20000 seeds.
  const Forest<float> f = make_forest(1, 2, 16, 8, {-1, 0, 0}, {100, 20, 40}, {1, 2}, {1, 1});
  const Exact expected = exact(f.flat);
  const DenseCache<float> cache(f.stored);
  const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
  Cpu cpu;
  std::vector<double> mean(32, 0.0), square(32, 0.0);
  const std::uint32_t draws = 4000;
  for (std::uint32_t step = 0; step < draws; ++step) {
    const Result r = run_cascade(cpu, p, f.flat, cache.view, Santa{.samples = 8, .step = 1000 * step});
    for (std::size_t i = 0; i < 32; ++i) {
      const double off = static_cast<double>(r.o[i]) - expected.o[i];
      mean[i] += off / draws;
      square[i] += off * off / draws;
    }
  }
  for (std::size_t i = 0; i < 32; ++i) {
    CHECK(std::abs(mean[i]) < 4.8 * std::sqrt((square[i] - mean[i] * mean[i]) / draws));
    CHECK(square[i] > 1e-4);
  }
}

TEST_CASE("Cascade: a forest of depth one is Dense, bit by bit, and so are empty segments around it") {
  const Forest<float> f =
      make_forest(2, 3, 20, 12, {-1, -1, -1, -1}, {150, 1, 64, 0}, {0, 1, 2, 3, -1}, {2, 1, 1, 1, 1});
  // The same requests below and above segments that hold nothing.
  const Forest<float> e =
      make_forest(2, 3, 20, 12, {-1, 0, 0, 0, -1, 1, 2}, {0, 150, 1, 64, 0, 0, 0}, {5, 6, 3, 0, 4}, {2, 1, 1, 1, 1});
  for (const Forest<float>* forest : {&f, &e}) {
    const DenseCache<float> cache(forest->stored);
    const CascadePlan p = plan(Cascade{}, forest->segment_view(), forest->leaf_view());
    CHECK(p.pieces() == 3);
    CHECK(p.tokens() == p.dense_tokens());
    for (const Isa isa : paths()) {
      Cpu cpu;
      cpu.set_isa(isa);
      const Result r = run_cascade(cpu, p, forest->flat, cache.view);
      CHECK(r.same_bits(run(cpu, forest->flat, DenseCache<float>(forest->flat).view)));
      const std::size_t without = at(4 * 6);  // (0, -inf)
      CHECK(std::all_of(r.lse.begin() + static_cast<std::ptrdiff_t>(without), r.lse.end(),
                        [](float x) { return x == -infinity; }));
    }
  }
}

TEST_CASE("Cascade: one key is its value, and requests with the same keys and queries get the same bits") {
  Forest<float> f = make_forest(1, 4, 16, 12, {-1, 0, 0, -1}, {90, 1, 40, 1}, {1, 1, 2, 2, 0, 0, 3, 3}, {});
  for (index_t r = 1; r < 8; r += 2)
    std::copy_n(f.flat.q.data() + (r - 1) * 4 * 16, 4 * 16, f.flat.q.data() + r * 4 * 16);
  Cpu cpu;
  const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
  const Result r = run_cascade(cpu, p, f.flat, DenseCache<float>(f.stored).view);
  for (index_t i = 1; i < 8; i += 2)
    CHECK(std::memcmp(r.o.data() + (i - 1) * 48, r.o.data() + i * 48, 48 * sizeof(float)) == 0);
  for (index_t head = 0; head < 4; ++head)
    CHECK(std::memcmp(r.o.data() + (6 * 4 + head) * 12, f.flat.value(6, 0, 0), 12 * sizeof(float)) == 0);
}

}  // namespace
}  // namespace attention_test
