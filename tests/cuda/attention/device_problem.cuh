#pragma once
// The problems and caches of tests/unit/attention/problem.hpp on the device, and a call of attend() over them.

#include <optional>

#include "cuda/device_memory.cuh"
#include "decant/attention/dense.cuh"
#include "unit/attention/problem.hpp"

namespace attention_test {

using cuda_test::DeviceBuffer;

/// The same view over a copy on the device.
template <class T, int Rank>
decant::View<const T, Rank> moved(const decant::View<const T, Rank>& view, const std::vector<T>& host,
                                  const DeviceBuffer<T>& device) {
  index_t extents[Rank], strides[Rank];
  for (int r = 0; r < Rank; ++r) extents[r] = view.extent(r), strides[r] = view.stride(r);
  return decant::View<const T, Rank>(device.data() + (view.data() - host.data()), extents, strides);
}

template <class Cache>
struct OnDevice;

template <class T>
struct OnDevice<DenseCache<T>> {
  DeviceBuffer<T> keys, values;
  DeviceBuffer<std::int32_t> lengths;
  decant::kv::DenseKV<const T> view;

  explicit OnDevice(const DenseCache<T>& c) : keys(c.keys), values(c.values), lengths(c.lengths) {
    view = {moved(c.view.keys, c.keys, keys), moved(c.view.values, c.values, values), lengths.view(lengths.size())};
  }
};

template <class T>
struct OnDevice<PagedCache<T>> {
  DeviceBuffer<T> keys, values;
  DeviceBuffer<std::int32_t> indptr, indices, last;
  decant::kv::PagedKV<const T> view;

  explicit OnDevice(const PagedCache<T>& c)
      : keys(c.keys), values(c.values), indptr(c.indptr), indices(c.indices), last(c.last) {
    view = {moved(c.view.keys, c.keys, keys),
            c.values.empty() ? moved(c.view.values, c.keys, keys) : moved(c.view.values, c.values, values),
            indptr.view(indptr.size()), indices.view(indices.size()), last.view(last.size())};
  }
};

template <class T>
struct OnDevice<RaggedCache<T>> {
  DeviceBuffer<T> keys, values;
  DeviceBuffer<index_t> offsets;
  DeviceBuffer<std::int32_t> lengths;
  decant::kv::RaggedKV<const T> view;

  explicit OnDevice(const RaggedCache<T>& c) : keys(c.keys), values(c.values), offsets(c.offsets), lengths(c.lengths) {
    view = {moved(c.view.keys, c.keys, keys), moved(c.view.values, c.values, values), offsets.view(offsets.size()),
            lengths.view(lengths.size()), c.view.heads};
  }
};

/// Queries, outputs and sinks of a problem on the device. Outputs begin as NaN.
template <class Q = float, class O = float>
struct DeviceCall {
  index_t total, heads, key_dim, value_dim;
  DeviceBuffer<Q> q;
  DeviceBuffer<std::int32_t> indptr;
  DeviceBuffer<O> o;
  DeviceBuffer<float> lse;
  DeviceBuffer<float> sinks;

  template <class T>
  explicit DeviceCall(const Problem<T>& p, const std::vector<float>& sink = {})
      : total(p.total()),
        heads(p.query_heads()),
        key_dim(p.key_dim),
        value_dim(p.value_dim),
        q(std::vector<Q>(p.q.begin(), p.q.end())),
        indptr(p.indptr),
        o(std::vector<O>(at(total * heads * value_dim), O(quiet_nan))),
        lse(std::vector<float>(at(total * heads), quiet_nan)),
        sinks(sink) {}

  decant::View<const Q, 3> rows() const { return q.view(total, heads, key_dim); }
  /// With offsets, or, where each sequence has one query, without.
  decant::attention::Queries<Q> queries(bool offsets) const {
    decant::attention::Queries<Q> all{rows()};
    if (offsets) all.indptr = indptr.view(indptr.size());
    return all;
  }
  decant::View<O, 3> out() const { return o.view(total, heads, value_dim); }
  decant::View<float, 2> lses() const { return lse.view(total, heads); }
  decant::View<const float, 1> sink_view() const {
    return sinks.size() == 0 ? decant::View<const float, 1>{} : decant::View<const float, 1>(sinks.view(sinks.size()));
  }

  Result result() const {
    const std::vector<O> values = o.download();
    return {std::vector<float>(values.begin(), values.end()), lse.download()};
  }
};

template <class Q = float, class O = float, class T, class C, class M = decant::attention::Causal>
Result run(decant::Cuda& cuda, const Problem<T>& p, const C& cache, const decant::attention::Dense& a = {},
           const M& mask = {}, const std::vector<float>& sinks = {}, bool offsets = false) {
  const DeviceCall<Q, O> call(p, sinks);
  const OnDevice<C> device(cache);
  attend(cuda, a, call.queries(offsets || p.total() != p.sequences()), device.view, call.out(), call.lses(), mask,
         call.sink_view());
  cuda.check();
  return call.result();
}

}  // namespace attention_test
