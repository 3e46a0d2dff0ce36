// decant: what every product with a weight matrix checks first.
#ifndef DECANT_QUANT_DETAIL_REQUIRE_PRODUCT_HPP
#define DECANT_QUANT_DETAIL_REQUIRE_PRODUCT_HPP

#include "../../core/view.hpp"

namespace decant::quant::detail {

/// x [tokens, cols] and y [tokens, rows], rows contiguous.
template <class M>
void require_product(const M& w, const View<const float, 2>& x, const View<float, 2>& y) {
  constexpr const char* where = "quant::matmul";
  require_equal(x.extent(1), w.cols(), where, "x");
  require(x.stride(1) == 1, where, "x", "contiguous rows", x.stride(1));
  require_equal(y.extent(0), x.extent(0), where, "y");
  require_equal(y.extent(1), w.rows(), where, "y");
  require(y.stride(1) == 1, where, "y", "contiguous rows", y.stride(1));
}

}  // namespace decant::quant::detail

#endif
