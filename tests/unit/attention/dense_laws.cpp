// What holds for attention whatever the numbers are, and what decant promises beyond: no dependence on threads, on the
// rest of the batch, or on chunks beyond rounding; NaN stays where it is seen; no allocation in a second call.

#include "allocations.hpp"
#include "catch_compat.hpp"
#include "problem.hpp"
#include "watched_heap.hpp"

namespace attention_test {
std::atomic<long> allocations{0};
}  // namespace attention_test

void watched_heap::on_allocation(std::size_t) { ++attention_test::allocations; }

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class F>
void on_every_path(const F& body) {
  for (const Isa isa : paths()) {
    INFO(name(isa));
    Cpu cpu;
    cpu.set_isa(isa);
    body(cpu);
  }
}

double distance(const Result& a, const Result& b) { return oracle::relative_error(doubles(a.o), doubles(b.o)); }

TEST_CASE("Dense: no keys give (0, -inf), one key gives its value, bit by bit") {
  Problem<float> p(2, 3, 8, 21, {0, 1, 1}, {1, 1, 3});
  p.value(1, 0, 0)[2] = -0.0f;
  p.value(1, 0, 0)[3] = 1e-42f;
  on_every_path([&](Cpu& cpu) {
    const Result r = run(cpu, p, DenseCache<float>(p).view);
    const auto row = [&](index_t i, index_t head) { return r.o.data() + (i * 6 + head) * 21; };
    for (index_t head = 0; head < 6; ++head) {
      const float zeros[21] = {};
      CHECK(std::memcmp(row(0, head), zeros, sizeof zeros) == 0);
      CHECK(r.lse[at(head)] == -infinity);
      CHECK(std::memcmp(row(1, head), p.value(1, head / 3, 0), sizeof zeros) == 0);
      // Of three queries over one key, causal, only the last sees it.
      for (index_t i : {2, 3}) {
        CHECK(std::memcmp(row(i, head), zeros, sizeof zeros) == 0);
        CHECK(r.lse[at(i * 6 + head)] == -infinity);
      }
      CHECK(std::memcmp(row(4, head), p.value(2, head / 3, 0), sizeof zeros) == 0);
    }
  });
}

TEST_CASE("Dense: equal values come out as they are, and no output leaves the range of its values") {
  Problem<float> p(1, 4, 16, 12, {200, 200}, {1, 50});
  on_every_path([&](Cpu& cpu) {
    const Result r = run(cpu, p, DenseCache<float>(p).view, Dense{}, Full{});
    for (index_t i = 0; i < p.total(); ++i)
      for (index_t d = 0; d < 12; ++d) {
        const index_t s = i == 0 ? 0 : 1;
        float low = infinity, high = -infinity;
        for (index_t t = 0; t < 200; ++t) {
          low = std::min(low, p.value(s, 0, t)[d]);
          high = std::max(high, p.value(s, 0, t)[d]);
        }
        for (index_t head = 0; head < 4; ++head) {
          const float x = r.o[at((i * 4 + head) * 12 + d)];
          CHECK((x >= low - 1e-5f && x <= high + 1e-5f));
        }
      }
    Problem<float> constant = p;
    for (float& x : constant.values) x = 3.7f;
    for (const float x : run(cpu, constant, DenseCache<float>(constant).view).o) CHECK(x == Approx(3.7f).epsilon(1e-6));
  });
}

TEST_CASE("Dense: the order of keys does not matter beyond 1e-5") {
  Problem<float> p(1, 3, 16, 12, {300});
  Problem<float> shuffled = p;
  std::vector<index_t> order(300);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(9));
  for (index_t t = 0; t < 300; ++t) {
    std::copy_n(p.key(0, 0, order[at(t)]), 16, shuffled.key(0, 0, t));
    std::copy_n(p.value(0, 0, order[at(t)]), 12, shuffled.value(0, 0, t));
  }
  on_every_path([&](Cpu& cpu) {
    const Result a = run(cpu, p, DenseCache<float>(p).view), b = run(cpu, shuffled, DenseCache<float>(shuffled).view);
    CHECK(distance(a, b) < 1e-5);
    for (std::size_t i = 0; i < a.lse.size(); ++i) CHECK(a.lse[i] == Approx(b.lse[i]).margin(1e-5));
  });
}

TEST_CASE("Dense: a constant added to all logits shifts lse and nothing else; lse is a natural logarithm") {
  Problem<float> p(1, 3, 17, 12, {300});
  for (index_t t = 0; t < 300; ++t) p.key(0, 0, t)[16] = 1;
  Problem<float> shifted = p;
  for (index_t head = 0; head < 3; ++head) {
    p.query(0, head)[16] = 0;
    shifted.query(0, head)[16] = 8;
  }
  on_every_path([&](Cpu& cpu) {
    const Dense a{.scale = 0.25f};
    const Result r = run(cpu, p, DenseCache<float>(p).view, a),
                 s = run(cpu, shifted, DenseCache<float>(shifted).view, a);
    CHECK(distance(r, s) < 1e-5);
    for (std::size_t i = 0; i < r.lse.size(); ++i) CHECK(s.lse[i] - r.lse[i] == Approx(2.0f).margin(1e-5));

    Problem<float> equal = p;
    for (float& x : equal.keys) x = 0;
    for (const float x : run(cpu, equal, DenseCache<float>(equal).view).lse)
      CHECK(x == Approx(std::log(300.0)).epsilon(1e-6));
  });
}

TEST_CASE("Dense: any chunk length gives the same to 2e-6, and 0 means the default, bit by bit") {
  const Problem<float> p(2, 3, 32, 16, {1500, 1, 70}, {1, 1, 20});
  const DenseCache<float> cache(p);
  on_every_path([&](Cpu& cpu) {
    const Result whole = run(cpu, p, cache.view, Dense{.chunk = 1 << 20});
    for (const index_t chunk : {1, 7, 63, 64, 65, 500, 1499}) {
      const Result r = run(cpu, p, cache.view, Dense{.chunk = chunk});
      CHECK(distance(r, whole) < 2e-6);
      for (std::size_t i = 0; i < r.lse.size(); ++i) CHECK(r.lse[i] == Approx(whole.lse[i]).epsilon(2e-6));
    }
    CHECK(run(cpu, p, cache.view).same_bits(run(cpu, p, cache.view, Dense{.chunk = Dense::default_chunk})));
  });
}

TEST_CASE("Dense: a sequence's result does not depend on the rest of the batch, bit by bit") {
  const Problem<float> batch(2, 3, 24, 16, {700, 0, 64, 1300}, {1, 1, 20, 2});
  const Result all = [&] {
    Cpu cpu;
    return run(cpu, batch, DenseCache<float>(batch).view, Dense{.chunk = 256});
  }();
  for (index_t s = 0; s < 4; ++s) {
    Problem<float> one(2, 3, 24, 16, {batch.lengths[at(s)]}, {batch.queries[at(s)]});
    if (one.rows() > 0) {
      std::copy_n(batch.key(s, 0, 0), one.keys.size(), one.keys.data());
      std::copy_n(batch.value(s, 0, 0), one.values.size(), one.values.data());
    }
    const index_t first = batch.indptr[at(s)] * 6;
    std::copy_n(batch.q.data() + first * 24, one.q.size(), one.q.data());
    Cpu cpu;
    const Result alone = run(cpu, one, DenseCache<float>(one).view, Dense{.chunk = 256});
    CHECK(std::memcmp(alone.o.data(), all.o.data() + first * 16, alone.o.size() * 4) == 0);
    CHECK(std::memcmp(alone.lse.data(), all.lse.data() + first, alone.lse.size() * 4) == 0);
  }
}

TEST_CASE("Dense: a query's result does not depend on the queries after it, bit by bit") {
  // Prefill of 90 tokens against prefill of the first 35 of them.
  const Problem<float> p(2, 2, 24, 16, {90}, {90});
  Problem<float> first(2, 2, 24, 16, {35}, {35});
  for (index_t h = 0; h < 2; ++h) {
    std::copy_n(p.key(0, h, 0), 35 * 24, first.key(0, h, 0));
    std::copy_n(p.value(0, h, 0), 35 * 16, first.value(0, h, 0));
  }
  std::copy_n(p.q.data(), first.q.size(), first.q.data());
  on_every_path([&](Cpu& cpu) {
    const Result a = run(cpu, p, DenseCache<float>(p).view), b = run(cpu, first, DenseCache<float>(first).view);
    CHECK(std::memcmp(a.o.data(), b.o.data(), b.o.size() * 4) == 0);
    CHECK(std::memcmp(a.lse.data(), b.lse.data(), b.lse.size() * 4) == 0);
  });
}

TEST_CASE("Dense: threads change no bit", "[threads]") {
  for (const Problem<float>& p :
       {Problem<float>(2, 3, 24, 16, {5000}), Problem<float>(1, 3, 24, 16, {2500, 0, 3}, {2, 1, 1}),
        Problem<float>(2, 1, 24, 16, {400}, {399}), Problem<float>(1, 2, 24, 16, {3000}, {70})}) {
    const DenseCache<float> cache(p);
    const std::vector<float> sinks(at(p.query_heads()), 0.5f);
    for (const Dense& a : {Dense{}, Dense{.chunk = 96}}) {
      Cpu serial;
      const Result expected = run(serial, p, cache.view, a, Causal{}, sinks);
      const Result window = run(serial, p, cache.view, a, Window{700});
      for (const int count : {2, 3, 8}) {
        Cpu cpu(real_threads(count));
        for (int repeat = 0; repeat < 3; ++repeat) {
          CHECK(run(cpu, p, cache.view, a, Causal{}, sinks).same_bits(expected));
          CHECK(run(cpu, p, cache.view, a, Window{700}).same_bits(window));
        }
      }
    }
  }
}

TEST_CASE("Dense: NaN and infinity reach the heads and queries that see them, and nothing else") {
  const Problem<float> clean(3, 2, 24, 16, {150, 150}, {1, 100});
  on_every_path([&](Cpu& cpu) {
    const Result expected = run(cpu, clean, DenseCache<float>(clean).view);
    for (const bool in_key : {true, false})
      for (const float bad : {quiet_nan, infinity}) {
        // In head 1 of both sequences, at token 100: the second sequence's query i stands at token 50 + i.
        Problem<float> p = clean;
        for (index_t s = 0; s < 2; ++s) (in_key ? p.key(s, 1, 100) : p.value(s, 1, 100))[7] = bad;
        const Result r = run(cpu, p, DenseCache<float>(p).view);
        for (index_t i = 0; i < 101; ++i)
          for (index_t head = 0; head < 6; ++head) {
            const bool sees = head / 2 == 1 && (i == 0 || 50 + (i - 1) >= 100);
            const index_t row = i * 6 + head;
            if (!sees) {
              CHECK(r.lse[at(row)] == expected.lse[at(row)]);
              CHECK(std::memcmp(r.o.data() + row * 16, expected.o.data() + row * 16, 16 * 4) == 0);
            } else if (in_key && std::isnan(bad)) {
              CHECK(std::isnan(r.lse[at(row)]));
              CHECK(std::isnan(r.o[at(row * 16)]));
            } else if (!in_key) {
              CHECK(!std::isfinite(r.o[at(row * 16 + 7)]));
              CHECK(std::memcmp(r.o.data() + row * 16, expected.o.data() + row * 16, 7 * 4) == 0);
            }
          }
      }
    // All keys of a head NaN: NaN, not "nothing to see".
    Problem<float> p = clean;
    for (index_t t = 0; t < 150; ++t) std::fill_n(p.key(0, 2, t), 24, quiet_nan);
    const Result r = run(cpu, p, DenseCache<float>(p).view);
    CHECK((std::isnan(r.lse[4]) && std::isnan(r.lse[5]) && std::isnan(r.o[4 * 16])));
    CHECK(r.lse[3] == expected.lse[3]);
  });
}

/// Everything but what would be seen through it is allowed: asked pair by pair, with a range that is wider than needed.
struct Checkers {
  bool allowed(index_t, index_t query, index_t key, index_t, index_t) const { return (query + key) % 2 == 0; }
  KeyRange range(index_t, index_t, index_t, index_t keys) const { return {-100, keys + 100}; }
};

TEST_CASE("Dense: a mask of the user's own, and keys under it that are NaN") {
  Problem<float> p(1, 2, 24, 16, {150, 129}, {1, 100});
  const Exact expected = exact(p, Dense{}, Checkers{});
  for (index_t t = 1; t < 150; t += 2) {
    p.key(0, 0, t)[3] = quiet_nan;
    p.value(0, 0, t)[3] = quiet_nan;
  }
  on_every_path([&](Cpu& cpu) {
    const Result r = run(cpu, p, DenseCache<float>(p).view, Dense{}, Checkers{});
    CHECK(error(r, expected) < Dense::error_bound);
    CHECK(lse_error(r, expected) < 1e-5);
  });
}

TEST_CASE("Dense: the second call allocates nothing, and caller memory of the high water mark suffices") {
  const Problem<bf16> p(2, 3, 24, 16, {1500, 0, 64}, {1, 1, 40});
  const PagedCache<bf16> cache(p, 16);
  Result r{std::vector<float>(at(p.total() * 6 * 16)), std::vector<float>(at(p.total() * 6))};
  const auto call = [&](Cpu& cpu) {
    attend(cpu, Dense{}, p.views(), cache.view, View<float, 3>(r.o.data(), p.total(), 6, 16),
           View<float, 2>(r.lse.data(), p.total(), 6));
  };
  check_workspace(r, call);
}

}  // namespace
}  // namespace attention_test
