// Which policies of kv::AllPolicies the device has, and which only the host.
#pragma once

#include "conformance/kv_eviction_policy.hpp"
#include "cuda/mirror.cuh"
#include "decant/decant.cuh"

namespace conformance {

// In two halves, one for each file.
using First = kv::PolicyList<kv::Full, kv::StreamingLLM, kv::Random, kv::KNorm, kv::KeyDiff, kv::BlockwiseKeyDiff,
                             kv::Leverage>;
using Second = kv::PolicyList<kv::SnapKV, kv::TOVA, kv::H2O, kv::ExpectedAttention, kv::PyramidKV, kv::AdaKV,
                              kv::CapKV>;
using HostOnly = kv::PolicyList<kv::GreedyCapKV, kv::BackwardLOO>;

template <class P, class... Policies>
constexpr bool holds(kv::PolicyList<Policies...>) {
  return (... || std::same_as<P, Policies>);
}
template <class... Policies>
constexpr bool each_stands_once(kv::PolicyList<Policies...>) {
  return (... && (holds<Policies>(First{}) + holds<Policies>(Second{}) + holds<Policies>(HostOnly{}) == 1));
}
template <class... Policies>
constexpr bool none_has_a_twin(kv::PolicyList<Policies...>) {
  return !(... || kv::KVEvictionPolicy<Policies, decant::Cuda>);
}

static_assert(each_stands_once(kv::AllPolicies{}), "a policy is neither tested on CUDA nor listed as the host's alone");
static_assert(First::size + Second::size + HostOnly::size == kv::AllPolicies::size);
static_assert(none_has_a_twin(HostOnly{}), "test the new twin");

}  // namespace conformance
