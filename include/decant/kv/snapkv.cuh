// decant: SnapKV on Cuda: its stages' twins.
#ifndef DECANT_KV_SNAPKV_CUH
#define DECANT_KV_SNAPKV_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "eviction.cuh"
#include "snapkv.hpp"
#include "window_attention.cuh"

namespace decant::kv {

static_assert(KVEvictionPolicy<SnapKV, Cuda>);

}  // namespace decant::kv

#endif
