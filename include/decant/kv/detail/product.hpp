// decant: the one dense kernel behind the scorers: query times key tiles, weighted Gram matrices and triangular forms
// are all small products with B's rows contiguous.
#ifndef DECANT_KV_DETAIL_PRODUCT_HPP
#define DECANT_KV_DETAIL_PRODUCT_HPP

#include <type_traits>

#include "../../core/simd.hpp"
#include "product_avx2.hpp"
#include "product_avx512.hpp"
#include "product_portable.hpp"

namespace decant::kv::detail {

template <class Real>
void product(Isa isa, const Product<Real>& p) {
#if DECANT_X86
  if constexpr (std::is_same_v<Real, float>) {
    if (isa == Isa::avx512) return product_avx512(p);
    if (isa == Isa::avx2) return product_avx2(p);
  }
#else
  (void)isa;
#endif
  product_portable(p);
}

/// n rounded up to whole vectors of the widest kernel.
constexpr index_t padded(index_t n) { return (n + 15) / 16 * 16; }

}  // namespace decant::kv::detail

#endif
