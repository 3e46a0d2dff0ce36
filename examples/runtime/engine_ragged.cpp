#include "make_engine.hpp"

namespace runtime::detail {

EnginePointer make_ragged(decant::Cpu& cpu, const Config& config, const Weights& weights, const AnyStack& stack,
                          const CacheChoice& cache) {
  return make<RaggedCache>(cpu, config, weights, stack, cache);
}

}  // namespace runtime::detail
