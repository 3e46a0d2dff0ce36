#include "make_engine.hpp"

namespace runtime::detail {

EnginePointer make_paged(decant::Cpu& cpu, const Config& config, const Weights& weights, const AnyStack& stack,
                         const CacheChoice& cache) {
  return make<PagedCache>(cpu, config, weights, stack, cache);
}

}  // namespace runtime::detail
