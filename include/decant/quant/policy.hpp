// decant: the concepts of weight quantization. A format says how bits lie (Int<4>, Nf4, ggml's blocks); an algorithm
// says how weights get there (Rtn, Gptq, Awq ...); algorithms nest, and the innermost part is a format or something
// that fits one to the matrix (Aaac). What an engine multiplies with is a Packed matrix, or one stored plainly.
#ifndef DECANT_QUANT_POLICY_HPP
#define DECANT_QUANT_POLICY_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../core/view.hpp"
#include "calibration.hpp"
#include "packed.hpp"

namespace decant::quant {

/// What a runtime needs of weights: their shape, their bytes, and products with them.
template <class M, class Ctx>
concept WeightMatrix = requires(Ctx& ctx, const M& w, View<const float, 2> x, View<float, 2> y, View<float, 1> row) {
  { w.rows() } -> std::same_as<index_t>;
  { w.cols() } -> std::same_as<index_t>;
  { w.bytes() } -> std::same_as<index_t>;  // as stored
  matmul(ctx, w, x, y);                    // y [tokens, rows] = x [tokens, cols] * w^T
  dequantize_row(ctx, w, index_t{}, row);  // row [cols]
};

/// How bits lie: see packed.hpp for the meaning of each.
template <class F>
concept Codes =
    std::copyable<F> && std::equality_comparable<F> && std::is_trivially_copyable_v<typename F::Layer> &&
    std::is_trivially_copyable_v<typename F::Group> &&
    requires(const F& f, const typename F::Layer& layer, const typename F::Group& group, const float* w, index_t i,
             std::uint8_t code, std::byte* to, const std::byte* from) {
      validate(f, i);
      { f.group_size(i) } -> std::same_as<index_t>;
      { f.row_bytes(i) } -> std::same_as<index_t>;
      { f.layer_bytes() } -> std::same_as<index_t>;
      { f.layer(View<const float, 2>()) } -> std::same_as<typename F::Layer>;
      { f.fit(layer, w, w, i) } -> std::same_as<typename F::Group>;
      { f.nearest(layer, group, i, *w) } -> std::same_as<std::uint8_t>;
      { f.value(layer, group, i, code) } -> std::same_as<float>;
      { f.load_layer(from) } -> std::same_as<typename F::Layer>;
      f.store_layer(layer, to);
      { f.load_group(layer, from, i, i) } -> std::same_as<typename F::Group>;
      f.store_group(layer, group, to, i, i);
      { f.load_code(from, i, i) } -> std::same_as<std::uint8_t>;
      f.store_code(code, to, i, i);
    };

/// A packed format with products on Ctx.
template <class F, class Ctx>
concept WeightFormat = WeightMatrix<Packed<F>, Ctx>;

/// What algorithms that round element by element stand on: a format, or a value that fits a format's shared part to the
/// matrix (Aaac, whose tables depend on all weights).
template <class G, class Ctx>
concept Grid = std::copyable<G> && std::equality_comparable<G> && Codes<typename G::Format> &&
               requires(Ctx& ctx, const G& g, View<const float, 2> w, const Calibration& c) {
                 { g.format() } -> std::convertible_to<typename G::Format>;
                 { fit_layer(ctx, g, w, c) } -> std::same_as<typename G::Format::Layer>;
               };

/// An algorithm: weights w [rows, cols] to a packed matrix. Packing the same twice gives the same bytes, on any number
/// of threads. ArgumentError, before anything is written, when a weight is not finite (named), shapes differ, or
/// something that needs(q) names is not there.
template <class Q, class Ctx>
concept Quantizer = std::copyable<Q> && std::equality_comparable<Q> &&
                    requires(Ctx& ctx, const Q& q, View<const float, 2> w, const Calibration& c,
                             const Packed<typename Q::Format, std::byte>& out) {
                      { q.format() } -> std::convertible_to<typename Q::Format>;  // what it writes
                      { needs(q) } -> std::same_as<Needs>;
                      validate(q, index_t{});  // for a number of columns
                      quantize(ctx, q, w, c, out);
                    };

/// A format's shared part, as it says itself.
template <Codes F>
typename F::Layer fit_layer(Cpu&, const F& format, View<const float, 2> w, const Calibration&) {
  return format.layer(w);
}

}  // namespace decant::quant

#endif
