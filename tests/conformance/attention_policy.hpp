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
