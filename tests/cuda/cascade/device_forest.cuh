#pragma once
// The forests of tests/unit/attention/forest.hpp on the device: their plans, and a call of attend() over them.

#include "cuda/attention/device_problem.cuh"
#include "decant/attention/cascade.cuh"
#include "unit/attention/forest.hpp"

namespace attention_test {

using decant::attention::CascadeRoom;
using decant::attention::DeviceCascade;

struct Context {
  cuda_test::Stream stream;
  decant::Cuda cuda{stream};
};

/// Memory for plans of a room, and the way there.
struct PlanMemory {
  CascadeRoom room;
  std::vector<std::int32_t> staging;
  DeviceBuffer<std::int32_t> words;

  explicit PlanMemory(const CascadeRoom& r)
      : room(r), staging(at(cascade_words(r))), words(static_cast<index_t>(staging.size())) {}

  DeviceCascade view() const { return {room, words.data()}; }
  DeviceCascade send(decant::Cuda& cuda, const CascadePlan& plan) {
    return upload(cuda, plan, room, staging, words.view(words.size()));
  }
};

template <class Q = float, class O = float, class T, class C, class M = decant::attention::Causal>
Result run_cascade(decant::Cuda& cuda, const CascadePlan& plan, const Problem<T>& flat, const C& cache,
                   const decant::attention::Dense& a = {}, const M& mask = {}, const std::vector<float>& sinks = {},
                   bool offsets = false) {
  const DeviceCall<Q, O> call(flat, sinks);
  const OnDevice<C> device(cache);
  PlanMemory memory(cascade_room(plan));
  attend(cuda, a, memory.send(cuda, plan), call.queries(offsets || flat.total() != flat.sequences()), device.view,
         call.out(), call.lses(), mask, call.sink_view());
  cuda.check();
  return call.result();
}

template <class T>
CascadePlan plan_of(const Forest<T>& f, index_t piece = 8192) {
  return plan(decant::attention::Cascade{.piece = piece}, f.segment_view(), f.leaf_view());
}

}  // namespace attention_test
