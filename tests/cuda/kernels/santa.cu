// The kernels of SANTA as users instantiate them, for the table of what they take. Never run.
#include "decant/attention/santa.cuh"
#include "decant/attention/santa_scores.cuh"
#include "decant/attention/sparse_gather.cuh"
#include "decant/kv/dense_kv.hpp"

using decant::bf16;
using decant::View;
namespace attention = decant::attention;

void instantiate(decant::Cuda& cuda) {
  const decant::kv::DenseKV<bf16> cache;
  attend(cuda, attention::Santa{}, View<const float, 3>{}, cache, View<float, 3>{});
  sparse_gather(cuda, cache, attention::RowLists{}, View<float, 3>{});
  bernoulli_scores(cuda, attention::BernoulliQuery{}, View<const float, 3>{}, attention::FeatureMajorKeys<bf16>{},
                   View<float, 3>{});
}
