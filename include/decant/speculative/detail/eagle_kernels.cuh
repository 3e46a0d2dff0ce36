// decant: the kernels of eagle_tree.cuh, a block per request. Everything is ranked by counting or by bisection over
// keys that order as scores do, ties by place: no atomics decide where something lies.
#ifndef DECANT_SPECULATIVE_DETAIL_EAGLE_KERNELS_CUH
#define DECANT_SPECULATIVE_DETAIL_EAGLE_KERNELS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc"
#endif

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"
#include "../../core/topk.hpp"
#include "../../sampling/logit_row.hpp"
#include "../../sampling/status.hpp"
#include "../eagle_tree.hpp"
#include "../tree.hpp"

namespace decant::speculative {

/// Places for the candidates of `levels` levels of one request: level 0 has top_k, each other top_k for each of the
/// top_k nodes of the beam.
DECANT_HD constexpr std::int32_t eagle_candidates(const EagleOptions& o, std::int32_t levels) {
  return levels <= 0 ? 0 : o.top_k + (levels - 1) * o.top_k * o.top_k;
}
/// Nodes of one request's beam: the root, then top_k for each level that is forwarded.
DECANT_HD constexpr std::int32_t eagle_beam(const EagleOptions& o) { return 1 + o.depth * o.top_k; }

/// Where the trees of B requests grow, all on the device; C = eagle_candidates(options, depth + 1), F = eagle_beam.
struct EagleGrowth {
  View<const std::int32_t, 1> root{};     ///< [B], the last committed tokens; the only input
  View<std::int32_t, 2> token{};          ///< [B, C], candidates in the order of creation; -1: none here
  View<std::int32_t, 2> parent{};         ///< [B, C], a candidate; -1: the root
  View<float, 2> score{};                 ///< [B, C], cumulative log-probabilities
  View<std::int32_t, 2> count{};          ///< [B, depth + 1], how many there are on each level
  View<std::int32_t, 2> beam_token{};     ///< [B, F], what to forward; where there is no node: token 0 below the root
  View<std::int32_t, 2> beam_parent{};    ///< [B, F], a node of the beam; -1: the root has none
  View<std::int32_t, 2> beam_candidate{}; ///< [B, F]; -1: the root, or no node
  /// [B, F, ceil(F / 64)], optional: bit j of a node's words is 1 where it sees node j, itself and its ancestors.
  View<std::uint64_t, 3> beam_mask{};
};

/// A forest that is written on the device: as ForestView, each array with room for all nodes.
struct DeviceForest {
  View<std::int32_t, 1> offsets{};  ///< [B + 1]
  View<std::int32_t, 1> token{}, parent{}, first_child{}, children{};
  View<std::uint16_t, 1> depth{};
  View<Law, 1> law{};
  View<std::int32_t, 1> q_row{};
  View<float, 1> rest{};
  View<float, 1> score{};  ///< optional

  /// all.nodes is the room: the device alone knows the number.
  ForestView view() const {
    return {{static_cast<std::int32_t>(token.extent(0)), token.data(), parent.data(), first_child.data(),
             children.data(), depth.data(), law.data(), q_row.data(), rest.data()},
            View<const std::int32_t, 1>(offsets)};
  }
};

namespace detail {

inline constexpr int eagle_threads = 256;

/// top [rows, t]: the tokens of each row's t largest logits, in any order.
template <int Threads>
__global__ void __launch_bounds__(Threads, 1)
    eagle_level_kernel(EagleOptions o, std::int32_t level, View<const float, 2> logits,
                       View<const sampling::LogitRow, 1> filtered, View<const sampling::RowStatus, 1> status,
                       View<const std::int32_t, 2> top, EagleGrowth g) {
  extern __shared__ std::uint32_t eagle_level_keys[];  // [places]; 0: no candidate
  std::uint32_t* const keys = eagle_level_keys;
  __shared__ std::int32_t sums[32];
  const index_t b = blockIdx.x;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t k = o.top_k;
  const std::int32_t rows = level == 0 ? 1 : k;
  const std::int32_t places = rows * k;
  const std::int32_t base = eagle_candidates(o, level);
  const std::int32_t beam = level == 0 ? 0 : 1 + (level - 1) * k;  // of the level's rows
  const auto taken = static_cast<std::int32_t>(top.extent(1));
  const auto words = static_cast<std::int32_t>(g.beam_mask.extent(2));
  for (std::int32_t s = thread; s < places; s += eagle_threads) {
    keys[s] = 0;
    g.token(b, base + s) = -1;
    g.parent(b, base + s) = -1;
    g.score(b, base + s) = -__builtin_huge_valf();
  }
  if (level == 0 && thread == 0) {
    g.beam_token(b, 0) = g.root[b];
    g.beam_parent(b, 0) = -1;
    g.beam_candidate(b, 0) = -1;
    for (std::int32_t w = 0; w < words; ++w) g.beam_mask(b, 0, w) = w == 0 ? 1 : 0;
  }
  __syncthreads();
  std::int32_t found = 0;
  for (std::int32_t s = thread; s < rows * taken; s += eagle_threads) {
    const std::int32_t r = s / taken;
    const index_t row = b * rows + r;
    const std::int32_t above = level == 0 ? -1 : g.beam_candidate(b, beam + r);
    if ((level > 0 && above < 0) || status[row] != sampling::RowStatus::ok) continue;
    const std::int32_t token = top(row, s % taken);
    const float logit = logits(row, token);
    if (!(logit > -__builtin_huge_valf())) continue;
    std::int32_t rank = 0;
    for (std::int32_t other = 0; other < taken; ++other) {
      const std::int32_t rival = top(row, other);
      const float x = logits(row, rival);
      rank += x > logit || (x == logit && rival < token) ? 1 : 0;
    }
    const float score = (above < 0 ? 0.0f : g.score(b, above)) + log_softmax(logit, filtered[row].log_sum_exp);
    const std::int32_t place = r * k + rank;
    keys[place] = score_key(score);
    g.token(b, base + place) = token;
    g.parent(b, base + place) = above;
    g.score(b, base + place) = score;
    ++found;
  }
  found = ::decant::detail::block_reduce(found, ::decant::detail::Plus{}, 0, sums);  // and a barrier
  if (thread == 0) g.count(b, level) = found;
  if (level == o.depth) return;
  const std::int32_t next = 1 + level * k;
  for (std::int32_t i = thread; i < k; i += eagle_threads) {
    if (i < found) continue;  // the others get their node below
    g.beam_token(b, next + i) = 0;
    g.beam_parent(b, next + i) = 0;
    g.beam_candidate(b, next + i) = -1;
    for (std::int32_t w = 0; w < words; ++w) {
      const std::uint64_t own = w == (next + i) / 64 ? std::uint64_t{1} << ((next + i) % 64) : 0;
      g.beam_mask(b, next + i, w) = own | (w == 0 ? 1u : 0u);
    }
  }
  for (std::int32_t s = thread; s < places; s += eagle_threads) {
    const std::uint32_t key = keys[s];
    if (key == 0) continue;
    std::int32_t rank = 0;
    for (std::int32_t other = 0; other < places && rank < k; ++other) {
      rank += keys[other] > key || (keys[other] == key && other < s) ? 1 : 0;
    }
    if (rank >= k) continue;
    const std::int32_t node = next + rank;
    const std::int32_t parent = level == 0 ? 0 : beam + s / k;
    g.beam_token(b, node) = g.token(b, base + s);
    g.beam_parent(b, node) = parent;
    g.beam_candidate(b, node) = base + s;
    for (std::int32_t w = 0; w < words; ++w) {
      g.beam_mask(b, node, w) = g.beam_mask(b, parent, w) | (w == node / 64 ? std::uint64_t{1} << (node % 64) : 0);
    }
  }
}

/// Request b's tree goes behind those of the requests before it.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    eagle_trees_kernel(EagleOptions o, std::int32_t levels, std::int32_t most, EagleGrowth g, DeviceForest out) {
  using ::decant::detail::block_reduce;
  using ::decant::detail::block_scan_before;
  using ::decant::detail::Plus;
  extern __shared__ std::uint32_t eagle_tree_keys[];
  __shared__ std::int32_t sums[32];
  const std::int32_t candidates = eagle_candidates(o, levels);
  std::uint32_t* const keys = eagle_tree_keys;                              // [candidates]
  auto* const chosen = reinterpret_cast<std::int32_t*>(keys + candidates);  // [candidates], number in the tree, or -1
  std::int32_t* const from = chosen + candidates;                           // [most + 1], by number: its candidate
  std::int32_t* const above = from + most + 1;                              // its parent's number
  std::int32_t* const place = above + most + 1;                             // where it lies, breadth first
  const index_t b = blockIdx.x;
  const index_t requests = g.root.extent(0);
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto drafted = [&](index_t request) {
    std::int32_t found = 0;
    for (std::int32_t level = 0; level < levels; ++level) found += g.count(request, level);
    return found < 0 ? 0 : found < most ? found : most;
  };
  std::int32_t before = 0;
  for (index_t request = thread; request < b; request += eagle_threads) before += 1 + drafted(request);
  before = block_reduce(before, Plus{}, 0, sums);
  if (thread == 0) out.offsets[b] = before;
  if (b >= requests) return;
  const std::int32_t wanted = drafted(b);
  const std::int32_t nodes = 1 + wanted;
  if (thread == 0 && b + 1 == requests) out.offsets[requests] = before + nodes;
  for (std::int32_t s = thread; s < candidates; s += eagle_threads) {
    keys[s] = g.token(b, s) < 0 ? 0 : score_key(g.score(b, s));
  }
  __syncthreads();
  // The largest key that `wanted` candidates reach.
  std::uint32_t threshold = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const std::uint32_t next = threshold | 1u << bit;
    std::int32_t reach = 0;
    for (std::int32_t s = thread; s < candidates; s += eagle_threads) reach += keys[s] >= next ? 1 : 0;
    if (block_reduce(reach, Plus{}, 0, sums) >= wanted && wanted > 0) threshold = next;
  }
  std::int32_t larger = 0;
  for (std::int32_t s = thread; s < candidates; s += eagle_threads) larger += keys[s] > threshold ? 1 : 0;
  const std::int32_t ties = wanted == 0 ? 0 : wanted - block_reduce(larger, Plus{}, 0, sums);
  std::int32_t equal_before = 0;
  std::int32_t chosen_before = 1;
  for (std::int32_t tile = 0; tile < candidates && wanted > 0; tile += eagle_threads) {
    const std::int32_t s = tile + thread;
    const bool equal = s < candidates && keys[s] == threshold;
    std::int32_t total = 0;
    const std::int32_t tie = equal_before + block_scan_before(equal ? 1 : 0, total, sums);
    equal_before += total;
    const bool taken = s < candidates && (keys[s] > threshold || (equal && tie < ties));
    const std::int32_t number = chosen_before + block_scan_before(taken ? 1 : 0, total, sums);
    chosen_before += total;
    if (s < candidates) chosen[s] = taken ? number : -1;
    if (taken) from[number] = s;
  }
  if (thread == 0) {
    above[0] = -1;
    place[0] = 0;
  }
  __syncthreads();
  for (std::int32_t i = 1 + thread; i < nodes; i += eagle_threads) {
    const std::int32_t parent = g.parent(b, from[i]);
    above[i] = parent < 0 ? 0 : chosen[parent];  // chosen too: its score is no smaller, and it is older
  }
  // Level by level: nodes follow the places of their parents, siblings the order of creation.
  std::int32_t begin = 1;
  for (std::int32_t level = 0; level < levels && begin < nodes; ++level) {
    __syncthreads();
    const std::int32_t last = eagle_candidates(o, level + 1);
    std::int32_t reach = 0;
    for (std::int32_t i = begin + thread; i < nodes; i += eagle_threads) reach += from[i] < last ? 1 : 0;
    const std::int32_t end = begin + block_reduce(reach, Plus{}, 0, sums);
    for (std::int32_t i = begin + thread; i < end; i += eagle_threads) {
      const std::int32_t own = place[above[i]];
      std::int32_t at = begin;
      for (std::int32_t other = begin; other < end; ++other) {
        const std::int32_t rival = place[above[other]];
        at += rival < own || (rival == own && other < i) ? 1 : 0;
      }
      place[i] = at;
      out.depth[before + at] = static_cast<std::uint16_t>(level + 1);
    }
    begin = end;
  }
  __syncthreads();
  for (std::int32_t i = thread; i < nodes; i += eagle_threads) {
    std::int32_t children = 0;
    std::int32_t first = -1;
    for (std::int32_t other = i + 1; other < nodes; ++other) {
      if (above[other] != i) continue;
      ++children;
      first = first < 0 || place[other] < first ? place[other] : first;
    }
    const index_t at = before + place[i];
    out.token[at] = i == 0 ? g.root[b] : g.token(b, from[i]);
    out.parent[at] = i == 0 ? -1 : place[above[i]];
    out.first_child[at] = first;
    out.children[at] = children;
    out.law[at] = Law::deterministic;
    out.q_row[at] = -1;
    out.rest[at] = 0;
    if (i == 0) out.depth[at] = 0;
    if (out.score.data() != nullptr) out.score[at] = i == 0 ? 0.0f : g.score(b, from[i]);
  }
}

}  // namespace detail

}  // namespace decant::speculative

#endif
