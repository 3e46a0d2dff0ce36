// decant: the kernels of verification. Lazy: one block per request walks its tree and writes what is emitted. Level
// parallel: one block per node shares the node's scale among its children, a launch per level, then one block per
// request decides. Both run walk.hpp, as the CPU does. A request whose tree, law or rows are bad gets its status; the
// others are not affected.
#ifndef DECANT_SPECULATIVE_DETAIL_VERIFY_KERNELS_CUH
#define DECANT_SPECULATIVE_DETAIL_VERIFY_KERNELS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "../accepted.hpp"
#include "../keys.hpp"
#include "../tree.hpp"
#include "block_rows.cuh"
#include "longest_path.hpp"
#include "philox_choices.hpp"
#include "plan.hpp"
#include "request_output.hpp"
#include "verifier_walks.hpp"
#include "walk.hpp"

namespace decant::speculative::detail {

inline constexpr int verify_threads = 512;

/// What every kernel of one call is given.
struct VerifyCall {
  ForestView trees;
  View<const float, 2> q;
  index_t q_rows;  // that trees may name
  std::int32_t vocab;
  unsigned laws;  // that the verifier accepts: bit l for law l
  DrawKeys keys;
  Accepted out;
  double* cuts;                   // [nodes of all trees]
  Exception<double>* exceptions;  // [nodes of all trees]
};

/// The tree of request b; nodes 0 where its offsets are none, its arrays no tree of at most `levels` levels below the
/// root, or a law is not the verifier's, and then its status. By the whole block.
__device__ inline TreeView checked_tree(const VerifyCall& call, index_t b, std::int32_t levels, Status& status) {
  const index_t first = call.trees.offsets[b];
  const index_t last = call.trees.offsets[b + 1];
  status = Status::bad_tree;
  if (first < 0 || last <= first || last > call.trees.all.nodes || last - first > max_tree_nodes) return {};
  const TreeView t = call.trees.tree(b);
  bool tree = true;
  bool law = true;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < t.nodes; i += static_cast<std::int32_t>(blockDim.x)) {
    tree = tree && well_formed_node(t, i, call.vocab, call.q_rows) && t.depth[i] <= levels;
    law = law && (t.children[i] == 0 || ((call.laws >> static_cast<int>(t.law[i])) & 1) != 0);
  }
  tree = __syncthreads_and(tree) != 0;
  law = __syncthreads_and(law) != 0;
  if (!tree) return {};
  status = law ? Status::ok : Status::wrong_law;
  return law ? t : TreeView{};
}

template <class Plan>
struct MakePlan {
  const TreeView& t;
  double parameter;
  __device__ Plan operator()(std::int32_t node, double m) const {
    if constexpr (requires { Plan(t, node, m, parameter); }) {
      return Plan(t, node, m, parameter);
    } else {
      return Plan(t, node, m);
    }
  }
};

/// What a kernel is made for: those that reject share one for each plan and direction.
template <class V>
using KernelPolicy = std::conditional_t<std::same_as<V, GumbelCoupled> || direction_of<V> == Direction::longest_path, V,
                                        std::integral_constant<Direction, direction_of<V>>>;

/// Of the verifiers that share a kernel.
template <Direction D>
inline constexpr ByItself by_itself<std::integral_constant<Direction, D>> =
    D == Direction::follow_target ? ByItself::by_draw : ByItself::by_chance;

/// One block per request. stack: [requests, levels + 1], for walks bottom up; stands: [nodes of all trees], for the
/// longest path. Dynamic shared memory: 3 floats per tile.
template <class Policy, class Plan, class Targets>
__global__ void __launch_bounds__(verify_threads, 1)
    verify_requests(VerifyCall call, Policy policy, Targets targets, double parameter, Plan* stack, double* stands) {
  extern __shared__ float verify_totals[];
  const index_t b = blockIdx.x;
  const auto levels = static_cast<std::int32_t>(call.out.tokens.extent(1)) - 1;
  WalkEnd end;
  const TreeView t = checked_tree(call, b, levels, end.status);
  const index_t first = t.nodes > 0 ? call.trees.offsets[b] : 0;
  BlockRows rows(targets.of(first), call.q, call.vocab, verify_totals);
  PhiloxChoices choices{call.keys.at(b)};
  if (end.status == Status::ok) {
    const PlanScratch<double> scratch{call.cuts + first, call.exceptions + first};
    if constexpr (std::same_as<Policy, GumbelCoupled>) {
      RaceChoices race{choices};
      end = follow_target<double>(t, rows, race);
    } else if constexpr (requires { Policy::lossless; }) {
      end = longest_path(policy, t, rows, choices, stands + first);
    } else if constexpr (Policy::value == Direction::follow_target) {
      end = follow_target<double>(t, rows, choices);
    } else if constexpr (Policy::value == Direction::bottom_up) {
      end = bottom_up<double>(t, 0, 1.0, stack + b * (levels + 1), rows, choices, scratch);
    } else {
      end = top_down<double>(t, MakePlan<Plan>{t, parameter}, rows, choices, scratch);
    }
  }
  finish_request<by_itself<Policy>>(call.out, b, t, end, rows, choices);
}

/// Whose trees are what they should be, and the scale of their roots: before the first level.
template <int Threads>
__global__ void __launch_bounds__(Threads, 1)
    verify_check(VerifyCall call, double* scales, Status* status, int* bad) {
  const index_t b = blockIdx.x;
  Status found = Status::ok;
  const TreeView t =
      checked_tree(call, b, static_cast<std::int32_t>(call.out.tokens.extent(1)) - 1, found);
  if (threadIdx.x != 0) return;
  status[b] = found;
  bad[b] = 0;
  if (t.nodes > 0) scales[call.trees.offsets[b]] = 1.0;
}

/// The nodes of one level: block (i, b) is the i-th node of tree b, and of another level it does nothing.
template <class Plan, class Targets>
__global__ void __launch_bounds__(verify_threads, 1)
    verify_level(VerifyCall call, Targets targets, std::int32_t level, double* scales, Plan* plans,
                 const Status* status, int* bad) {
  extern __shared__ float verify_totals[];
  const index_t b = blockIdx.y;
  if (status[b] != Status::ok) return;
  const index_t first = call.trees.offsets[b];
  const TreeView t = call.trees.tree(b);
  const auto node = static_cast<std::int32_t>(blockIdx.x);
  if (node >= t.nodes || t.depth[node] != level) return;
  BlockRows rows(targets.of(first), call.q, call.vocab, verify_totals);
  // Exceptions of the node's own children lie where those do.
  const index_t own = first + (t.children[node] > 0 ? t.first_child[node] : 0);
  const PlanScratch<double> scratch{call.cuts + first, call.exceptions + own};
  allocate(t, node, scales + first, plans + first, rows, scratch);
  if (rows.bad() && threadIdx.x == 0) atomicExch(bad + b, 1);
}

template <class Plan, class Targets>
__global__ void __launch_bounds__(verify_threads, 1)
    verify_decide(VerifyCall call, Targets targets, const Plan* plans, const Status* status, const int* bad) {
  extern __shared__ float verify_totals[];
  const index_t b = blockIdx.x;
  WalkEnd end{status[b] == Status::ok && bad[b] != 0 ? Status::bad_row : status[b], 0, -1};
  const bool ok = end.status == Status::ok;
  const index_t first = ok ? call.trees.offsets[b] : 0;
  const TreeView t = ok ? call.trees.tree(b) : TreeView{};
  BlockRows rows(targets.of(first), call.q, call.vocab, verify_totals);
  PhiloxChoices choices{call.keys.at(b)};
  if (ok) {
    const PlanScratch<double> scratch{call.cuts + first, call.exceptions + first};
    end = decide<double>(t, plans + first, rows, choices, scratch);
  }
  finish_request<ByItself::by_chance>(call.out, b, t, end, rows, choices);
}

}  // namespace decant::speculative::detail

#endif
