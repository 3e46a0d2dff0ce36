// decant: everything, for the CPU and for CUDA. Each header of it can be included by itself, and costs less.
#ifndef DECANT_DECANT_CUH
#define DECANT_DECANT_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "attention/dense.cuh"
#include "attention/state.cuh"
#include "codec/splitzip.cuh"
#include "codec/stored.cuh"
#include "core/cuda.cuh"
#include "core/topk.cuh"
#include "decant.hpp"
#include "kv/adakv.cuh"
#include "kv/backward_loo.cuh"
#include "kv/capkv.cuh"
#include "kv/compact.cuh"
#include "kv/eviction.cuh"
#include "kv/expected_attention.cuh"
#include "kv/full.cuh"
#include "kv/global_top_k.cuh"
#include "kv/greedy_log_det.cuh"
#include "kv/h2o.cuh"
#include "kv/keydiff.cuh"
#include "kv/knorm.cuh"
#include "kv/leverage.cuh"
#include "kv/normalise.cuh"
#include "kv/protect.cuh"
#include "kv/pyramidkv.cuh"
#include "kv/random.cuh"
#include "kv/rerotate.cuh"
#include "kv/ridge_leverage.cuh"
#include "kv/smooth.cuh"
#include "kv/snapkv.cuh"
#include "kv/streaming_llm.cuh"
#include "kv/top_tokens.cuh"
#include "kv/tova.cuh"
#include "kv/uniform.cuh"
#include "kv/visibility.cuh"
#include "kv/window_attention.cuh"
#include "kv/write.cuh"
#include "quant/plain.cuh"

#endif
