// The kernels of selection, compaction and writing on a bf16 cache, for the table of what they take. Never run.
#include "decant/kv/adakv.cuh"
#include "decant/kv/backward_loo.cuh"
#include "decant/kv/compact.cuh"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/eviction.cuh"
#include "decant/kv/greedy_log_det.cuh"
#include "decant/kv/knorm.cuh"
#include "decant/kv/pyramidkv.cuh"
#include "decant/kv/snapkv.cuh"
#include "decant/kv/write.cuh"

namespace kv = decant::kv;
using decant::View;

void instantiate(decant::Cuda& cuda) {
  const kv::LayerView layer{kv::DenseKV<decant::bf16>{}};
  const kv::Budget budget = kv::Budget::keep(0.5);
  select(cuda, kv::KNorm{}, layer, budget, kv::KeptView{});
  select(cuda, kv::AdaKV{}, layer, budget, kv::KeptView{});
  select(cuda, kv::PyramidKV{}, layer, budget, kv::KeptView{});
  select(cuda, kv::GreedyCapKV{}, layer, budget, kv::KeptView{});
  select(cuda, kv::BackwardLOO{}, layer, budget, kv::KeptView{});
  kv::greedy_log_det(cuda, View<const double, 2>{}, View<const double, 1>{}, 1.0, 0, View<std::uint8_t, 1>{});
  compact(cuda, kv::DenseKV<decant::bf16>{}, kv::KeptView{});
  append(cuda, kv::DenseKV<decant::bf16>{}, 0, View<const float, 3>{}, View<const float, 3>{});
}
