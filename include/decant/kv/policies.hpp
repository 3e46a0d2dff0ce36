// decant: every eviction policy in one header, and the list of them that the conformance suite runs over.
#ifndef DECANT_KV_POLICIES_HPP
#define DECANT_KV_POLICIES_HPP

#include "adakv.hpp"
#include "backward_loo.hpp"
#include "capkv.hpp"
#include "expected_attention.hpp"
#include "full.hpp"
#include "global_top_k.hpp"
#include "greedy_log_det.hpp"
#include "h2o.hpp"
#include "keydiff.hpp"
#include "knorm.hpp"
#include "leverage.hpp"
#include "pyramidkv.hpp"
#include "random.hpp"
#include "snapkv.hpp"
#include "streaming_llm.hpp"
#include "tova.hpp"

namespace decant::kv {

template <class... Policies>
struct PolicyList {
  static constexpr int size = sizeof...(Policies);
};

/// The papers: every struct that has stages().
using AllPolicies = PolicyList<Full, StreamingLLM, Random, KNorm, KeyDiff, BlockwiseKeyDiff, SnapKV, TOVA, H2O,
                               ExpectedAttention, PyramidKV, AdaKV, CapKV, GreedyCapKV, Leverage, BackwardLOO>;

}  // namespace decant::kv

#endif
