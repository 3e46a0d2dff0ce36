// A context for the conformance suites that takes host memory, as Cpu does: it copies what a call reads to the device,
// makes the call there, waits, and copies the results back.
#pragma once

#include <optional>
#include <vector>

#include "conformance/context.hpp"
#include "cuda/device_memory.cuh"
#include "cuda/kv_scores/device_copy.cuh"
#include "cuda/kv_select/fixtures.cuh"
#include "decant/attention/dense.cuh"
#include "decant/core/cuda.cuh"
#include "decant/kv/eviction.cuh"

namespace cuda_test {

class MirrorCuda {
 public:
  MirrorCuda() { cuda_.emplace(stream_); }
  /// Scratch of so many bytes, and never more.
  explicit MirrorCuda(std::size_t bytes) : scratch_(static_cast<index_t>(bytes)) {
    cuda_.emplace(stream_, scratch_.data(), bytes);
  }

  decant::Cuda& cuda() { return *cuda_; }
  decant::Workspace& workspace() { return cuda_->workspace(); }

 private:
  Stream stream_;
  DeviceBuffer<unsigned char> scratch_{1};
  std::optional<decant::Cuda> cuda_;
};

/// What the device wrote, over the host's memory; nothing elsewhere.
template <class P, class C, class Q>
void select(MirrorCuda& mirror, const P& policy, const kv::LayerView<C, Q>& x, const kv::Budget& budget,
            const kv::KeptView& out) {
  DeviceCopy copy;
  const DeviceKept kept(out.indices.extent(0), out.indices.extent(1));
  select(mirror.cuda(), policy, copy(x), budget, kept.view());
  mirror.cuda().check();
  const std::vector<std::vector<index_t>> tokens = kept.tokens();
  for (index_t h = 0; h < out.kv_heads(); ++h) {
    const auto& head = tokens[static_cast<std::size_t>(h)];
    for (std::size_t i = 0; i < head.size(); ++i) {
      out.indices(h, static_cast<index_t>(i)) = static_cast<std::int32_t>(head[i]);
    }
    out.counts[h] = static_cast<std::int32_t>(head.size());
  }
}

template <class P, class C, class Q>
kv::Kept select(MirrorCuda& mirror, const P& policy, const kv::LayerView<C, Q>& x, const kv::Budget& budget) {
  kv::Kept kept(x.kv_heads(), x.max_length());
  select(mirror, policy, x, budget, kept.view());
  return kept;
}

template <class S, class C, class Q>
void score(MirrorCuda& mirror, const S& scorer, const kv::LayerView<C, Q>& x, View<float, 2> scores) {
  DeviceCopy copy;
  const std::vector<float> all = scored(mirror.cuda(), scorer, copy(x), scores.extent(1));
  for (index_t h = 0; h < scores.extent(0); ++h) {
    for (index_t t = 0; t < scores.extent(1); ++t) {
      scores(h, t) = all[static_cast<std::size_t>(h * scores.extent(1) + t)];
    }
  }
}

template <class P>
void protect(MirrorCuda& mirror, const P& protection, const kv::ScoredLayer& x) {
  DeviceCopy copy;
  const kv::ScoredLayer y{copy(x.scores), copy(x.keep), copy(x.lengths), x.layer, x.layers};
  protect(mirror.cuda(), protection, y);
  mirror.cuda().check();
  DeviceCopy::back(y.keep, x.keep);
}

/// One query per sequence. Whatever the device wrote comes back, also when the call is refused.
template <class A, class Q, class C, class O>
void attend(MirrorCuda& mirror, const A& policy, const View<Q, 3>& q, const C& cache, const View<O, 3>& out,
            const View<float, 2>& lse) {
  DeviceCopy copy;
  const View<O, 3> device_out = copy(out);
  const View<float, 2> device_lse = copy(lse);
  const auto finish = [&] {
    if (out.size() > 0) DeviceCopy::back(device_out, out);
    if (lse.size() > 0) DeviceCopy::back(device_lse, lse);
  };
  try {
    attend(mirror.cuda(), policy, copy(q), copy(cache), device_out, device_lse);
    mirror.cuda().check();
  } catch (const decant::Error&) {
    finish();
    throw;
  }
  finish();
}

}  // namespace cuda_test

template <>
struct conformance::ContextTraits<cuda_test::MirrorCuda> {
  using Engine = decant::Cuda;
  static constexpr std::uint32_t draws = 72;
  static constexpr decant::index_t nesting_step = 3;
};
