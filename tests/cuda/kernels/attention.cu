// The kernels of attention as users instantiate them, for the table of what they take. Never run.
#include "decant/attention/cascade.cuh"
#include "decant/attention/dense.cuh"
#include "decant/attention/mla.cuh"
#include "decant/attention/state.cuh"
#include "decant/attention/tree_mask.cuh"
#include "decant/kv/dense_kv.hpp"

using decant::View;
namespace attention = decant::attention;

template <class Cache>
void decode(decant::Cuda& cuda, const Cache& cache) {
  attend(cuda, attention::Dense{}, View<const float, 3>{}, cache, View<float, 3>{});
}

template <class Cache>
void cascade(decant::Cuda& cuda, const Cache& cache) {
  attend(cuda, attention::Dense{}, attention::DeviceCascade{}, View<const float, 3>{}, cache, View<float, 3>{});
}

void instantiate(decant::Cuda& cuda) {
  decode(cuda, decant::kv::DenseKV<decant::bf16>{});
  decode(cuda, decant::kv::DenseKV<decant::fp8_e4m3>{});
  decode(cuda, decant::kv::DenseKV<float>{});
  attend(cuda, attention::Dense{}, View<const float, 3>{}, decant::kv::DenseKV<decant::bf16>{}, View<float, 3>{},
         View<float, 2>{}, attention::TreeMask{});
  cascade(cuda, decant::kv::DenseKV<decant::bf16>{});
  cascade(cuda, decant::kv::DenseKV<float>{});
  attention::tree_mask_from_parents(cuda, View<const std::int32_t, 1>{}, View<std::uint64_t, 1>{});
  merge(cuda, attention::State<const float>{}, attention::State<const float>{}, attention::State<float>{});
  attend(cuda, attention::Mla{}, attention::MlaQueries<float>{}, attention::MlaWeights<decant::bf16>{},
         decant::kv::LatentKV<decant::kv::PagedKV<decant::bf16>>{}, View<float, 3>{});
}
