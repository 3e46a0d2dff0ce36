// The kernels of every scorer on a bf16 cache, for the table of what they take. Never run.
#include "decant/kv/capkv.cuh"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/expected_attention.cuh"
#include "decant/kv/h2o.cuh"
#include "decant/kv/keydiff.cuh"
#include "decant/kv/knorm.cuh"
#include "decant/kv/leverage.cuh"
#include "decant/kv/random.cuh"
#include "decant/kv/tova.cuh"
#include "decant/kv/window_attention.cuh"

namespace kv = decant::kv;

template <class... Scorers>
void all(decant::Cuda& cuda, const Scorers&... scorers) {
  const kv::LayerView layer{kv::DenseKV<decant::bf16>{}};
  (score(cuda, scorers, layer, decant::View<float, 2>{}), ...);
}

void instantiate(decant::Cuda& cuda) {
  all(cuda, kv::WindowAttention{}, kv::TOVA{}, kv::AccumulatedAttention{}, kv::KNorm{}, kv::KeyDiff{},
      kv::ExpectedAttention{}, kv::Leverage{}, kv::CapKV{}, kv::Random{});
  accumulate(cuda, kv::LayerView{kv::DenseKV<decant::bf16>{}}, decant::View<const float, 2>{},
             decant::View<float, 2>{});
  compact_sums(cuda, decant::View<float, 2>{}, kv::KeptView{});
}
