#pragma once
// The least load of the most loaded GPU by its dual: over all non-empty sets of GPUs, what cannot leave the set,
// shared by its members. For 16 GPUs at most.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace oracle {

struct LoadBound {
  std::int64_t tokens = 0, gpus = 1;  // the bound is their quotient

  double value() const { return static_cast<double>(tokens) / static_cast<double>(gpus); }
  std::int64_t rounded_up() const { return (tokens + gpus - 1) / gpus; }
};

// Edges have members from, to and tokens.
template <class Edge>
LoadBound expert_load(const std::vector<std::int64_t>& loads, const std::vector<Edge>& edges) {
  LoadBound best;
  for (std::uint32_t set = 1; set < 1u << loads.size(); ++set) {
    LoadBound bound{0, 0};
    for (std::size_t g = 0; g < loads.size(); ++g) {
      if (set >> g & 1) bound.tokens += loads[g], ++bound.gpus;
    }
    for (const Edge& e : edges) {
      if ((set >> e.from & 1) && !(set >> e.to & 1)) bound.tokens -= e.tokens;
    }
    if (bound.tokens * best.gpus > best.tokens * bound.gpus) best = bound;
  }
  return best;
}

}  // namespace oracle
