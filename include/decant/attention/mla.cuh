// decant: attention::Mla on Cuda: absorbed multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), capturable. One
// launch absorbs the queries, attend(Dense) runs over the latent cache (for 16-bit caches with 5 and more heads on
// tensor cores, each row of c in shared memory once as key and as value), one launch projects up. Caches in one row
// per token and in two pools take the same kernels.
#ifndef DECANT_ATTENTION_MLA_CUH
#define DECANT_ATTENTION_MLA_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "dense.cuh"
#include "detail/latent_rows.cuh"
#include "detail/mla_project.cuh"
#include "mla.hpp"

namespace decant::attention {

/// The same as absorb_query(Cpu&, ...), see mla.hpp, with everything in device memory. Reads w_uk once. A piece of
/// 128 columns of a head's weights must fit in shared memory.
template <Storage W, Storage Q>
void absorb_query(Cuda& cuda, View<const W, 3> w_uk, View<const Q, 3> q_nope, View<float, 3> q_latent) {
  detail::validate_absorb(w_uk, q_nope, q_latent);
  detail::enqueue_absorb(cuda, "attention::absorb_query", w_uk, q_nope, View<const Q, 3>{}, q_latent);
}

/// The same as up_project(Cpu&, ...), with everything in device memory. Reads w_uv once. 32 rows of a head's weights
/// must fit in shared memory.
template <Storage W, Storage O>
void up_project(Cuda& cuda, View<const W, 3> w_uv, View<const float, 3> o_latent, View<O, 3> out) {
  using namespace detail;
  constexpr const char* where = "attention::up_project";
  validate_up_project(w_uv, o_latent, out);
  if (o_latent.extent(0) == 0) return;
  const index_t dims = w_uv.extent(1);
  const index_t latent = w_uv.extent(2);
  const index_t padded = (latent + per_access<W> - 1) / per_access<W> * per_access<W>;
  const MlaLayout layout = mla_layout<W>(dims < mla_rows ? dims : mla_rows, latent, padded, 0);
  const CudaGrid grid = mla_grid(cuda, where, "w_uv", (dims + mla_rows - 1) / mla_rows, w_uv.extent(0), layout);
  launch(cuda, where, mla_up_kernel<W, O>, grid, w_uv, o_latent, out, layout, aligned_weights(w_uv), cuda.fault());
}

/// The same as attend(Cpu&, Mla, ...), with everything in device memory: faults and capture as in attend(Dense).
/// Error: Mla::error_bound, Mla::rounded_error_bound with a.rounded. Scratch: that of attend(Dense), and 4 * (2 *
/// latent_dim + rope_dim) bytes per query and head.
template <Storage Q, Storage W, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cuda& cuda, const Mla& a, const MlaQueries<Q>& q, const MlaWeights<W>& w, const C& cache, View<O, 3> out,
            View<float, 2> lse = {}, const M& mask = {}) {
  using namespace detail;
  constexpr const char* where = "attention::attend";
  validate_mla_shapes(a, q, w, cache, out);
  const index_t total = q.nope.extent(0);
  const index_t heads = q.nope.extent(1);
  const index_t latent = cache.value_dim();
  const index_t rope = cache.key_dim() - latent;
  const Dense dense{.scale = mla_scale(q.nope.extent(2), rope, a.scale_factor), .chunk = a.chunk, .rounded = a.rounded};

  Workspace::Scope scope(cuda.workspace());
  const View<float, 3> rows = cuda.workspace().template take_view<float>(total, heads, latent + rope);
  const View<float, 3> o_latent = cuda.workspace().template take_view<float>(total, heads, latent);
  const Queries<float> absorbed{rows, q.indptr};
  kv::detail::require_cache(cache);
  validate_dense_shapes(dense, absorbed, cache, o_latent, lse, {});
  enqueue_absorb(cuda, where, w.uk, q.nope, q.pe, rows);
  attend(cuda, dense, absorbed, cache, o_latent, lse, mask);
  up_project(cuda, w.uv, View<const float, 3>(o_latent), out);
}

}  // namespace decant::attention

#endif
