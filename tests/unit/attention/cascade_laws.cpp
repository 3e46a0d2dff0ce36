// What shared-prefix attention promises beside its numbers: no dependence on threads or on the order of requests and
// segments, every row read once, no allocation in a second call, any cache view, and errors that name the argument.

#include "allocations.hpp"
#include "catch_compat.hpp"
#include "forest.hpp"

using namespace decant;
using namespace decant::attention;

namespace their_engine {

/// A cache whose rows are handles, and which counts how often it is asked for one.
struct Row {
  const float* data;
};
inline void load_row(const Row& row, index_t count, float* out) {
  for (index_t i = 0; i < count; ++i) out[i] = row.data[i];
}
struct CountingCache {
  kv::DenseKV<const float> rows;
  std::atomic<long>* asked;

  index_t sequences() const { return rows.sequences(); }
  index_t kv_heads() const { return rows.kv_heads(); }
  index_t key_dim() const { return rows.key_dim(); }
  index_t value_dim() const { return rows.value_dim(); }
  index_t length(index_t s, index_t h) const { return rows.length(s, h); }
  Row key(index_t s, index_t h, index_t t) const {
    ++*asked;
    return {rows.key(s, h, t)};
  }
  Row value(index_t s, index_t h, index_t t) const {
    ++*asked;
    return {rows.value(s, h, t)};
  }
  index_t run(index_t, index_t, index_t) const { return 1; }
  index_t key_stride() const { return 0; }
  index_t value_stride() const { return 0; }
};
inline void validate(const CountingCache&) {}

}  // namespace their_engine

namespace attention_test {

namespace {

TEST_CASE("Cascade: threads change no bit", "[threads]") {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const Forest<float> f = random_forest(500 + seed, 400, 3);
    const DenseCache<float> cache(f.stored);
    const Dense a{.chunk = 96};
    const CascadePlan p = plan(Cascade{.piece = 150}, f.segment_view(), f.leaf_view());
    Cpu serial;
    const Result expected = run_cascade(serial, p, f.flat, cache.view, a);
    for (const int count : {2, 3, 8}) {
      Cpu cpu(real_threads(count));
      CHECK(run_cascade(cpu, p, f.flat, cache.view, a).same_bits(expected));
    }
  }
}

TEST_CASE("Cascade: the order of requests and of sibling segments changes no bit") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    const Forest<float> f = random_forest(600 + seed, 80, 1);
    const DenseCache<float> cache(f.stored);
    Cpu cpu;
    const Result expected =
        run_cascade(cpu, plan(Cascade{}, f.segment_view(), f.leaf_view()), f.flat, cache.view);
    std::mt19937 random(seed);
    // Segments in another order that still has parents first, requests in any order.
    std::vector<index_t> order, place(f.segments.size(), -1);
    while (order.size() < f.segments.size()) {
      const auto s = static_cast<index_t>(random() % f.segments.size());
      const index_t parent = f.segments[at(s)].parent;
      if (place[at(s)] >= 0 || (parent >= 0 && place[at(parent)] < 0)) continue;
      place[at(s)] = static_cast<index_t>(order.size());
      order.push_back(s);
    }
    std::vector<Segment> segments;
    for (const index_t s : order) {
      segments.push_back(f.segments[at(s)]);
      if (segments.back().parent >= 0) segments.back().parent = place[at(segments.back().parent)];
    }
    std::vector<index_t> requests(f.leaves.size()), leaves;
    std::iota(requests.begin(), requests.end(), 0);
    std::shuffle(requests.begin(), requests.end(), random);
    Problem<float> flat = f.flat;
    for (std::size_t r = 0; r < requests.size(); ++r) {
      const index_t leaf = f.leaves[at(requests[r])];
      leaves.push_back(leaf < 0 ? -1 : place[at(leaf)]);
      std::copy_n(f.flat.q.data() + requests[r] * 6 * 20, 6 * 20, flat.q.data() + r * 6 * 20);
    }
    const CascadePlan p = plan(Cascade{}, View<const Segment, 1>(segments), View<const index_t, 1>(leaves));
    const Result r = run_cascade(cpu, p, flat, cache.view);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CHECK(std::memcmp(r.o.data() + i * 72, expected.o.data() + requests[i] * 72, 72 * sizeof(float)) == 0);
      CHECK(std::memcmp(r.lse.data() + i * 6, expected.lse.data() + requests[i] * 6, 6 * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("Cascade: each row of each head is read once, whoever shares it; and a cache of the user's own") {
  // At most 9 requests of 6 rows per segment and head: one tile.
  const Forest<float> f = make_forest(2, 6, 20, 12, {-1, 0, 0, 1, 1, -1, 2}, {200, 70, 1, 30, 0, 64, 5},
                                      {3, 3, 4, 2, 0, 5, 5, 6, -1}, {}, 3);
  std::atomic<long> asked{0};
  const DenseCache<float> cache(f.stored);
  const their_engine::CountingCache counting{cache.view, &asked};
  const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
  Cpu cpu;
  const Result r = run_cascade(cpu, p, f.flat, counting);
  CHECK(p.tokens() == 200 + 70 + 1 + 30 + 64 + 5);
  CHECK(asked == 2 * 2 * p.tokens());
  CHECK(r.same_bits(run_cascade(cpu, p, f.flat, cache.view)));
  CHECK(r.same_bits(run_cascade(cpu, p, f.flat, DenseCache<float>(f.stored, Layout::nhd).view)));
  CHECK(r.same_bits(run_cascade(cpu, p, f.flat, RaggedCache<float>(f.stored).view)));
  for (const index_t page_size : {1, 7, 16})
    CHECK(r.same_bits(run_cascade(cpu, p, f.flat, PagedCache<float>(f.stored, page_size).view)));
  CHECK(error(r, exact(f.flat)) <= Dense::error_bound);
}

TEST_CASE("Cascade: heads of different lengths, each head's keys its own, causal masks included") {
  const Forest<float> f = make_forest(3, 2, 16, 8, {-1, 0, 0}, {90, 20, 30}, {1, 2, 0}, {2, 1, 3}, 4);
  RaggedCache<float> ragged(f.stored);
  const index_t kept[3][3] = {{90, 0, 40}, {20, 7, 0}, {1, 30, 30}};  // of each segment, by head
  REQUIRE(f.segments[1].first > 0);
  for (index_t s = 0; s < 3; ++s)
    for (index_t h = 0; h < 3; ++h)
      ragged.lengths[at(s * 3 + h)] = static_cast<std::int32_t>(f.segments[at(s)].first + kept[s][h]);
  ragged.lengths[at(1 * 3 + 2)] = 0;  // ends before the segment begins
  std::vector<Segment> segments = f.segments;
  for (Segment& s : segments) s.last = kv::max_length(ragged.view, s.sequence);
  Cpu cpu;
  const CascadePlan p = plan(Cascade{.piece = 64}, View<const Segment, 1>(segments), f.leaf_view());
  const Result r = run_cascade(cpu, p, f.flat, ragged.view);
  for (index_t h = 0; h < 3; ++h) {
    // The same with this head alone.
    std::vector<index_t> lengths;
    for (index_t i = 0; i < 3; ++i) {
      lengths.push_back(0);
      for (const index_t s : f.path(i)) lengths.back() += kept[s][h];
    }
    Problem<float> one(1, 2, 16, 8, lengths, {2, 1, 3});
    for (index_t i = 0; i < 3; ++i) {
      index_t t = 0;
      for (const index_t s : f.path(i))
        for (index_t k = 0; k < kept[s][h]; ++k, ++t) {
          std::copy_n(f.stored.key(s, h, f.segments[at(s)].first + k), 16, one.key(i, 0, t));
          std::copy_n(f.stored.value(s, h, f.segments[at(s)].first + k), 8, one.value(i, 0, t));
        }
    }
    Result mine{std::vector<float>(at(6 * 2 * 8)), std::vector<float>(at(6 * 2))};
    for (index_t i = 0; i < 6; ++i) {
      std::copy_n(f.flat.q.data() + (i * 6 + h * 2) * 16, 2 * 16, one.q.data() + i * 2 * 16);
      std::copy_n(r.o.data() + (i * 6 + h * 2) * 8, 2 * 8, mine.o.data() + i * 2 * 8);
      std::copy_n(r.lse.data() + i * 6 + h * 2, 2, mine.lse.data() + i * 2);
    }
    const Exact expected = exact(one);
    CHECK(error(mine, expected) <= Dense::error_bound);
    CHECK(lse_error(mine, expected) <= 1e-5);
  }
}

TEST_CASE("Cascade: what a policy is shown is a cache view whose runs end with the piece and with the page") {
  const Problem<float> p(2, 1, 8, 8, {40, 30});
  const PagedCache<float> paged(p, 16);
  const attention::detail::CascadePiece pieces[] = {{0, 0, 10, 29}, {1, 1, 0, 30}};
  const attention::detail::PieceKV<kv::PagedKV<const float>> view{&paged.view, pieces, 2, 2};
  static_assert(kv::PlainCacheView<attention::detail::PieceKV<kv::PagedKV<const float>>>);
  CHECK((view.sequences() == 4 && view.kv_heads() == 1 && view.length(1, 0) == 19 && view.length(3, 0) == 30));
  CHECK((view.run(0, 0, 0) == 6 && view.run(1, 0, 6) == 13 && view.run(1, 0, 18) == 1 && view.run(2, 0, 20) == 10));
  CHECK(view.key(1, 0, 3) == paged.view.key(0, 1, 13));
  CHECK(view.value(2, 0, 3) == paged.view.value(1, 0, 3));
}

TEST_CASE("Cascade: NaN reaches the requests and heads that see it, and nobody else by a bit") {
  Forest<float> f = make_forest(2, 3, 20, 12, {-1, 0, 0, -1}, {100, 30, 40, 20}, {1, 2, 0, 3}, {});
  const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
  Cpu cpu;
  const Result clean = run_cascade(cpu, p, f.flat, DenseCache<float>(f.stored).view);
  for (const index_t segment : {0, 2}) {
    Problem<float> bad = f.stored;
    bad.key(segment, 1, f.segments[at(segment)].first + 5)[3] = quiet_nan;
    const Result r = run_cascade(cpu, p, f.flat, DenseCache<float>(bad).view);
    for (index_t i = 0; i < 4; ++i)
      for (index_t head = 0; head < 6; ++head) {
        const index_t row = i * 6 + head;
        if (head >= 3 && (segment == 0 ? i < 3 : i == 1)) {
          CHECK((std::isnan(r.lse[at(row)]) && std::isnan(r.o[at(row * 12)])));
        } else {
          CHECK(std::memcmp(&r.o[at(row * 12)], &clean.o[at(row * 12)], 12 * sizeof(float)) == 0);
        }
      }
  }
}

TEST_CASE("Cascade: the second call allocates nothing, caller memory of the high water mark suffices") {
  const Forest<float> f = random_forest(700, 300, 2);
  const DenseCache<float> cache(f.stored);
  const Dense a;
  const CascadePlan p = plan(Cascade{.piece = 64}, f.segment_view(), f.leaf_view());
  Result r{std::vector<float>(at(f.flat.total() * 6 * 12)), std::vector<float>(at(f.flat.total() * 6))};
  const auto call = [&](Cpu& cpu) {
    attend(cpu, a, p, f.flat.views(), cache.view, View<float, 3>(r.o.data(), f.flat.total(), 6, 12),
           View<float, 2>(r.lse.data(), f.flat.total(), 6));
  };
  check_workspace(r, call);
}

TEST_CASE("Cascade: a plan is a value, and nothing to do is no error") {
  const Forest<float> f = random_forest(800, 50, 1);
  const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
  CascadePlan copy = p;
  CHECK(copy == p);
  CHECK(copy != CascadePlan{});
  const CascadePlan moved = std::move(copy);
  CHECK(moved == p);
  CHECK(p.segments().extent(0) == static_cast<index_t>(f.segments.size()));
  CHECK(Cascade{} == Cascade{64, 8192});

  Cpu cpu;
  const Problem<float> none(2, 3, 20, 12, {}, {});
  const CascadePlan empty = plan(Cascade{}, View<const Segment, 1>{}, View<const index_t, 1>{});
  CHECK(empty == CascadePlan{});
  CHECK(run_cascade(cpu, CascadePlan{}, none, DenseCache<float>(none).view).o.empty());
  // Requests without keys, and segments without requests, which may name what the cache does not have.
  const std::vector<Segment> unused{{-1, 50, 3, 9}};
  const std::vector<index_t> leaves{-1, -1};
  const CascadePlan nobody = plan(Cascade{}, View<const Segment, 1>(unused), View<const index_t, 1>(leaves));
  CHECK((nobody.tokens() == 0 && nobody.states() == 0));
  const Problem<float> two(2, 3, 20, 12, {0, 0}, {2, 1});
  const Result r = run_cascade(cpu, nobody, two, DenseCache<float>(none).view);
  for (const float x : r.o) CHECK(x == 0);
  for (const float x : r.lse) CHECK(x == -infinity);
  const std::vector<float> sinks(6, 0.5f);
  for (const float x : run_cascade(cpu, nobody, two, DenseCache<float>(none).view, {}, Causal{}, sinks).lse)
    CHECK(x == 0.5f);
}

TEST_CASE("Cascade: arguments that do not fit are refused by name before anything is written") {
  const Forest<float> f = make_forest(2, 3, 16, 8, {-1, 0, 0}, {40, 5, 9}, {1, 2, 0}, {2, 1, 1});
  const DenseCache<float> cache(f.stored);
  const CascadePlan p = plan(Cascade{}, f.segment_view(), f.leaf_view());
  Result r{std::vector<float>(at(4 * 6 * 8), 7.0f), std::vector<float>(at(4 * 6), 7.0f)};
  const Result before = r;
  const View<float, 3> out(r.o.data(), 4, 6, 8);
  const View<float, 2> lse(r.lse.data(), 4, 6);
  const Queries<float> q = f.flat.views();
  const View<const float, 3> rows = q.rows;
  Cpu cpu;
  const auto refused = [&](const char* argument, const auto& call) {
    INFO(argument);
    CHECK_THROWS_WITH(call(), catch_compat::contains(argument));
    CHECK_THROWS_AS(call(), ArgumentError);
    CHECK(r.same_bits(before));
  };

  // Forests.
  const auto forest_refused = [&](const char* argument, const std::vector<Segment>& segments,
                                  const std::vector<index_t>& leaves) {
    refused(argument,
            [&] { return plan(Cascade{}, View<const Segment, 1>(segments), View<const index_t, 1>(leaves)); });
  };
  constexpr index_t huge = index_t{1} << 62;
  forest_refused("`segments`: expected parents before", {{0, 0, 0, 4}}, {0});
  forest_refused("`segments`: expected parents before", {{1, 0, 0, 4}, {-1, 0, 0, 4}}, {0});
  forest_refused("`segments`: expected parents before", {{-2, 0, 0, 4}}, {0});
  forest_refused("`segments`: expected sequences", {{-1, -1, 0, 4}}, {0});
  forest_refused("`segments`: expected first", {{-1, 0, -1, 4}}, {0});
  forest_refused("`segments`: expected first", {{-1, 0, 5, 4}}, {0});
  forest_refused("`segments`: expected tokens", {{-1, 0, 0, huge}}, {0});
  forest_refused("`leaves`", {{-1, 0, 0, 4}}, {1});
  forest_refused("`leaves`", {{-1, 0, 0, 4}}, {-2});
  refused("`least`", [&] { return plan(Cascade{.least = 0}, f.segment_view(), f.leaf_view()); });
  refused("`piece`", [&] { return plan(Cascade{.piece = 63}, f.segment_view(), f.leaf_view()); });
  PagedCache<float> paged(f.stored, 8);
  paged.indices[1] = 1000;
  refused("`indices`", [&] { return plan(Cascade{}, paged.view); });

  // Plans that do not fit the cache.
  refused("`plan`: expected one of the cache's 2 sequences, got 2", [&] {
    kv::DenseKV<const float> two = cache.view;
    two.keys = two.keys.slice(0, 0, 2);
    two.values = two.values.slice(0, 0, 2);
    two.lengths = two.lengths.slice(0, 0, 2);
    attend(cpu, Dense{}, p, q, two, out, lse);
  });
  std::vector<Segment> longer = f.segments;
  longer[2].last += 3;
  refused("`plan`: expected tokens below", [&] {
    attend(cpu, Dense{}, plan(Cascade{}, View<const Segment, 1>(longer), f.leaf_view()), q, cache.view, out, lse);
  });
  refused("`lengths`", [&] {
    kv::DenseKV<const float> bad = cache.view;
    bad.lengths = bad.lengths.slice(0, 0, 2);
    attend(cpu, Dense{}, p, q, bad, out, lse);
  });

  // Parameters, queries, outputs, sinks, masks.
  refused("`scale`", [&] { attend(cpu, Dense{.scale = -1}, p, q, cache.view, out, lse); });
  const auto asks = [&](const View<const float, 3>& x, const View<const std::int32_t, 1>& indptr) {
    attend(cpu, Dense{}, p, Queries<float>{x, indptr}, cache.view, out, lse);
  };
  refused("multiple of kv_heads = 2, got 5", [&] { asks(rows.slice(1, 0, 5), q.indptr); });
  refused("`q`", [&] { asks(rows.slice(1, 0, 0), q.indptr); });
  refused("`q`: expected 16, got 15", [&] { asks(rows.slice(2, 0, 15), q.indptr); });
  refused("`q`: expected data", [&] { asks(View<const float, 3>(nullptr, 4, 6, 16), q.indptr); });
  const index_t extents[] = {4, 6, 16}, strides[] = {96, 4, 2};
  refused("stride 1", [&] { asks(View<const float, 3>(f.flat.q.data(), extents, strides), q.indptr); });
  refused("one query for each of the plan's 3 requests",
          [&] { attend(cpu, Dense{}, p, rows, cache.view, out, lse); });
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{0, 2, 4}, {0, 2, 3, 4, 4}, {1, 2, 3, 4}, {0, 3, 2, 4}, {0, 2, 3, 5}, {0, 2, 3, 3}})
    refused("`q.indptr`", [&] { asks(rows, View<const std::int32_t, 1>(bad)); });
  for (int d = 0; d < 3; ++d) {
    refused("`out`",
            [&] { attend(cpu, Dense{}, p, q, cache.view, out.slice(d, 0, out.extent(d) - 1), lse); });
    if (d < 2)
      refused("`lse`", [&] { attend(cpu, Dense{}, p, q, cache.view, out, lse.slice(d, 0, lse.extent(d) - 1)); });
  }
  refused("`out`: expected data",
          [&] { attend(cpu, Dense{}, p, q, cache.view, View<float, 3>(nullptr, 4, 6, 8), lse); });
  refused("`lse`: expected data",
          [&] { attend(cpu, Dense{}, p, q, cache.view, out, View<float, 2>(nullptr, 4, 6)); });
  const std::vector<float> sinks(5);
  refused("`sinks`",
          [&] { attend(cpu, Dense{}, p, q, cache.view, out, lse, Causal{}, View<const float, 1>(sinks)); });
  const std::vector<std::uint8_t> bits(12 + 7 + 5 + 5);
  const std::vector<index_t> offsets{0, 12, 19, 23};
  refused("`bits`: expected at least 5 bytes for sequence 2, got 4",
          [&] { attend(cpu, Dense{}, p, q, cache.view, out, lse, BitMask{bits, offsets}); });

  attend(cpu, Dense{}, p, q, cache.view, out, View<float, 2>{});  // lse may be left out
  CHECK(r.lse == before.lse);
  CHECK(r.o != before.o);
}

}  // namespace
}  // namespace attention_test
