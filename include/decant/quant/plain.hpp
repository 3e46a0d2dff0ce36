// decant: quant::Plain, a weight matrix stored as it is, in float, fp16 or bf16: the member of the family that packs
// nothing, and the peer that every packed format is compared with. Products accumulate in fp32.
#ifndef DECANT_QUANT_PLAIN_HPP
#define DECANT_QUANT_PLAIN_HPP

#include "../core/cpu.hpp"
#include "../core/dtype.hpp"
#include "../core/view.hpp"
#include "detail/dot_tile.hpp"
#include "detail/require_product.hpp"
#include "policy.hpp"

namespace decant::quant {

/// weights [rows, cols]: row r gives output r. Rows are contiguous. The caller's memory, a mapped file for example.
template <Storage T>
struct Plain {
  View<const T, 2> weights;

  index_t rows() const { return weights.extent(0); }
  index_t cols() const { return weights.extent(1); }
  index_t bytes() const { return rows() * cols() * static_cast<index_t>(sizeof(T)); }
};

namespace detail {

template <class T>
void require_matmul(const Plain<T>& w, const View<const float, 2>& x, const View<float, 2>& y) {
  constexpr const char* where = "quant::matmul";
  require(w.weights.stride(1) == 1, where, "weights", "contiguous rows", w.weights.stride(1));
  require_product(w, x, y);
}

}  // namespace detail

/// y = x * weights^T. x [tokens, cols], y [tokens, rows], fp32. A row of y does not depend on the other rows of x, nor
/// on the number of threads, bit for bit. O(tokens * rows * cols); reads the weights once per 4 tokens.
template <Storage T>
void matmul(Cpu& cpu, const Plain<T>& w, View<const float, 2> x, View<float, 2> y) {
  detail::require_matmul(w, x, y);
  if (x.extent(0) == 0) return;
  // Blocks of weight rows stay in the first-level cache while all tokens pass over them.
  constexpr index_t block = 64;
  const index_t blocks = (w.rows() + block - 1) / block;
  cpu.parallel_ranges(blocks, 1, [&](index_t first, index_t last, index_t) {
    for (index_t b = first; b < last; ++b) {
      const index_t row = b * block;
      const index_t count = w.rows() - row < block ? w.rows() - row : block;
      detail::dot_block(cpu.isa(), &w.weights(row, index_t{0}), w.weights.stride(0), count, x.data(), x.stride(0),
                        x.extent(0), w.cols(), y.data() + row, y.stride(0));
    }
  });
}

/// y = weights * x for one token. x [cols], y [rows], both contiguous.
template <Storage T>
void matvec(Cpu& cpu, const Plain<T>& w, View<const float, 1> x, View<float, 1> y) {
  require(x.stride(0) == 1, "quant::matvec", "x", "contiguous elements", x.stride(0));
  require(y.stride(0) == 1, "quant::matvec", "y", "contiguous elements", y.stride(0));
  matmul(cpu, w, View<const float, 2>(x.data(), 1, x.extent(0)), View<float, 2>(y.data(), 1, y.extent(0)));
}

/// Row r of the weights as floats, an embedding look-up. out [cols]
template <Storage T>
void dequantize_row(Cpu&, const Plain<T>& w, index_t r, View<float, 1> out) {
  require(r >= 0 && r < w.rows(), "quant::dequantize_row", "r",
          [&] { return "a row below " + std::to_string(w.rows()); }, r);
  require_equal(out.extent(0), w.cols(), "quant::dequantize_row", "out");
  for (index_t c = 0; c < w.cols(); ++c) out[c] = static_cast<float>(w.weights(r, c));
}

static_assert(WeightMatrix<Plain<float>, Cpu> && WeightMatrix<Plain<bf16>, Cpu>);

}  // namespace decant::quant

#endif
