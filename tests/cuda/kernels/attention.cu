// The kernels of attention as users instantiate them, for the table of what they take. Never run.
#include "decant/attention/dense.cuh"
#include "decant/attention/state.cuh"
#include "decant/kv/dense_kv.hpp"

using decant::View;
namespace attention = decant::attention;

template <class Cache>
void decode(decant::Cuda& cuda, const Cache& cache) {
  attend(cuda, attention::Dense{}, View<const float, 3>{}, cache, View<float, 3>{});
}

void instantiate(decant::Cuda& cuda) {
  decode(cuda, decant::kv::DenseKV<decant::bf16>{});
  decode(cuda, decant::kv::DenseKV<float>{});
  merge(cuda, attention::State<const float>{}, attention::State<const float>{}, attention::State<float>{});
}
