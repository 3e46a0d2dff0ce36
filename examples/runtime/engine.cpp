#include "engine.hpp"

#include "make_engine.hpp"

namespace runtime {

CacheChoice parse_cache(const std::string& layout, const std::string& dtype) {
  CacheChoice cache;
  if (layout == "dense") {
    cache.layout = CacheLayout::dense;
  } else if (layout == "ragged") {
    cache.layout = CacheLayout::ragged;
  } else {
    const char* expected = "dense, paged, paged:PAGE_SIZE with a page size from 1 to 65536, or ragged";
    if (layout != "paged" && layout.rfind("paged:", 0) != 0) detail::refuse("cache", expected, layout);
    cache.layout = CacheLayout::paged;
    if (layout != "paged") {
      const double size = detail::parse_number(layout.substr(6), "cache", expected);
      cache.page_size = static_cast<index_t>(size);
      const bool ok = size >= 1 && size <= 65536 && size == static_cast<double>(cache.page_size);
      if (!ok) detail::refuse("cache", expected, layout);
    }
  }
  for (const DType known : {DType::f32, DType::f16, DType::bf16}) {
    if (dtype != decant::name(known)) continue;
    cache.dtype = known;
    return cache;
  }
  detail::refuse("kv-dtype", "f32, f16 or bf16", dtype);
}

std::unique_ptr<Engine> make_engine(decant::Cpu& cpu, const Config& config, const Weights& weights,
                                    const AnyStack& stack, const CacheChoice& cache) {
  switch (cache.layout) {
    case CacheLayout::dense:
      return detail::make_dense(cpu, config, weights, stack, cache);
    case CacheLayout::paged:
      return detail::make_paged(cpu, config, weights, stack, cache);
    default:
      return detail::make_ragged(cpu, config, weights, stack, cache);
  }
}

}  // namespace runtime
