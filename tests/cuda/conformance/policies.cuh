// The policies of kv::AllPolicies, all of which the device has.
#pragma once

#include "conformance/kv_eviction_policy.hpp"
#include "cuda/mirror.cuh"
#include "decant/decant.cuh"

namespace conformance {

// In two halves, one for each file.
using First = kv::PolicyList<kv::Full, kv::StreamingLLM, kv::Random, kv::KNorm, kv::KeyDiff, kv::BlockwiseKeyDiff,
                             kv::Leverage, kv::BackwardLOO>;
using Second = kv::PolicyList<kv::SnapKV, kv::TOVA, kv::H2O, kv::ExpectedAttention, kv::PyramidKV, kv::AdaKV,
                              kv::CapKV, kv::GreedyCapKV>;

template <class P, class... Policies>
constexpr bool holds(kv::PolicyList<Policies...>) {
  return (... || std::same_as<P, Policies>);
}
template <class... Policies>
constexpr bool each_stands_once(kv::PolicyList<Policies...>) {
  return (... && (holds<Policies>(First{}) + holds<Policies>(Second{}) == 1));
}

static_assert(each_stands_once(kv::AllPolicies{}), "a policy is not tested on CUDA");
static_assert(First::size + Second::size == kv::AllPolicies::size);

}  // namespace conformance
