#pragma once
// The problems and latent caches of tests/unit/attention/mla_problem.hpp on the device, and a call over them.

#include "cuda/device_memory.cuh"
#include "decant/attention/mla.cuh"
#include "unit/attention/mla_problem.hpp"

namespace attention_test {

using cuda_test::DeviceBuffer;

/// A pool of rows as it lies on the host.
template <class T>
struct DevicePool {
  DeviceBuffer<T> memory;
  decant::View<const T, 3> rows;

  explicit DevicePool(const LatentPool<T>& p)
      : memory(p.memory),
        rows(memory.data(), {p.rows.extent(0), p.rows.extent(1), p.rows.extent(2)},
             {p.rows.stride(0), p.rows.stride(1), p.rows.stride(2)}) {}
};

struct DevicePlaces {
  DeviceBuffer<std::int32_t> lengths, indptr, indices, last;

  explicit DevicePlaces(const LatentPlaces& p)
      : lengths(p.lengths), indptr(p.indptr), indices(p.indices), last(p.last) {}
  static decant::View<const std::int32_t, 1> view(const DeviceBuffer<std::int32_t>& x) { return x.view(x.size()); }
};

template <class T>
struct DeviceOneRow : DevicePlaces {
  DevicePool<T> pool;
  index_t latent;

  explicit DeviceOneRow(const OneRowCache<T>& c) : DevicePlaces(c), pool(c.pool), latent(c.latent) {}
  auto dense() const { return decant::kv::latent(pool.rows, view(lengths), latent); }
  auto paged() const { return decant::kv::latent(pool.rows, view(indptr), view(indices), view(last), latent); }
};

template <class T>
struct DeviceTwoPools : DevicePlaces {
  DevicePool<T> c, k_pe;

  explicit DeviceTwoPools(const TwoPoolCache<T>& x) : DevicePlaces(x), c(x.c), k_pe(x.k_pe) {}
  auto dense() const { return decant::kv::latent(c.rows, k_pe.rows, view(lengths)); }
  auto paged() const { return decant::kv::latent(c.rows, k_pe.rows, view(indptr), view(indices), view(last)); }
};

/// Queries, weights and results. Results begin as NaN.
template <class W>
struct DeviceMla {
  index_t total, heads;
  oracle::MlaDims dims;
  DeviceBuffer<float> nope, pe;
  DeviceBuffer<W> kv_b;
  DeviceBuffer<std::int32_t> indptr;
  DeviceBuffer<float> o, lse;

  template <class T>
  explicit DeviceMla(const MlaProblem<T, W>& p)
      : total(p.total()),
        heads(p.heads),
        dims(p.dims),
        nope(p.q_nope),
        pe(p.q_pe),
        kv_b(p.kv_b),
        indptr(p.indptr),
        o(std::vector<float>(at(total * heads * dims.value), quiet_nan)),
        lse(std::vector<float>(at(total * heads), quiet_nan)) {}

  decant::attention::MlaQueries<float> queries(bool offsets) const {
    decant::attention::MlaQueries<float> q{nope.view(total, heads, index_t{dims.nope}),
                                           pe.view(total, heads, index_t{dims.rope})};
    if (offsets) q.indptr = indptr.view(indptr.size());
    return q;
  }
  decant::attention::MlaWeights<W> weights() const {
    return decant::attention::mla_weights(
        decant::View<const W, 2>(kv_b.data(), heads * (dims.nope + dims.value), index_t{dims.latent}), heads,
        dims.nope);
  }
  decant::View<float, 3> out() const { return o.view(total, heads, index_t{dims.value}); }
  decant::View<float, 2> lses() const { return lse.view(total, heads); }
  Result result() const { return {o.download(), lse.download()}; }
};

struct MlaContext {
  cuda_test::Stream stream;
  decant::Cuda cuda{stream};
};

template <class T, class W, class C>
Result run_mla(decant::Cuda& cuda, const MlaProblem<T, W>& p, const C& on_device,
               const decant::attention::Mla& a = {}) {
  const DeviceMla<W> call(p);
  attend(cuda, a, call.queries(p.total() != p.sequences()), call.weights(), on_device, call.out(), call.lses());
  cuda.check();
  return call.result();
}

}  // namespace attention_test
