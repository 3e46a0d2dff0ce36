// decant: kv::LatentKV in the kernels of attention: rows of c and of k_pe, out of two pools, become one row in shared
// memory, whose beginning serves as the value. Nothing is widened, so that tensor cores work on them as on a cache of
// one row per token, and with the same bits. What kernels ask of a view by name stands in the view's namespace.
#ifndef DECANT_ATTENTION_DETAIL_LATENT_ROWS_CUH
#define DECANT_ATTENTION_DETAIL_LATENT_ROWS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <type_traits>

#include "../../kv/latent_kv.hpp"
#include "dense_copy.cuh"

namespace decant::kv {

namespace detail {

template <class Pools>
void require_cache(const LatentKV<Pools>& c) {
  require_cache(c.pools);
}

template <class Pools>
__device__ bool check_tables(const LatentKV<Pools>& c, index_t s, FaultWord* fault, index_t layer) {
  return check_tables(c.pools, s, fault, layer);
}

}  // namespace detail

using detail::check_tables;

template <class Pools>
bool values_in_keys(const LatentKV<Pools>&) {
  return true;
}

template <class Pools>
bool aligned_cache(const LatentKV<Pools>& c) {
  return attention::detail::aligned_cache(c.pools);
}

template <class Pools>
index_t most_chunks(const LatentKV<Pools>& c, const attention::detail::DenseDeviceShape& x) {
  return attention::detail::most_chunks(c.pools, x);
}

template <class Pools>
__device__ bool sound_tables(const LatentKV<Pools>& c, index_t s, index_t h) {
  return attention::detail::sound_tables(c.pools, s, h);
}

}  // namespace decant::kv

namespace decant::attention::detail {

template <class Pools>
struct SharedRow<kv::LatentKV<Pools>> {
  using type = typename Pools::value_type;
};

template <class Pools, int Threads>
class RowLoader<kv::LatentKV<Pools>, Threads> {
 public:
  using T = typename Pools::value_type;

  __device__ RowLoader(const kv::LatentKV<Pools>& cache, index_t sequence, index_t head, const T** pointers, int block,
                       bool aligned, FaultWord* fault)
      : cache_(cache),
        sequence_(sequence),
        head_(head),
        pointers_(pointers),
        block_(block),
        aligned_(aligned),
        fault_(fault) {}

  __device__ void locate(index_t first, int count) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += Threads) {
      const TokenRows<T> rows = rows_of_token(cache_.pools, sequence_, head_, first + i, fault_);
      pointers_[i] = rows.value;
      pointers_[block_ + i] = rows.key;
    }
  }

  template <class To>
  __device__ void copy_keys(int count, To* to, int stride, int vectors) const {
    constexpr int width = per_access<To>;
    const int latent = static_cast<int>(cache_.latent_dim());
    const int rope = static_cast<int>(cache_.rope_dim());
    if (latent % per_access<T> == 0) {
      copy_rows_as<Threads>(pointers_, count, latent, to, stride, latent / width, aligned_);
      if (vectors > latent / width)
        copy_rows_as<Threads>(pointers_ + block_, count, rope, to + latent, stride, vectors - latent / width, aligned_);
      return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < count * vectors * width; i += Threads) {
      const int row = i / (vectors * width);
      const int d = i % (vectors * width);
      const T x = d < latent          ? pointers_[row][d]
                  : d < latent + rope ? pointers_[block_ + row][d - latent]
                                      : T(0.0f);
      if constexpr (std::is_same_v<To, T>)
        to[row * stride + d] = x;
      else
        to[row * stride + d] = To(::decant::detail::widen(x));
    }
  }

  template <class To>
  __device__ void copy_values(int count, To* to, int stride, int vectors) const {
    copy_rows_as<Threads>(pointers_, count, static_cast<int>(cache_.latent_dim()), to, stride, vectors, aligned_);
  }

 private:
  const kv::LatentKV<Pools>& cache_;
  index_t sequence_;
  index_t head_;
  const T** pointers_;
  int block_;
  bool aligned_;
  FaultWord* fault_;
};

}  // namespace decant::attention::detail

#endif
