// What an engine needs of shared-prefix attention on a device: the same bits whatever the order and the pages, one
// graph for the plans of all steps, no allocation after the first call, and faults found before anything is written.

#include "catch_compat.hpp"
#include "cuda/graph.cuh"
#include "device_forest.cuh"

using namespace decant;
using namespace decant::attention;
using catch_compat::contains;

namespace attention_test {
namespace {

/// The forest with segments and requests in another order.
template <class T>
Forest<T> reordered(const Forest<T>& f, const std::vector<index_t>& segments, const std::vector<index_t>& requests) {
  Forest<T> g = f;
  std::vector<index_t> place(segments.size());
  for (std::size_t i = 0; i < segments.size(); ++i) place[at(segments[i])] = static_cast<index_t>(i);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    g.segments[i] = f.segments[at(segments[i])];
    if (g.segments[i].parent >= 0) g.segments[i].parent = place[at(g.segments[i].parent)];
  }
  const index_t row = f.flat.query_heads() * f.flat.key_dim;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const index_t leaf = f.leaves[at(requests[r])];
    g.leaves[r] = leaf < 0 ? -1 : place[at(leaf)];
    std::copy_n(f.flat.q.data() + requests[r] * row, row, g.flat.q.data() + static_cast<index_t>(r) * row);
  }
  return g;
}

template <class T>
void check_order() {
  // Depth 3; 24 requests on leaf 2 are more than one tile.
  std::vector<index_t> leaves{1, 4, 5, 6, 3, 0, -1};
  leaves.insert(leaves.end(), 24, 2);
  const Forest<T> f = make_forest<T>(2, 3, 20, 12, {-1, 0, 0, -1, 1, 1, 2}, {90, 33, 40, 50, 7, 1, 64}, leaves, {}, 2);
  Context c;
  const Result r = run_cascade(c.cuda, plan_of(f), f.flat, DenseCache<T>(f.stored));
  CHECK(error(r, exact(f.flat)) <= Dense::error_bound);
  CHECK(run_cascade(c.cuda, plan_of(f), f.flat, DenseCache<T>(f.stored, Layout::nhd)).same_bits(r));
  CHECK(run_cascade(c.cuda, plan_of(f), f.flat, RaggedCache<T>(f.stored)).same_bits(r));
  for (const index_t page_size : {1, 16})
    CHECK(run_cascade(c.cuda, plan_of(f), f.flat, PagedCache<T>(f.stored, page_size)).same_bits(r));

  std::vector<index_t> requests(leaves.size());
  std::iota(requests.begin(), requests.end(), 0);
  std::shuffle(requests.begin(), requests.end(), std::mt19937(4));
  const Forest<T> g = reordered(f, {3, 0, 2, 6, 1, 5, 4}, requests);
  const Result other = run_cascade(c.cuda, plan_of(g), g.flat, DenseCache<T>(g.stored));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CHECK(std::memcmp(other.o.data() + i * 72, r.o.data() + at(requests[i]) * 72, 72 * sizeof(float)) == 0);
    CHECK(std::memcmp(other.lse.data() + i * 6, r.lse.data() + at(requests[i]) * 6, 6 * sizeof(float)) == 0);
  }
}

TEST_CASE("Cuda Cascade: the order of siblings and requests, layouts and pages change no bit") {
  check_order<float>();
  check_order<bf16>();
}

template <class T>
void check_flat() {
  const Dense a{.chunk = 32};
  const Forest<T> f = make_forest<T>(1, 3, 20, 12, {-1, -1, -1}, {150, 1, 64}, {0, 1, 2}, {5, 1, 2}, 6);
  Context c;
  const Result r = run_cascade(c.cuda, plan_of(f), f.flat, DenseCache<T>(f.stored), a, Causal{}, {}, true);
  CHECK(run(c.cuda, f.flat, DenseCache<T>(f.flat), a, Causal{}, {}, true).same_bits(r));
  // With chunks of one length, a request does not depend on how many others share its keys.
  std::vector<index_t> many(30, 1);
  many[7] = 2;
  const Forest<T> crowd = make_forest<T>(1, 3, 20, 12, {-1, 0, 0}, {90, 20, 33}, many, {}, 8);
  const Result all = run_cascade(c.cuda, plan_of(crowd), crowd.flat, DenseCache<T>(crowd.stored), a);
  for (const index_t i : {3, 7, 29}) {
    Forest<T> one = make_forest<T>(1, 3, 20, 12, {-1, 0, 0}, {90, 20, 33}, {many[at(i)]}, {}, 8);
    std::copy_n(crowd.flat.q.data() + i * 60, 60, one.flat.q.data());
    const Result alone = run_cascade(c.cuda, plan_of(one), one.flat, DenseCache<T>(one.stored), a);
    CHECK(std::memcmp(alone.o.data(), all.o.data() + i * 36, 36 * sizeof(float)) == 0);
    CHECK(std::memcmp(alone.lse.data(), all.lse.data() + i * 3, 3 * sizeof(float)) == 0);
  }
}

TEST_CASE("Cuda Cascade: without shared keys it is Dense, and alone a request gets the bits that it gets in a crowd") {
  check_flat<float>();
  check_flat<bf16>();
}

template <class T>
void check_replay(bool offsets) {
  // Two steps of a batch of up to five requests over the same pool.
  const std::vector<index_t> queries{2, 1, 1, 3, 1};
  const auto step = [&](const std::vector<index_t>& parents, const std::vector<index_t>& lengths,
                        const std::vector<index_t>& leaves) {
    return make_forest<T>(1, 3, 20, 12, parents, lengths, leaves, offsets ? queries : std::vector<index_t>{}, 3);
  };
  const std::vector<Forest<T>> steps{step({-1, 0, 0, 0}, {70, 9, 0, 33}, {1, 2, 3, 3, 0}),
                                     step({-1, -1, 1, 0}, {5, 64, 65, 1}, {0, 2, 1, 3, 3}),
                                     step({-1}, {0}, {-1, -1, 0, -1, -1})};
  CascadeRoom room{5, 4, 4, 12, 200, 200, 3};
  PlanMemory plan(room);
  Context c;
  const index_t capacity = 100, most = 4;
  const DeviceBuffer<T> keys(std::vector<T>(at(most * capacity * 20), T(quiet_nan)));
  const DeviceBuffer<T> values(std::vector<T>(at(most * capacity * 12), T(quiet_nan)));
  DeviceBuffer<std::int32_t> lengths(most);
  const kv::DenseKV<const T> cache{View<const T, 4>(keys.data(), most, 1, capacity, 20),
                                   View<const T, 4>(values.data(), most, 1, capacity, 12), lengths.view(most)};
  DeviceCall<> call(steps[0].flat);
  const auto load = [&](const Forest<T>& f) {
    std::vector<std::int32_t> n(at(most), 0);
    for (index_t s = 0; s < f.stored.sequences(); ++s) {
      n[at(s)] = static_cast<std::int32_t>(f.stored.lengths[at(s)]);
      if (n[at(s)] == 0) continue;
      const auto copy = [&](const T* from, T* to, index_t count) {
        cuda_test::must(cudaMemcpy(to, from, at(count) * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
      };
      copy(f.stored.key(s, 0, 0), keys.data() + s * capacity * 20, n[at(s)] * 20);
      copy(f.stored.value(s, 0, 0), values.data() + s * capacity * 12, n[at(s)] * 12);
    }
    lengths.upload(n);
    call.q.upload(f.flat.q);
    plan.send(c.cuda, plan_of(f));
  };
  const auto enqueue = [&] {
    attend(c.cuda, Dense{}, plan.view(), call.queries(offsets), cache, call.out(), call.lses());
  };
  const auto right = [&](const Forest<T>& f) {
    c.cuda.check();
    const Exact expected = exact(f.flat);
    CHECK((expected.lse[0] == -static_cast<double>(infinity) || error(call.result(), expected) <= Dense::error_bound));
    CHECK(lse_error(call.result(), expected) <= 2e-5);
  };
  load(steps[0]);
  enqueue();
  right(steps[0]);
  const std::size_t used = c.cuda.workspace().high_water();
  const cuda_test::Graph graph(c.stream, enqueue);  // capture refuses allocations and waiting
  for (const std::size_t i : {1, 2, 0}) {
    load(steps[i]);
    graph.launch(c.stream);
    right(steps[i]);
  }
  CHECK(c.cuda.workspace().high_water() == used);
}

TEST_CASE("Cuda Cascade: a captured call is replayed with other plans, keys and queries") {
  check_replay<float>(false);
  check_replay<bf16>(false);
  check_replay<bf16>(true);
}

TEST_CASE("Cuda Cascade: more requests in the room than in the plan") {
  const Forest<float> f = make_forest(1, 2, 20, 12, {-1, 0}, {40, 9}, {1, 0, -1}, {}, 4);
  const Forest<float> two = make_forest(1, 2, 20, 12, {-1, 0}, {40, 9}, {1, 0}, {}, 4);
  Context c;
  PlanMemory memory(cascade_room(plan_of(f)));
  memory.send(c.cuda, plan_of(two));
  const DeviceCall<> call(f.flat);
  const OnDevice<DenseCache<float>> cache{DenseCache<float>(f.stored)};
  attend(c.cuda, Dense{}, memory.view(), call.rows(), cache.view, call.out(), call.lses());
  c.cuda.check();
  CHECK(error(call.result(), exact(f.flat)) <= Dense::error_bound);
  CHECK(call.result().lse[4] == -infinity);
}

TEST_CASE("Cuda Cascade: faults that only the device sees") {
  const Forest<float> f = make_forest(1, 2, 20, 12, {-1, 0, 0}, {40, 9, 12}, {1, 2}, {1, 2}, 4);
  const CascadePlan good = plan_of(f);
  const DeviceCall<> call(f.flat);
  const OnDevice<DenseCache<float>> cache{DenseCache<float>(f.stored)};
  Context c;
  PlanMemory memory(cascade_room(good));
  const auto refused = [&](const auto& queries, const auto& keys, const auto& mask, const char* argument) {
    attend(c.cuda, Dense{}, memory.view(), queries, keys, call.out(), call.lses(), mask);
    CHECK_THROWS_WITH(c.cuda.check(), contains(argument));
    for (const float x : call.result().o) CHECK(std::isnan(x));
  };
  const Queries<float> queries = call.queries(true);
  memory.words.upload(std::vector<std::int32_t>(memory.staging.size(), 0));
  refused(queries, cache.view, Causal{}, "`plan`");  // never sent

  memory.send(c.cuda, good);
  kv::DenseKV<const float> fewer = cache.view;
  const DeviceBuffer<std::int32_t> shorter(std::vector<std::int32_t>{40, 3, 12});
  const DeviceBuffer<std::int32_t> negative(std::vector<std::int32_t>{-1, 9, 12});
  fewer.lengths = shorter.view(3);
  refused(queries, fewer, Causal{}, "`plan`");
  fewer.lengths = negative.view(3);
  refused(queries, fewer, Causal{}, "`lengths`");
  kv::DenseKV<const float> two{cache.view.keys.slice(0, 0, 2), cache.view.values.slice(0, 0, 2),
                               cache.lengths.view(2)};
  refused(queries, two, Causal{}, "`plan`");

  const DeviceBuffer<std::int32_t> indptr(std::vector<std::int32_t>{0, 2, 1});
  refused(Queries<float>{call.rows(), indptr.view(3)}, cache.view, Causal{}, "`q.indptr`");
  const DeviceBuffer<std::uint8_t> bits(std::vector<std::uint8_t>(5, 0xff));
  const DeviceBuffer<index_t> offsets(std::vector<index_t>{0, 3, 5});
  refused(queries, cache.view, BitMask{bits.view(5), offsets.view(3)}, "BitMask");

  const PagedCache<float> paged(f.stored, 16);
  OnDevice<PagedCache<float>> pages(paged);
  std::vector<std::int32_t> wrong = paged.indices;
  wrong[1] = 1 << 20;
  pages.indices.upload(wrong);
  refused(queries, pages.view, Causal{}, "`indices`");

  attend(c.cuda, Dense{}, memory.view(), queries, cache.view, call.out(), call.lses());
  c.cuda.check();
  CHECK(error(call.result(), exact(f.flat)) <= Dense::error_bound);
}

TEST_CASE("Cuda Cascade: what the host sees is refused at once") {
  const Forest<float> f = make_forest(1, 2, 20, 12, {-1, 0, 0}, {40, 9, 12}, {1, 2}, {}, 4);
  const CascadePlan p = plan_of(f);
  const CascadeRoom enough = cascade_room(p);
  CHECK(enough == CascadeRoom{2, 3, 3, 4, 61, 52, 2});
  Context c;
  const auto no_room = [&](CascadeRoom room, const char* argument) {
    PlanMemory memory(room);
    CHECK_THROWS_WITH(memory.send(c.cuda, p), contains(argument));
  };
  for (index_t CascadeRoom::*field : {&CascadeRoom::requests, &CascadeRoom::segments, &CascadeRoom::pieces,
                                      &CascadeRoom::states, &CascadeRoom::tokens, &CascadeRoom::longest,
                                      &CascadeRoom::deepest}) {
    CascadeRoom room = enough;
    --(room.*field);
    no_room(room, "`plan.");
  }
  PlanMemory memory(enough);
  CHECK_THROWS_WITH(upload(c.cuda, p, enough, View<std::int32_t, 1>(memory.staging.data(), 3), memory.words.view(3)),
                    contains("`staging`"));
  CHECK_THROWS_WITH(cascade_words(CascadeRoom{-1}), contains("`requests`"));
  memory.send(c.cuda, p);
  const DeviceCall<> call(f.flat);
  const OnDevice<DenseCache<float>> cache{DenseCache<float>(f.stored)};
  const auto refused = [&](const Dense& a, const DeviceCascade& plan, const char* argument) {
    CHECK_THROWS_WITH(attend(c.cuda, a, plan, call.rows(), cache.view, call.out(), call.lses()), contains(argument));
  };
  refused(Dense{.scale = -1}, memory.view(), "`scale`");
  refused(Dense{}, DeviceCascade{enough, nullptr}, "`plan`");
  refused(Dense{}, DeviceCascade{enough, memory.words.data() + 1}, "`plan`");
  CascadeRoom three = enough;
  three.requests = 3;
  refused(Dense{}, DeviceCascade{three, memory.words.data()}, "`q`");
  three.states = -1;
  refused(Dense{}, DeviceCascade{three, memory.words.data()}, "`states`");
}

}  // namespace
}  // namespace attention_test
