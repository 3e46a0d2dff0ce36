#pragma once
// The laws that every eviction policy keeps, as one suite over policy types. A policy says through PolicyTraits what it
// promises beyond them; the suite tests what is promised. Tests for one policy's own formulas stand in unit/kv.
// Ctx selects; what only looks at a result (gather, compact, attend) runs on a Cpu.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch_compat.hpp"
#include "conformance/context.hpp"
#include "decant/attention/dense.hpp"
#include "decant/kv/compact.hpp"
#include "decant/kv/paged_kv.hpp"
#include "decant/kv/policies.hpp"
#include "decant/kv/ragged_kv.hpp"
#include "oracle/kv_layer.hpp"
#include "threads.hpp"

namespace conformance {

using decant::Cpu;
using decant::index_t;
using decant::View;
using oracle::Layer;
using oracle::LayerShape;
namespace kv = decant::kv;

/// Over what the budget sums exactly: each head, the heads of a layer, all layers of equal length, or nothing (Full).
enum class Sums { head, layer, model, all_kept };

template <class P>
struct PolicyTraits {
  static P policy() { return P{}; }
  static constexpr Sums sums = Sums::head;
  static constexpr bool nested = true;          // budget b's tokens are among budget b + 1's
  static constexpr bool position_free = false;  // permuting tokens permutes the selection
  static constexpr bool group_mean = true;  // a head's score is the mean over its group of what each would get alone
  static constexpr bool values_matter = false;  // scaling the values may change scores
};

template <>
struct PolicyTraits<kv::Full> : PolicyTraits<int> {
  static kv::Full policy() { return {}; }
  static constexpr Sums sums = Sums::all_kept;
};
template <>
struct PolicyTraits<kv::Random> : PolicyTraits<int> {
  static kv::Random policy() { return {.seed = 5}; }
  static constexpr bool group_mean = false;  // keyed by the head
};
template <>
struct PolicyTraits<kv::KNorm> : PolicyTraits<int> {
  static kv::KNorm policy() { return {}; }
  static constexpr bool position_free = true;
};
template <>
struct PolicyTraits<kv::KeyDiff> : PolicyTraits<int> {
  static kv::KeyDiff policy() { return {}; }
  static constexpr bool position_free = true;
};
template <>
struct PolicyTraits<kv::BlockwiseKeyDiff> : PolicyTraits<int> {
  static kv::BlockwiseKeyDiff policy() { return {.block = 16}; }
  static constexpr bool nested = false;
};
template <>
struct PolicyTraits<kv::SnapKV> : PolicyTraits<int> {
  static kv::SnapKV policy() { return {.window = 8}; }
};
template <>
struct PolicyTraits<kv::PyramidKV> : PolicyTraits<int> {
  static kv::PyramidKV policy() { return {.window = 8}; }
  static constexpr Sums sums = Sums::model;
  static constexpr bool nested = false;  // a larger budget may tilt the line
};
template <>
struct PolicyTraits<kv::AdaKV> : PolicyTraits<int> {
  static kv::AdaKV policy() { return {.window = 8}; }
  static constexpr Sums sums = Sums::layer;
  static constexpr bool nested = false;  // rounding may take one token from a head
};
template <>
struct PolicyTraits<kv::CapKV> : PolicyTraits<int> {
  static kv::CapKV policy() { return {.sinks = 2}; }
  static constexpr bool values_matter = true;
};
template <>
struct PolicyTraits<kv::GreedyCapKV> : PolicyTraits<int> {
  static kv::GreedyCapKV policy() { return {.weights = {.sinks = 2}}; }
};
template <>
struct PolicyTraits<kv::ExpectedAttention> : PolicyTraits<int> {
  static kv::ExpectedAttention policy() { return {.sinks = 2}; }
  static constexpr bool values_matter = true;
};
template <>
struct PolicyTraits<kv::BackwardLOO> : PolicyTraits<int> {
  static kv::BackwardLOO policy() { return {.window = 8}; }
  static constexpr bool nested = false;
  static constexpr bool group_mean = false;  // the sum over the group
  static constexpr bool values_matter = true;
};

using Tokens = std::vector<std::vector<index_t>>;  // [heads][kept]

inline Tokens tokens(const kv::Kept& kept) {
  Tokens all;
  for (index_t h = 0; h < kept.kv_heads(); ++h) {
    all.emplace_back();
    for (index_t i = 0; i < kept.count(h); ++i) all.back().push_back(kept.token(h, i));
  }
  return all;
}

inline index_t total(const Tokens& t) {
  index_t sum = 0;
  for (const auto& head : t) sum += static_cast<index_t>(head.size());
  return sum;
}

template <class Ctx, class X>
Tokens selected(Ctx& ctx, const auto& policy, const X& x, const kv::Budget& budget) {
  return tokens(select(ctx, policy, x, budget));
}

/// Which tokens of a head the policy protects, asked from its stage.
template <class Ctx, class P>
std::vector<bool> protected_tokens(Ctx& ctx, const P& policy, index_t n) {
  std::vector<float> scores(static_cast<std::size_t>(n));
  std::vector<std::uint8_t> keep(static_cast<std::size_t>(n), 0);
  std::int32_t length = static_cast<std::int32_t>(n);
  kv::ScoredLayer layer;
  layer.scores = View<float, 2>(scores.data(), 1, n);
  layer.keep = View<std::uint8_t, 2>(keep.data(), 1, n);
  layer.lengths = View<std::int32_t, 1>(&length, 1);
  protect(ctx, kv::complete(policy).protect, layer);
  return std::vector<bool>(keep.begin(), keep.end());
}

inline void check_lists(const std::vector<bool>& is_protected, const Tokens& kept) {
  const auto n = static_cast<index_t>(is_protected.size());
  for (const auto& head : kept) {
    for (std::size_t i = 0; i < head.size(); ++i) {
      REQUIRE((head[i] >= 0 && head[i] < n));
      REQUIRE((i == 0 || head[i] > head[i - 1]));
    }
    for (index_t t = 0; t < n; ++t) {
      if (is_protected[static_cast<std::size_t>(t)]) REQUIRE(std::binary_search(head.begin(), head.end(), t));
    }
  }
}

/// Conservation, protection, order and range, over random shapes; budgets below protection are refused.
template <class P, class Ctx>
void check_budgets() {
  using Traits = PolicyTraits<P>;
  const P policy = Traits::policy();
  Ctx ctx;
  const decant::Philox rng{17};
  for (std::uint32_t draw = 0; draw < ContextTraits<Ctx>::draws; ++draw) {
    const auto r = rng(draw);
    const index_t edges[] = {0, 1, 2, 7, 8, 9};
    const index_t n = draw % 2 == 0 ? edges[draw / 2 % 6] : 10 + r.word[0] % 50;
    const double evicted[] = {0, 1e-6, 0.5, 0.999};
    const double ratio = evicted[r.word[1] % 4];
    const index_t layers = 1 + r.word[2] % 3;
    LayerShape shape{n, 1 + static_cast<index_t>(r.word[3] % 3), 2, 8, 6, n};
    Layer<> data(shape, draw);
    auto x = data.view();
    x.layers = layers;
    const kv::Budget budget = kv::Budget::keep(1 - ratio);
    const index_t each = static_cast<index_t>(std::floor(static_cast<double>(n) * (1 - ratio) + 1e-9));
    const std::vector<bool> is_protected = protected_tokens(ctx, policy, n);
    const index_t least = std::count(is_protected.begin(), is_protected.end(), true);
    CAPTURE(draw, n, ratio, layers, shape.kv_heads, least);
    if (each < n && least > each) {
      const std::string expected =
          is_cpu<Ctx> ? "argument `budget`: expected at least the " + std::to_string(least) +
                            " protected tokens of layer 0, head 0, got " + std::to_string(each)
                      : "argument `budget`: expected at least the protected tokens of every head, got a fault at "
                        "layer 0, head 0, index " + std::to_string(each);
      REQUIRE_THROWS_WITH(select(ctx, policy, x, budget), catch_compat::contains(expected.c_str()));
      continue;
    }
    index_t sum = 0;
    for (x.layer = 0; x.layer < layers; ++x.layer) {
      const Tokens kept = selected(ctx, policy, x, budget);
      check_lists(is_protected, kept);
      sum += total(kept);
      if (Traits::sums == Sums::head) {
        for (const auto& head : kept) REQUIRE(static_cast<index_t>(head.size()) == each);
      }
      if (Traits::sums == Sums::layer) REQUIRE(total(kept) == each * shape.kv_heads);
    }
    REQUIRE(sum == (Traits::sums == Sums::all_kept ? n : each) * shape.kv_heads * layers);
  }
}

/// Enough budget: every token, without a look at what the scorer would need. And the same target twice changes nothing.
template <class P, class Ctx>
void check_identity() {
  const P policy = PolicyTraits<P>::policy();
  Ctx ctx;
  Cpu cpu;
  Layer<> data({40, 2, 3, 12, 10, 40});
  kv::LayerView<kv::DenseKV<float>> bare{data.cache()};  // no queries at all
  for (const kv::Budget& b : {kv::Budget::tokens(40), kv::Budget::tokens(1 << 30), kv::Budget::keep(1)}) {
    const Tokens kept = selected(ctx, policy, bare, b);
    for (const auto& head : kept) {
      REQUIRE(head.size() == 40);
      for (index_t t = 0; t < 40; ++t) REQUIRE(head[static_cast<std::size_t>(t)] == t);
    }
  }
  if constexpr (is_cpu<Ctx>) REQUIRE(ctx.workspace().high_water() == 0);

  auto x = data.view();
  x.layers = 3;
  for (x.layer = 0; x.layer < 3; ++x.layer) {
    kv::Kept kept = select(ctx, policy, x, kv::Budget::tokens(20));
    // The survivors in a ragged cache, which any counts fit.
    std::vector<index_t> offsets{0};
    std::vector<std::int32_t> lengths(2, 0);
    for (index_t h = 0; h < 2; ++h) offsets.push_back(offsets.back() + kept.count(h));
    std::vector<float> k(static_cast<std::size_t>(offsets[2] * 12)), v(static_cast<std::size_t>(offsets[2] * 10));
    const kv::RaggedKV<float> out{View<float, 2>(k.data(), offsets[2], 12), View<float, 2>(v.data(), offsets[2], 10),
                                  offsets, lengths, 2};
    gather(cpu, x.cache, 0, kept, out);
    auto again = data.with(out);
    again.layer = x.layer;
    again.layers = 3;
    const kv::Kept second = select(ctx, policy, again, kv::Budget::tokens(20));
    REQUIRE(second.total() == kept.total());
  }
}

/// Permuting tokens permutes the selection.
template <class P, class Ctx>
void check_permutation() {
  const P policy = PolicyTraits<P>::policy();
  Ctx ctx;
  const index_t n = 60;
  Layer<> data({n, 2, 2, 12, 10, 20}), moved = data;
  std::vector<index_t> to(static_cast<std::size_t>(n));
  for (index_t t = 0; t < n; ++t) to[static_cast<std::size_t>(t)] = (t * 37 + 11) % n;
  for (index_t h = 0; h < 2; ++h) {
    for (index_t t = 0; t < n; ++t) {
      for (index_t d = 0; d < 12; ++d) moved.key(h, to[static_cast<std::size_t>(t)], d) = data.key(h, t, d);
      for (index_t d = 0; d < 10; ++d) moved.value(h, to[static_cast<std::size_t>(t)], d) = data.value(h, t, d);
    }
  }
  for (const index_t b : {3, 20, 59}) {
    Tokens expected = selected(ctx, policy, data.view(), kv::Budget::tokens(b));
    for (auto& head : expected) {
      for (index_t& t : head) t = to[static_cast<std::size_t>(t)];
      std::sort(head.begin(), head.end());
    }
    REQUIRE(selected(ctx, policy, moved.view(), kv::Budget::tokens(b)) == expected);
  }
}

template <class Ctx, class P>
std::vector<float> scores_of(Ctx& ctx, const P& policy, const kv::LayerView<kv::DenseKV<float>>& x) {
  std::vector<float> out(static_cast<std::size_t>(x.kv_heads() * x.max_length()));
  score(ctx, kv::complete(policy).score, x, View<float, 2>(out.data(), x.kv_heads(), x.max_length()));
  return out;
}

/// One KV head for g query heads scores as the mean of g heads of their own with the same keys and values.
template <class P, class Ctx>
void check_groups() {
  const P policy = PolicyTraits<P>::policy();
  Ctx ctx;
  Layer<> grouped({30, 2, 3, 12, 10, 30});
  Layer<> alone({30, 6, 1, 12, 10, 30});
  alone.queries = grouped.queries;
  alone.pre_rope = grouped.pre_rope;
  for (index_t hq = 0; hq < 6; ++hq) {
    for (index_t t = 0; t < 30; ++t) {
      for (index_t d = 0; d < 12; ++d) alone.key(hq, t, d) = grouped.key(hq / 3, t, d);
      for (index_t d = 0; d < 10; ++d) alone.value(hq, t, d) = grouped.value(hq / 3, t, d);
    }
  }
  const std::vector<float> got = scores_of(ctx, policy, grouped.view()), each = scores_of(ctx, policy, alone.view());
  float high = 0;
  for (const float s : got) high = std::max(high, std::abs(s));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t at = i / 30 * 90 + i % 30;
    REQUIRE(std::abs(got[i] - (each[at] + each[at + 30] + each[at + 60]) / 3) <= 2e-5f * high);
  }
}

/// Scores do not depend on the values' scale, unless the policy says that values matter.
template <class P, class Ctx>
void check_values() {
  const P policy = PolicyTraits<P>::policy();
  Ctx ctx;
  Layer<> data({30, 2, 3, 12, 10, 30}), scaled = data;
  for (float& v : scaled.values) v *= 3.5f;
  REQUIRE((scores_of(ctx, policy, data.view()) == scores_of(ctx, policy, scaled.view())) ==
          !PolicyTraits<P>::values_matter);
}

/// Attention over the compacted cache is attention over all of it with the evicted masked.
template <class P, class Ctx>
void check_attention() {
  const P policy = PolicyTraits<P>::policy();
  Ctx ctx;
  Cpu cpu;
  Layer<> data({50, 2, 3, 12, 10, 50}, 2);
  kv::Kept kept = select(ctx, policy, data.view(), kv::Budget::tokens(21));
  std::vector<index_t> offsets{0};
  std::vector<std::int32_t> lengths(2, 0);
  for (index_t h = 0; h < 2; ++h) offsets.push_back(offsets.back() + kept.count(h));
  std::vector<float> k(static_cast<std::size_t>(offsets[2] * 12)), v(static_cast<std::size_t>(offsets[2] * 10));
  const kv::RaggedKV<float> ragged{View<float, 2>(k.data(), offsets[2], 12), View<float, 2>(v.data(), offsets[2], 10),
                                   offsets, lengths, 2};
  gather(cpu, data.cache(), 0, kept, ragged);
  std::vector<float> query, out(60), again(60);
  for (index_t i = 0; i < 6 * 12; ++i) query.push_back(static_cast<float>(oracle::normal(3, i)));
  const View<const float, 3> q(query.data(), 1, 6, 12);
  attend(cpu, decant::attention::Dense{}, q, ragged, View<float, 3>(out.data(), 1, 6, 10));
  for (index_t hq = 0; hq < 6; ++hq) {
    std::vector<double> expected(10, 0.0);
    double sum = 0;
    for (index_t i = 0; i < kept.count(hq / 3); ++i) {
      const index_t t = kept.token(hq / 3, i);
      double dot = 0;
      for (index_t d = 0; d < 12; ++d) dot += static_cast<double>(q(index_t{0}, hq, d)) * data.k(hq / 3, t, d);
      const double e = std::exp(dot / std::sqrt(12.0));
      sum += e;
      for (index_t d = 0; d < 10; ++d) expected[static_cast<std::size_t>(d)] += e * data.v(hq / 3, t, d);
    }
    double error = 0, norm = 0;
    for (std::size_t d = 0; d < 10; ++d) {
      const double o = static_cast<double>(out[static_cast<std::size_t>(hq) * 10 + d]);
      error += (o - expected[d] / sum) * (o - expected[d] / sum);
      norm += expected[d] * expected[d] / (sum * sum);
    }
    REQUIRE(std::sqrt(error / norm) <= 1e-5);
  }
  if (kept.count(0) != kept.count(1)) return;
  // In place, where counts are equal, it is the same attention bit for bit.
  auto cache = data.cache();
  compact(cpu, cache, kept);
  attend(cpu, decant::attention::Dense{}, q, cache, View<float, 3>(again.data(), 1, 6, 10));
  REQUIRE(again == out);
}

template <class P, class Ctx>
void check_nesting() {
  const P policy = PolicyTraits<P>::policy();
  Ctx ctx;
  Layer<> data({40, 2, 2, 12, 10, 40}, 3);
  Tokens smaller;
  for (index_t b = 10; b <= 40; b += ContextTraits<Ctx>::nesting_step) {
    const Tokens kept = selected(ctx, policy, data.view(), kv::Budget::tokens(b));
    for (std::size_t h = 0; h < smaller.size(); ++h) {
      REQUIRE(std::includes(kept[h].begin(), kept[h].end(), smaller[h].begin(), smaller[h].end()));
    }
    smaller = kept;
  }
}

/// Pages, threads and a second call: the same selection, and the second call takes no new memory.
template <class P, class Ctx>
void check_places() {
  const P policy = PolicyTraits<P>::policy();
  const index_t n = 43, page = 8, pages = 6;
  Layer<> data({n, 2, 3, 12, 10, n}, 4);
  // The same rows in pages handed out backwards, the unused slots NaN.
  std::vector<float> k(static_cast<std::size_t>(pages * 2 * page * 12), std::nanf("")),
      v(static_cast<std::size_t>(pages * 2 * page * 10), std::nanf(""));
  const std::vector<std::int32_t> indptr{0, 6}, indices{5, 4, 3, 2, 1, 0}, last{3};
  const kv::PagedKV<const float> paged{View<const float, 4>(k.data(), pages, 2, page, 12),
                                       View<const float, 4>(v.data(), pages, 2, page, 10), indptr, indices, last};
  for (index_t h = 0; h < 2; ++h) {
    for (index_t t = 0; t < n; ++t) {
      float* const key = k.data() + (paged.key(0, h, t) - k.data());
      float* const value = v.data() + (paged.value(0, h, t) - v.data());
      for (index_t d = 0; d < 12; ++d) key[d] = data.key(h, t, d);
      for (index_t d = 0; d < 10; ++d) value[d] = data.value(h, t, d);
    }
  }
  const kv::Budget budget = kv::Budget::tokens(17);
  Ctx ctx;
  const Tokens expected = selected(ctx, policy, data.view(), budget);
  REQUIRE(selected(ctx, policy, data.with(paged), budget) == expected);
  std::vector<std::int32_t> room(static_cast<std::size_t>(2 * n)), counts(2);
  const kv::KeptView out{View<std::int32_t, 2>(room.data(), 2, n), View<std::int32_t, 1>(counts)};
  if constexpr (is_cpu<Ctx>) {
    struct Count {
      int blocks = 0;
    } count;
    const decant::Allocator counting{[](void* state, std::size_t bytes) {
                                       ++static_cast<Count*>(state)->blocks;
                                       return ::operator new (bytes, std::align_val_t{64});
                                     },
                                     [](void*, void* p, std::size_t) { ::operator delete (p, std::align_val_t{64}); },
                                     &count};
    Cpu threaded(reversed_threads(3), counting);
    select(threaded, policy, data.with(paged), budget, out);
    const int blocks = count.blocks;
    select(threaded, policy, data.with(paged), budget, out);
    REQUIRE(count.blocks == blocks);
    REQUIRE(threaded.workspace().used() == 0);
  } else {
    Ctx fresh;
    select(fresh, policy, data.with(paged), budget, out);
    const std::size_t high_water = fresh.workspace().high_water();  // what a grown workspace holds in one block
    select(fresh, policy, data.with(paged), budget, out);
    REQUIRE(fresh.workspace().high_water() == high_water);
    REQUIRE(fresh.workspace().used() == 0);
    // No two scores of this layer lie within rounding of each other: the tokens are the CPU's.
    Cpu cpu;
    REQUIRE(selected(cpu, policy, data.view(), budget) == expected);
  }
  for (index_t h = 0; h < 2; ++h) {
    REQUIRE(std::equal(expected[static_cast<std::size_t>(h)].begin(), expected[static_cast<std::size_t>(h)].end(),
                       room.begin() + h * n));
    REQUIRE(counts[static_cast<std::size_t>(h)] ==
            static_cast<std::int32_t>(expected[static_cast<std::size_t>(h)].size()));
  }
}

/// Runs the suite for one policy.
template <class P, class Ctx = Cpu>
void check_policy() {
  using Traits = PolicyTraits<P>;
  using Engine = typename ContextTraits<Ctx>::Engine;
  static_assert(kv::KVEvictionPolicy<P, Engine>);
  static_assert(kv::KVEvictionPolicy<P, Engine, kv::LayerView<kv::PagedKV<const decant::bf16>, decant::bf16>>);
  check_budgets<P, Ctx>();
  check_identity<P, Ctx>();
  if constexpr (Traits::position_free) check_permutation<P, Ctx>();
  if constexpr (Traits::group_mean) check_groups<P, Ctx>();
  check_values<P, Ctx>();
  check_attention<P, Ctx>();
  if constexpr (Traits::nested) check_nesting<P, Ctx>();
  check_places<P, Ctx>();
}

}  // namespace conformance
