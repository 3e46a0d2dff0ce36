// decant: Rtn, round to nearest: each group's parameters from its own weights, each weight to its nearest code. The
// baseline of every other algorithm, and what a format's own encoder is (ggml's included).
#ifndef DECANT_QUANT_RTN_HPP
#define DECANT_QUANT_RTN_HPP

#include <cmath>
#include <string>

#include "../core/cpu.hpp"
#include "policy.hpp"

namespace decant::quant {

template <class G>
struct Rtn {
  using Format = typename G::Format;
  G grid{};
  bool operator==(const Rtn&) const = default;
  Format format() const { return grid.format(); }
};
template <class G>
Rtn(G) -> Rtn<G>;

template <class G>
void validate(const Rtn<G>& q, index_t cols) {
  validate(q.grid, cols);
}
template <class G>
Needs needs(const Rtn<G>&) {
  return {};
}

namespace detail {

template <class F>
void require_weight_shape(const View<const float, 2>& w, const Packed<F, std::byte>& out) {
  constexpr const char* where = "quant::quantize";
  require_equal(w.extent(0), out.rows(), where, "w");
  require_equal(w.extent(1), out.cols(), where, "w");
  require(w.stride(1) == 1, where, "w", "contiguous rows", w.stride(1));
}

/// What every quantizer checks first: shapes, contiguous rows, finite weights (the first that is not is named).
template <class F>
void require_weights(const View<const float, 2>& w, const Packed<F, std::byte>& out) {
  constexpr const char* where = "quant::quantize";
  require_weight_shape(w, out);
  for (index_t r = 0; r < w.extent(0); ++r) {
    const float* const row = &w(r, index_t{0});
    for (index_t k = 0; k < w.extent(1); ++k)
      require(std::isfinite(row[k]), where, "w", "finite weights",
              [&] { return std::to_string(row[k]) + " at (" + std::to_string(r) + ", " + std::to_string(k) + ")"; });
  }
}

/// And that `out` is what q writes. (A quantizer around another leaves that to the innermost.)
template <class Q, class F>
void require_format(const Q& q, const Packed<F, std::byte>& out) {
  require(out.format() == q.format(), "quant::quantize", "out", "the format that q writes", "another one");
}

}  // namespace detail

/// Needs nothing; calibration.importance, where a format's fit weighs errors, is used if there. O(rows * cols) fits.
template <class G>
  requires Grid<G, Cpu>
void quantize(Cpu& cpu, const Rtn<G>& q, View<const float, 2> w, const Calibration& c,
              const Packed<typename G::Format, std::byte>& out) {
  using F = typename G::Format;
  detail::require_weights(w, out);
  require_calibration(c, {}, out.cols(), "quant::quantize");
  const F& format = out.format();
  detail::require_format(q, out);
  const typename F::Layer layer = fit_layer(cpu, q.grid, w, c);
  detail::begin_packed(out, layer);
  const index_t cols = out.cols();
  const index_t size = format.group_size(cols);
  cpu.parallel_ranges(out.rows(), 1, [&](index_t first, index_t last, index_t) {
    for (index_t r = first; r < last; ++r) {
      const float* const from = &w(r, index_t{0});
      std::byte* const row = out.row(r);
      for (index_t j = 0, k = 0; k < cols; ++j) {
        const index_t count = cols - k < size ? cols - k : size;
        const float* const importance = c.importance.empty() ? nullptr : c.importance.data() + k;
        const typename F::Group group = format.fit(layer, from + k, importance, count);
        format.store_group(layer, group, row, cols, j);
        for (index_t i = 0; i < count; ++i, ++k)
          format.store_code(format.nearest(layer, group, i, from[k]), row, cols, k);
      }
    }
  });
}

}  // namespace decant::quant

#endif
