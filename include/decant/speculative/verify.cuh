// decant: verification on CUDA, token for token what the CPU emits (verify.hpp), over target probabilities or logits.
// All views are device memory, keys too, so that a captured graph draws anew each step. Lazy: one launch, a block per
// request, which reads the rows that the decision needs. UniVer with Eval::level_parallel: a launch per level with a
// block per node, which reads all rows, and one that decides; for few requests with large trees. Passes of 8 bytes per
// token of the vocabulary.
#ifndef DECANT_SPECULATIVE_VERIFY_CUH
#define DECANT_SPECULATIVE_VERIFY_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/cuda.cuh"
#include "detail/verifier_walks.hpp"
#include "detail/verify_kernels.cuh"
#include "verifiers.hpp"

namespace decant::speculative {

namespace detail {

struct ProbabilityTargets {
  ProbabilityRows rows;
  __device__ ProbabilityTarget of(index_t first) const {
    return {rows.data() + first * rows.stride(0), rows.stride(0)};
  }
};

struct LogitTargets {
  LogitRows p;
  __device__ LogitTarget of(index_t first) const {
    return {p.logits.data() + first * p.logits.stride(0), p.logits.stride(0), p.rows.data() + first};
  }
};

template <class V, class Plan, class Targets>
void verify_lazy(Cuda& cuda, const V& policy, const VerifyCall& call, const Targets& targets, const char* where) {
  using Policy = KernelPolicy<V>;
  const index_t requests = call.trees.trees();
  Workspace& workspace = cuda.workspace();
  const bool upwards = direction_of<V> == Direction::bottom_up;
  const bool longest = direction_of<V> == Direction::longest_path;
  Plan* const stack = upwards ? workspace.take<Plan>(requests * call.out.tokens.extent(1)) : nullptr;
  double* const stands = longest ? workspace.take<double>(call.trees.all.nodes) : nullptr;
  Policy kernel_policy{};
  if constexpr (std::same_as<Policy, V>) kernel_policy = policy;
  launch(cuda, where, verify_requests<Policy, Plan, Targets>,
         CudaGrid{static_cast<unsigned>(requests), verify_threads,
                  3 * sizeof(float) * static_cast<std::size_t>(row_tiles(call.vocab))},
         call, kernel_policy, targets, plan_parameter(policy), stack, stands);
}

template <class Plan, class Targets>
void verify_level_parallel(Cuda& cuda, const VerifyCall& call, const Targets& targets, const char* where) {
  const index_t requests = call.trees.trees();
  double* const scales = cuda.workspace().take<double>(call.trees.all.nodes);
  Plan* const plans = cuda.workspace().take<Plan>(call.trees.all.nodes);
  Status* const status = cuda.workspace().take<Status>(requests);
  int* const bad = cuda.workspace().take<int>(requests);
  const std::size_t shared = 3 * sizeof(float) * static_cast<std::size_t>(row_tiles(call.vocab));
  const auto blocks = static_cast<unsigned>(requests);
  const index_t most = call.trees.all.nodes < max_tree_nodes ? call.trees.all.nodes : max_tree_nodes;
  launch(cuda, where, verify_check<verify_threads>, CudaGrid{blocks, verify_threads}, call, scales, status, bad);
  for (index_t level = 0; level < call.out.tokens.extent(1); ++level) {
    launch(cuda, where, verify_level<Plan, Targets>,
           CudaGrid{dim3(static_cast<unsigned>(most), blocks), verify_threads, shared}, call, targets,
           static_cast<std::int32_t>(level), scales, plans, status, bad);
  }
  launch(cuda, where, verify_decide<Plan, Targets>, CudaGrid{blocks, verify_threads, shared}, call, targets, plans,
         status, bad);
}

template <class V, class Targets>
void verify_on_device(Cuda& cuda, const V& policy, const ForestView& trees, const Targets& targets, index_t rows,
                      index_t vocab, const ProbabilityRows& q, const DrawKeys& keys, const Accepted& out,
                      const char* where) {
  validate(policy);
  require_verify(trees, rows, vocab, q, keys, out, where);
  const index_t requests = trees.trees();
  require(requests <= 65535, where, "trees", "at most 65535 requests", requests);
  Workspace::Scope scope(cuda.workspace());
  const VerifyCall call{trees,
                        q,
                        draft_rows<V>(q),
                        static_cast<std::int32_t>(vocab),
                        accepted_laws<V>,
                        keys,
                        out,
                        cuda.workspace().take<double>(trees.all.nodes),
                        cuda.workspace().take<Exception<double>>(trees.all.nodes)};
  if constexpr (std::same_as<V, UniVer>) {
    const bool level = policy.eval == UniVer::Eval::level_parallel;
    if (policy.order == UniVer::Order::paper) {
      level ? verify_level_parallel<JointPlan<double>>(cuda, call, targets, where)
            : verify_lazy<V, JointPlan<double>>(cuda, policy, call, targets, where);
    } else {
      level ? verify_level_parallel<SequentialPlan<double>>(cuda, call, targets, where)
            : verify_lazy<V, SequentialPlan<double>>(cuda, policy, call, targets, where);
    }
  } else {
    verify_lazy<V, typename PlanOf<V, double>::type>(cuda, policy, call, targets, where);
  }
}

}  // namespace detail

/// As verify(Cpu&, ...): p [nodes of all trees, vocab], q [draft rows, vocab], fp32 rows on the device, any distance
/// apart. Capturable; 32 bytes of scratch per node, and a plan per level or node.
template <class V>
  requires detail::walks<V>
void verify(Cuda& cuda, const V& policy, const ForestView& trees, const ProbabilityRows& p, const ProbabilityRows& q,
            const DrawKeys& keys, const Accepted& out) {
  constexpr const char* where = "speculative::verify";
  detail::require_target(p, where);
  detail::verify_on_device(cuda, policy, trees, detail::ProbabilityTargets{p}, p.extent(0), p.extent(1), q, keys, out,
                           where);
}

/// The same from the target's logits, without probabilities in memory.
template <class V>
  requires detail::walks<V>
void verify(Cuda& cuda, const V& policy, const ForestView& trees, const LogitRows& p, const ProbabilityRows& q,
            const DrawKeys& keys, const Accepted& out) {
  constexpr const char* where = "speculative::verify";
  detail::require_target(p, where);
  detail::verify_on_device(cuda, policy, trees, detail::LogitTargets{p}, p.logits.extent(0), p.logits.extent(1), q,
                           keys, out, where);
}

}  // namespace decant::speculative

#endif
