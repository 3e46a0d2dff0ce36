#pragma once
// What every AttentionPolicy must do, tested through nothing but the concept. A policy declares how far it may lie from
// exact attention (error_bound); everything else here is exact for all of them. Ctx: see context.hpp.

#include "catch_compat.hpp"
#include "conformance/context.hpp"
#include "decant/attention/policy.hpp"
#include "unit/attention/problem.hpp"

namespace conformance {

using namespace attention_test;

/// One query per sequence, which is all that the concept asks for.
template <class Ctx, class A, class T, class C>
Result attend_to(Ctx& ctx, const A& policy, const Problem<T>& p, const C& cache) {
  Result r{std::vector<float>(at(p.total() * p.query_heads() * p.value_dim), quiet_nan),
           std::vector<float>(at(p.total() * p.query_heads()), quiet_nan)};
  attend(ctx, policy, p.views().rows, cache,
         decant::View<float, 3>(r.o.data(), p.total(), p.query_heads(), p.value_dim),
         decant::View<float, 2>(r.lse.data(), p.total(), p.query_heads()));
  return r;
}

template <class T, class Ctx, class A>
void attention_results(Ctx& ctx, const A& policy) {
  // The declared bound, a natural-log lse, and the same bits from every cache, whose unused slots are NaN.
  for (const Problem<T>& p : {Problem<T>(2, 7, 96, 96, {200, 1, 0, 67}), Problem<T>(1, 4, 64, 48, {1500, 64}),
                              Problem<T>(3, 1, 20, 9, {65, 130})}) {
    INFO("group " << p.group << " dims " << p.key_dim << "/" << p.value_dim);
    const Result r = attend_to(ctx, policy, p, DenseCache<T>(p).view);
    const Exact expected = exact(p);
    CHECK(error(r, expected) <= A::error_bound);
    CHECK(lse_error(r, expected) <= 1e-5 + A::error_bound);
    CHECK(attend_to(ctx, policy, p, DenseCache<T>(p, Layout::nhd).view).same_bits(r));
    CHECK(attend_to(ctx, policy, p, RaggedCache<T>(p).view).same_bits(r));
    for (const index_t page_size : {1, 7, 16}) {
      CHECK(attend_to(ctx, policy, p, PagedCache<T>(p, page_size).view).same_bits(r));
      CHECK(attend_to(ctx, policy, p, PagedCache<T>(p, page_size, Layout::nhd).view).same_bits(r));
    }
    CHECK(attend_to(ctx, policy, p, DenseCache<T>(p).view).same_bits(r));  // and again

    // Threads.
    if constexpr (is_cpu<Ctx>) {
      decant::Cpu parallel(real_threads(3));
      parallel.set_isa(ctx.isa());
      CHECK(attend_to(parallel, policy, p, DenseCache<T>(p).view).same_bits(r));
    }

    // Each sequence alone.
    for (index_t s = 0; s < p.sequences(); ++s) {
      Problem<T> one(p.heads, p.group, p.key_dim, p.value_dim, {p.lengths[at(s)]});
      if (one.rows() > 0) {
        std::copy_n(p.key(s, 0, 0), one.keys.size(), one.keys.data());
        std::copy_n(p.value(s, 0, 0), one.values.size(), one.values.data());
      }
      std::copy_n(p.q.data() + s * p.query_heads() * p.key_dim, one.q.size(), one.q.data());
      const Result alone = attend_to(ctx, policy, one, DenseCache<T>(one).view);
      CHECK(std::memcmp(alone.o.data(), r.o.data() + s * p.query_heads() * p.value_dim, alone.o.size() * 4) == 0);
      CHECK(std::memcmp(alone.lse.data(), r.lse.data() + s * p.query_heads(), alone.lse.size() * 4) == 0);
    }

    // Nothing to see: (0, -inf). One key: its value.
    for (index_t s = 0; s < p.sequences(); ++s)
      for (index_t head = 0; head < p.query_heads(); ++head)
        for (index_t d = 0; d < p.value_dim; ++d) {
          const float x = r.o[at((s * p.query_heads() + head) * p.value_dim + d)];
          if (p.lengths[at(s)] == 0) CHECK((x == 0 && r.lse[at(s * p.query_heads() + head)] == -infinity));
          if (p.lengths[at(s)] == 1) CHECK(x == static_cast<float>(p.value(s, head / p.group, 0)[d]));
        }
  }

  // One page table for two sequences: the second is read from the first's pages.
  {
    const Problem<T> p(2, 2, 16, 16, {48, 48});
    Problem<T> twice = p;
    std::copy_n(p.key(0, 0, 0), 2 * 48 * 16, twice.key(1, 0, 0));
    std::copy_n(p.value(0, 0, 0), 2 * 48 * 16, twice.value(1, 0, 0));
    PagedCache<T> shared(p, 16);
    for (std::size_t i = 0; i < 3; ++i) shared.indices[3 + i] = shared.indices[i];
    CHECK(attend_to(ctx, policy, twice, shared.view)
              .same_bits(attend_to(ctx, policy, twice, DenseCache<T>(twice).view)));
  }

  // Scratch comes from the workspace alone: in fixed memory of the high water mark the call works.
  {
    const Problem<T> p(2, 3, 32, 16, {300, 20});
    const DenseCache<T> cache(p);
    Ctx growing;
    if constexpr (is_cpu<Ctx>) growing.set_isa(ctx.isa());
    const Result r = attend_to(growing, policy, p, cache.view);
    const std::size_t bytes = growing.workspace().high_water() + 64;
    if constexpr (is_cpu<Ctx>) {
      std::vector<std::byte> memory(bytes);
      decant::Cpu fixed(decant::ParallelFor{}, memory.data(), bytes);
      fixed.set_isa(ctx.isa());
      CHECK(attend_to(fixed, policy, p, cache.view).same_bits(r));
    } else {
      Ctx fixed(bytes);
      CHECK(attend_to(fixed, policy, p, cache.view).same_bits(r));
    }
  }
}

/// Every group size up to 16, head dims that are no multiple of 64 nor of a vector.
template <class T, class A>
void attention_groups(decant::Cpu& cpu, const A& policy) {
  const index_t dims[] = {96, 80, 17};
  for (index_t group = 1; group <= 16; ++group) {
    const index_t key_dim = dims[group % 3], value_dim = dims[group / 3 % 3];
    INFO("group " << group << " dims " << key_dim << "/" << value_dim);
    const Problem<T> p(1, group, key_dim, value_dim, {37, 0, 1, 70});
    const Result r = attend_to(cpu, policy, p, PagedCache<T>(p, 7).view);
    const Exact expected = exact(p);
    CHECK(error(r, expected) <= A::error_bound);
    CHECK(lse_error(r, expected) <= 1e-5 + A::error_bound);
    CHECK(attend_to(cpu, policy, p, DenseCache<T>(p).view).same_bits(r));
  }
}

/// Even queries see nothing, others what is causal and no multiple of 3.
struct Thirds {
  bool allowed(index_t, index_t query, index_t key, index_t queries, index_t keys) const {
    return query % 2 == 1 && key % 3 != 0 && key <= keys - queries + query;
  }
  decant::attention::KeyRange range(index_t, index_t, index_t, index_t keys) const { return {0, keys}; }
};

/// Policies that take several queries and a mask: all-masked queries are (0, -inf), and hidden rows may hold anything.
template <class T, class A>
void attention_masks(decant::Cpu& cpu, const A& policy) {
  Problem<T> p(2, 5, 17, 96, {70, 5, 130}, {4, 0, 3});
  const auto run = [&](const Problem<T>& problem, const auto& cache) {
    Result r{std::vector<float>(at(p.total() * 10 * 96), quiet_nan), std::vector<float>(at(p.total() * 10), quiet_nan)};
    attend(cpu, policy, problem.views(), cache, decant::View<float, 3>(r.o.data(), p.total(), 10, 96),
           decant::View<float, 2>(r.lse.data(), p.total(), 10), Thirds{});
    return r;
  };
  const Result r = run(p, DenseCache<T>(p).view);
  const Exact expected = exact(p, {}, Thirds{});
  CHECK(error(r, expected) <= A::error_bound);
  CHECK(lse_error(r, expected) <= 1e-5 + A::error_bound);
  for (const index_t i : {0, 2, 4, 6}) {
    const auto from = r.o.begin() + i * 960;
    CHECK(std::count(from, from + 960, 0.0f) == 960);
    CHECK(std::count(r.lse.begin() + i * 10, r.lse.begin() + (i + 1) * 10, -infinity) == 10);
  }
  Problem<T> poisoned = p;
  for (index_t s = 0; s < 3; ++s)
    for (index_t h = 0; h < 2; ++h)
      for (index_t t = 0; t < p.lengths[at(s)]; t += 3) {
        std::fill_n(poisoned.key(s, h, t), 17, T(quiet_nan));
        std::fill_n(poisoned.value(s, h, t), 96, T(quiet_nan));
      }
  CHECK(run(poisoned, DenseCache<T>(poisoned).view).same_bits(r));
}

/// Policies with a split of the keys into chunks of a chosen length: any of them is within the bound.
template <class T, class A>
void attention_chunks(decant::Cpu& cpu, A policy) {
  const Problem<T> p(1, 5, 80, 17, {300, 64});
  const DenseCache<T> cache(p);
  const Exact expected = exact(p);
  for (const index_t chunk : {0, 1, 37, 64, 1000}) {
    INFO("chunk " << chunk);
    policy.chunk = chunk;
    const Result r = attend_to(cpu, policy, p, cache.view);
    CHECK(error(r, expected) <= A::error_bound);
    CHECK(lse_error(r, expected) <= 1e-5 + A::error_bound);
  }
}

template <class T, class Ctx = decant::Cpu, class A>
void attention_policy(const A& policy) {
  static_assert(decant::attention::AttentionPolicy<A, typename ContextTraits<Ctx>::Engine>);
  validate(policy);

  INFO(decant::name(decant::dtype_of<T>));
  Ctx ctx;
  if constexpr (is_cpu<Ctx>) {
    for (const decant::Isa isa : paths()) {
      decant::Cpu cpu;
      cpu.set_isa(isa);
      INFO(decant::name(isa));
      attention_results<T>(cpu, policy);
      attention_groups<T>(cpu, policy);
      if constexpr (std::is_same_v<T, float> && requires(const Problem<T>& p, DenseCache<T>& cache,
                                                         decant::View<float, 3> out, decant::View<float, 2> lse) {
                      attend(cpu, policy, p.views(), cache.view, out, lse, Thirds{});
                    })
        attention_masks<T>(cpu, policy);
      if constexpr (requires { policy.chunk; }) attention_chunks<T>(cpu, policy);
    }
  } else {
    attention_results<T>(ctx, policy);
  }

  // What does not fit is refused before anything is written.
  const Problem<T> p(2, 2, 16, 8, {30, 5});
  const DenseCache<T> cache(p);
  std::vector<float> o(2 * 4 * 8, 7.0f), lse(2 * 4, 7.0f);
  const decant::View<float, 3> out(o.data(), 2, 4, 8);
  const decant::View<float, 2> lses(lse.data(), 2, 4);
  const decant::View<const float, 3> q = p.views().rows;
  CHECK_THROWS_AS(attend(ctx, policy, q.slice(1, 0, 3), cache.view, out.slice(1, 0, 3), lses.slice(1, 0, 3)),
                  decant::ArgumentError);
  CHECK_THROWS_AS(attend(ctx, policy, q.slice(2, 0, 15), cache.view, out, lses), decant::ArgumentError);
  CHECK_THROWS_AS(attend(ctx, policy, q.slice(0, 0, 1), cache.view, out, lses), decant::ArgumentError);
  CHECK_THROWS_AS(attend(ctx, policy, q, cache.view, out.slice(2, 0, 7), lses), decant::ArgumentError);
  CHECK_THROWS_AS(attend(ctx, policy, q, cache.view, out, lses.slice(1, 0, 3)), decant::ArgumentError);
  CHECK((o == std::vector<float>(o.size(), 7.0f) && lse == std::vector<float>(lse.size(), 7.0f)));
  attend(ctx, policy, q, cache.view, out, decant::View<float, 2>{});  // lse may be left out
  CHECK(o[0] != 7.0f);
}

}  // namespace conformance
