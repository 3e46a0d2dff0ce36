// One row per token or two pools, one block or pages, NaN around them: the same bits; as do batches, threads and
// calls; and other policies over the same caches.

#include "catch_compat.hpp"
#include "decant/attention/cascade.hpp"
#include "decant/attention/cascade_plan.hpp"
#include "decant/attention/santa.hpp"
#include "decant/kv/compact.hpp"
#include "decant/kv/write.hpp"
#include "mla_problem.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class T, class W>
void same_in_every_cache(const MlaProblem<T, W>& p) {
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    INFO(name(isa) << " heads " << p.heads);
    const Result expected = run_mla(cpu, p, OneRowCache<T>(p).dense());
    for (const float x : expected.o) REQUIRE(!std::isnan(x));
    CHECK(run_mla(cpu, p, OneRowCache<T>(p, 0, 3).dense()).same_bits(expected));
    CHECK(run_mla(cpu, p, TwoPoolCache<T>(p).dense()).same_bits(expected));
    CHECK(run_mla(cpu, p, TwoPoolCache<T>(p, 0, 3).dense()).same_bits(expected));
    for (const index_t page_size : {1, 7, 64}) {
      CHECK(run_mla(cpu, p, OneRowCache<T>(p, page_size).paged()).same_bits(expected));
      CHECK(run_mla(cpu, p, TwoPoolCache<T>(p, page_size).paged()).same_bits(expected));
    }
  }
}

TEST_CASE("Mla: one row or two pools, blocks or pages: the same bits") {
  same_in_every_cache(MlaProblem<bf16, bf16>(30, {16, 8, 48, 16}, {150, 1, 0, 64}));
  same_in_every_cache(MlaProblem<bf16, bf16>(4, {16, 8, 48, 16}, {150, 1, 0, 64}, {1, 1, 1, 3}));
  same_in_every_cache(MlaProblem<float, float>(25, {10, 3, 21, 7}, {70, 2}));
  same_in_every_cache(MlaProblem<fp16, float>(7, {10, 3, 21, 7}, {70, 2}, {4, 2}));
}

TEST_CASE("kv::latent: compact moves a row once, though values lie in keys") {
  std::vector<float> rows(1 * 20 * 6);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  std::vector<float> expected = rows;
  std::vector<std::int32_t> length{20};
  kv::Kept kept(1, 20);
  for (const index_t t : {1, 2, 3, 5, 8, 13}) {  // most destinations are rows that move, too
    const std::int32_t i = kept.view().counts[0]++;
    kept.view().indices(0, i) = static_cast<std::int32_t>(t);
    std::copy_n(rows.data() + t * 6, 6, expected.data() + i * 6);
  }
  const auto cache = kv::latent(View<float, 3>(rows.data(), 1, 20, 6), View<std::int32_t, 1>(length), 4);
  Cpu cpu;
  compact(cpu, cache, kept);
  CHECK(length[0] == 6);
  CHECK(std::equal(rows.begin(), rows.begin() + 36, expected.begin()));
}

TEST_CASE("Mla: a sequence's result does not depend on the batch, on threads or on the call", "[threads]") {
  const MlaProblem<bf16, bf16> p(26, {16, 8, 32, 12}, {2100, 40, 0, 3});
  const OneRowCache<bf16> cache(p);
  Cpu cpu;
  const Result expected = run_mla(cpu, p, cache.dense());
  CHECK(run_mla(cpu, p, cache.dense()).same_bits(expected));
  Cpu threads(real_threads(3));
  CHECK(run_mla(threads, p, cache.dense()).same_bits(expected));
  Cpu reversed(reversed_threads(40));
  CHECK(run_mla(reversed, p, cache.dense()).same_bits(expected));
  for (index_t s = 0; s < 4; ++s) {
    MlaProblem<bf16, bf16> one(26, p.dims, {p.lengths[at(s)]});
    one.kv_b = p.kv_b;
    if (one.tokens() > 0) {
      std::copy_n(p.c.data() + p.token(s, 0) * 32, one.c.size(), one.c.data());
      std::copy_n(p.k_pe.data() + p.token(s, 0) * 8, one.k_pe.size(), one.k_pe.data());
    }
    std::copy_n(p.q_nope.data() + s * 26 * 16, 26 * 16, one.q_nope.data());
    std::copy_n(p.q_pe.data() + s * 26 * 8, 26 * 8, one.q_pe.data());
    const Result alone = run_mla(cpu, one, OneRowCache<bf16>(one).dense());
    CHECK(std::memcmp(alone.o.data(), expected.o.data() + s * 26 * 12, 26 * 12 * 4) == 0);
    CHECK(std::memcmp(alone.lse.data(), expected.lse.data() + s * 26, 26 * 4) == 0);
  }
}

TEST_CASE("Mla: NaN in a latent row reaches those who see it, and nobody else") {
  MlaProblem<float, float> p(3, {8, 4, 16, 8}, {20, 20}, {2, 1});
  const Result before = [&] {
    Cpu cpu;
    return run_mla(cpu, p, OneRowCache<float>(p).dense());
  }();
  p.c[at(p.token(0, 19) * 16 + 3)] = quiet_nan;  // the first sequence's last token, which its first query does not see
  Cpu cpu;
  const Result r = run_mla(cpu, p, TwoPoolCache<float>(p).dense());
  for (index_t row = 0; row < 9; ++row)
    for (index_t d = 0; d < 8; ++d) {
      const std::size_t i = at(row * 8 + d);
      if (row >= 3 && row < 6) CHECK(std::isnan(r.o[i]));
      else CHECK(r.o[i] == before.o[i]);
    }
}

TEST_CASE("Mla: scratch comes from the workspace, and the second call allocates nothing", "[threads]") {
  const MlaProblem<bf16, bf16> p(5, {16, 8, 32, 12}, {100, 7}, {2, 1});
  const OneRowCache<bf16> cache(p);
  Cpu growing(real_threads(2));
  const Result expected = run_mla(growing, p, cache.dense());
  const std::size_t bytes = growing.workspace().high_water() + 64;
  std::vector<std::byte> memory(bytes);
  Cpu fixed(real_threads(2), memory.data(), bytes);
  CHECK(run_mla(fixed, p, cache.dense()).same_bits(expected));
  CHECK(growing.workspace().used() == 0);

  static int allocations;
  allocations = 0;
  const Allocator counting{[](void*, std::size_t n) {
                             ++allocations;
                             return ::operator new(n, std::align_val_t{64});
                           },
                           [](void*, void* m, std::size_t) { ::operator delete(m, std::align_val_t{64}); }, nullptr};
  Cpu counted(ParallelFor{}, counting);
  run_mla(counted, p, cache.dense());
  const int first = allocations;
  CHECK(first > 0);
  CHECK(run_mla(counted, p, cache.dense()).same_bits(expected));
  CHECK(allocations == first);
}

/// A policy over the latent caches gives what it gives over an ordinary cache with c written twice.
template <class T, class A>
void same_as_ordinary(const A& policy) {
  const MlaProblem<T, float> p(6, {8, 4, 16, 8}, {90, 1, 0, 20});
  Problem<T> ordinary(1, 6, 20, 16, p.lengths);
  for (index_t t = 0; t < p.tokens(); ++t) {
    std::copy_n(p.c.data() + t * 16, 16, ordinary.keys.data() + t * 20);
    std::copy_n(p.k_pe.data() + t * 4, 4, ordinary.keys.data() + t * 20 + 16);
    std::copy_n(p.c.data() + t * 16, 16, ordinary.values.data() + t * 16);
  }
  const DenseCache<T> expected_cache(ordinary);
  const auto attended = [&](const auto& cache) {
    Cpu cpu;
    Result r{std::vector<float>(at(4 * 6 * 16), quiet_nan), std::vector<float>(at(4 * 6), quiet_nan)};
    attend(cpu, policy, ordinary.views().rows, cache, View<float, 3>(r.o.data(), 4, 6, 16),
           View<float, 2>(r.lse.data(), 4, 6));
    return r;
  };
  const Result expected = attended(expected_cache.view);
  CHECK(attended(OneRowCache<T>(p).dense()).same_bits(expected));
  CHECK(attended(OneRowCache<T>(p, 7).paged()).same_bits(expected));
  CHECK(attended(TwoPoolCache<T>(p).dense()).same_bits(expected));
  CHECK(attended(TwoPoolCache<T>(p, 7).paged()).same_bits(expected));
}

TEST_CASE("Dense and Santa over latent caches") {
  same_as_ordinary<float>(Dense{.scale = mla_scale(8, 4)});
  same_as_ordinary<bf16>(Dense{.scale = mla_scale(8, 4)});
  same_as_ordinary<bf16>(Santa{.samples = 16, .scale = mla_scale(8, 4)});
}

TEST_CASE("Cascade over latent caches") {
  const MlaProblem<float, float> p(6, {8, 4, 16, 8}, {90, 30});
  const std::vector<Segment> segments{{-1, 0, 0, 60}, {0, 0, 60, 90}, {0, 1, 0, 30}};
  const std::vector<index_t> leaves{1, 2, 0};
  const CascadePlan shared = plan(Cascade{}, View<const Segment, 1>(segments), View<const index_t, 1>(leaves));
  const std::vector<float> q = normal(3 * 6 * 20, 4);
  const auto attended = [&](const auto& cache) {
    Cpu cpu;
    Result r{std::vector<float>(at(3 * 6 * 16), quiet_nan), std::vector<float>(at(3 * 6), quiet_nan)};
    attend(cpu, Dense{.scale = mla_scale(8, 4)}, shared, View<const float, 3>(q.data(), 3, 6, 20), cache,
           View<float, 3>(r.o.data(), 3, 6, 16), View<float, 2>(r.lse.data(), 3, 6));
    return r;
  };
  Problem<float> ordinary(1, 6, 20, 16, p.lengths);
  for (index_t t = 0; t < p.tokens(); ++t) {
    std::copy_n(p.c.data() + t * 16, 16, ordinary.keys.data() + t * 20);
    std::copy_n(p.k_pe.data() + t * 4, 4, ordinary.keys.data() + t * 20 + 16);
    std::copy_n(p.c.data() + t * 16, 16, ordinary.values.data() + t * 16);
  }
  const Result expected = attended(DenseCache<float>(ordinary).view);
  CHECK(!std::isnan(expected.o[0]));
  CHECK(attended(OneRowCache<float>(p).dense()).same_bits(expected));
  CHECK(attended(TwoPoolCache<float>(p).dense()).same_bits(expected));
  CHECK(attended(TwoPoolCache<float>(p, 7).paged()).same_bits(expected));
}

template <class Cache>
void reads_rows(const MlaProblem<bf16, float>& p, const Cache& cache) {
  REQUIRE_NOTHROW(validate(cache));
  CHECK((cache.sequences() == p.sequences() && cache.kv_heads() == 1));
  CHECK((cache.key_dim() == 9 && cache.value_dim() == 7));
  for (index_t s = 0; s < p.sequences(); ++s) {
    REQUIRE(cache.length(s, 0) == p.lengths[at(s)]);
    for (index_t t = 0; t < p.lengths[at(s)]; ++t) {
      std::vector<float> key(9), value(7), part(8);
      using kv::load_row;
      load_row(cache.key(s, 0, t), 9, key.data());
      load_row(cache.value(s, 0, t), 7, value.data());
      load_row(cache.key(s, 0, t), 8, part.data());
      for (index_t d = 0; d < 9; ++d) {
        const float expected =
            static_cast<float>(d < 7 ? p.c[at(p.token(s, t) * 7 + d)] : p.k_pe[at(p.token(s, t) * 2 + d - 7)]);
        CHECK(key[at(d)] == expected);
        if (d < 7) CHECK(value[at(d)] == expected);
        if (d < 8) CHECK(part[at(d)] == expected);
      }
      const index_t run = cache.run(s, 0, t);
      CHECK((run >= 1 && t + run <= p.lengths[at(s)]));
    }
  }
}

TEST_CASE("Latent caches: rows, runs, shapes") {
  const MlaProblem<bf16, float> p(1, {2, 2, 7, 1}, {20, 0, 1});
  reads_rows(p, OneRowCache<bf16>(p, 0, 1).dense());
  reads_rows(p, OneRowCache<bf16>(p, 4).paged());
  reads_rows(p, TwoPoolCache<bf16>(p, 0, 1).dense());
  reads_rows(p, TwoPoolCache<bf16>(p, 4).paged());
  static_assert(kv::PlainCacheView<decltype(OneRowCache<bf16>(p).dense())>);
  static_assert(kv::PlainCacheView<decltype(OneRowCache<bf16>(p).paged())>);
  static_assert(kv::PlainCacheView<decant::attention::detail::JoinedKV<kv::DenseKV<const bf16>>>);
  CHECK(TwoPoolCache<bf16>(p).dense().capacity() == 23);
  CHECK(TwoPoolCache<bf16>(p, 4).paged().capacity() == 6 * 4);
}

TEST_CASE("Latent caches: tokens are appended through the pools, or with c as the value") {
  std::vector<float> rows(3 * 5, 0.0f), c(3 * 4, 0.0f), k_pe(3, 0.0f);
  std::vector<std::int32_t> length{1}, same{1};
  const std::vector<float> fresh{1, 2, 3, 4, 5};
  const View<const float, 3> row(fresh.data(), 1, 1, 5);
  Cpu cpu;
  const auto one = kv::latent(View<float, 3>(rows.data(), 1, 3, 5), length, 4);
  append(cpu, one, 0, row, row.slice(2, 0, 4));
  CHECK((length[0] == 2 && std::equal(fresh.begin(), fresh.end(), rows.begin() + 5)));
  const auto two = kv::latent(View<float, 3>(c.data(), 1, 3, 4), View<float, 3>(k_pe.data(), 1, 3, 1), same);
  append(cpu, two.pools, 0, row.slice(2, 4, 1), row.slice(2, 0, 4));
  CHECK((two.length(0, 0) == 2 && c[4] == 1 && c[7] == 4 && k_pe[1] == 5));
}

}  // namespace
}  // namespace attention_test
