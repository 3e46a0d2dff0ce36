#pragma once
// Random prefix forests: the rows of each segment once, and the same as a batch in which every request has all of its
// keys for itself, which is what the oracle and dense attention read.

#include "decant/attention/cascade.hpp"
#include "decant/attention/cascade_plan.hpp"
#include "problem.hpp"

namespace attention_test {

using decant::attention::CascadePlan;
using decant::attention::Segment;

template <class T>
struct Forest {
  Problem<T> stored;               // sequence s holds the tokens of segment s, and some before and after them
  std::vector<Segment> segments;
  std::vector<index_t> leaves;
  Problem<T> flat;                 // sequence r: all keys of request r

  decant::View<const Segment, 1> segment_view() const { return segments; }
  decant::View<const index_t, 1> leaf_view() const { return leaves; }
  std::vector<index_t> path(index_t request) const {
    std::vector<index_t> p;
    for (index_t s = leaves[at(request)]; s >= 0; s = segments[at(s)].parent) p.insert(p.begin(), s);
    return p;
  }
};

/// Lengths and parents of segments, leaves of requests, queries of requests: everything else is drawn.
template <class T = float>
Forest<T> make_forest(index_t heads, index_t group, index_t key_dim, index_t value_dim,
                      const std::vector<index_t>& parents, const std::vector<index_t>& lengths,
                      const std::vector<index_t>& leaves, const std::vector<index_t>& queries, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<Segment> segments;
  std::vector<index_t> stored_lengths, flat_lengths;
  for (std::size_t s = 0; s < parents.size(); ++s) {
    const auto skip = static_cast<index_t>(random() % 3);
    segments.push_back({parents[s], static_cast<index_t>(s), skip, skip + lengths[s]});
    stored_lengths.push_back(skip + lengths[s] + static_cast<index_t>(random() % 3));
  }
  for (const index_t leaf : leaves) {
    flat_lengths.push_back(0);
    for (index_t s = leaf; s >= 0; s = parents[at(s)]) flat_lengths.back() += lengths[at(s)];
  }
  Forest<T> f{Problem<T>(heads, group, key_dim, value_dim, stored_lengths, {}, seed),
              segments, leaves,
              Problem<T>(heads, group, key_dim, value_dim, flat_lengths, queries, seed + 10)};
  for (index_t r = 0; r < f.flat.sequences(); ++r)
    for (index_t h = 0; h < heads; ++h) {
      index_t t = 0;
      for (const index_t s : f.path(r))
        for (index_t i = segments[at(s)].first; i < segments[at(s)].last; ++i, ++t) {
          std::copy_n(f.stored.key(s, h, i), key_dim, f.flat.key(r, h, t));
          std::copy_n(f.stored.value(s, h, i), value_dim, f.flat.value(r, h, t));
        }
    }
  return f;
}

/// Trees of depth up to 5, empty and one-token segments, requests without keys, with a leaf in common, and at inner
/// nodes.
template <class T = float>
Forest<T> random_forest(unsigned seed, index_t most_tokens, index_t most_queries, index_t heads = 2, index_t group = 3,
                        index_t key_dim = 20, index_t value_dim = 12) {
  std::mt19937 random(seed);
  const auto draw = [&](index_t n) { return static_cast<index_t>(random() % static_cast<unsigned>(n)); };
  const index_t count = 1 + draw(12);
  std::vector<index_t> parents, lengths, depths, leaves, queries;
  for (index_t s = 0; s < count; ++s) {
    index_t parent = draw(s + 1) - 1;
    while (parent >= 0 && depths[at(parent)] >= 4) parent = parents[at(parent)];
    parents.push_back(parent);
    depths.push_back(parent < 0 ? 0 : depths[at(parent)] + 1);
    const index_t kind = draw(8);
    lengths.push_back(kind == 0 ? 0 : kind == 1 ? 1 : draw(most_tokens));
  }
  const index_t requests = 1 + draw(33);
  for (index_t r = 0; r < requests; ++r) {
    leaves.push_back(draw(count + 1) - 1);
    queries.push_back(most_queries == 1 ? 1 : draw(most_queries + 1));
  }
  return make_forest<T>(heads, group, key_dim, value_dim, parents, lengths, leaves, queries, seed);
}

template <class A = decant::attention::Dense, class T, class C, class M = decant::attention::Causal>
Result run_cascade(decant::Cpu& cpu, const CascadePlan& plan, const Problem<T>& p, const C& cache,
                   const A& a = {}, const M& mask = {},
                   const std::vector<float>& sinks = {}) {
  Result r{std::vector<float>(at(p.total() * p.query_heads() * p.value_dim), quiet_nan),
           std::vector<float>(at(p.total() * p.query_heads()), quiet_nan)};
  attend(cpu, a, plan, p.views(), cache,
         decant::View<float, 3>(r.o.data(), p.total(), p.query_heads(), p.value_dim),
         decant::View<float, 2>(r.lse.data(), p.total(), p.query_heads()), mask,
         sinks.empty() ? decant::View<const float, 1>{} : decant::View<const float, 1>(sinks));
  return r;
}

}  // namespace attention_test
