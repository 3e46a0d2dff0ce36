#include "make_engine.hpp"

namespace runtime::detail {

EnginePointer make_dense(decant::Cpu& cpu, const Config& config, const Weights& weights, const AnyStack& stack,
                         const CacheChoice& cache) {
  return make<DenseCache>(cpu, config, weights, stack, cache);
}

}  // namespace runtime::detail
