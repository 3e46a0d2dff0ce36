// decant: products with packed weights on the CPU, y = x W^T, for one token (at the speed of memory) to some dozens.
// Weights are decoded in registers on the way; what is read from memory is the packed bytes, once, in their order.
//
// A format that satisfies Codes has them all without another line. For speed it overloads, in its own namespace,
//   MatmulKernels<F> matmul_kernels(Isa isa, const Packed<F>& w, Activations a)
// (detail/matmul_kernels.hpp says what the functions do): per call, arrange() rounds and permutes each token once into
// the workspace, in the order in which codes fall out of a register; then rows() runs on ranges of rows, several at a
// time. Padding contributes nothing: arranged activations beyond `cols` are 0 and no byte beyond the matrix is read.
// A header with kernels for a format of decant's is included below, so that whoever multiplies has them.
#ifndef DECANT_QUANT_MATMUL_HPP
#define DECANT_QUANT_MATMUL_HPP

#include <cstddef>

#include "../core/cpu.hpp"
#include "../core/view.hpp"
#include "detail/matmul_decode.hpp"
#include "detail/matmul_ggml_formats.hpp"
#include "detail/matmul_kernels.hpp"
#include "detail/matmul_nibble_formats.hpp"
#include "detail/require_product.hpp"
#include "int_group.hpp"
#include "policy.hpp"

namespace decant::quant {

/// How far an element of y may be from sum_k w_k x_k, w as dequantized and x as round_activations says: this, times
/// sum_k |x_k| (|a_k| + |b_k|) where w_k = a_k + b_k is how the format makes a weight of a code's and a group's part
/// (b = 0 but for zero points and minima). The sums of eight or more lanes, in fp32, in any order.
constexpr double matmul_error_bound(index_t cols) { return (static_cast<double>(cols) / 8 + 32) * 0x1p-24; }

/// On top of it, of formats with tables of 16 values that a kernel holds in fewer bits: of each |w_k x_k|, Nf4 with
/// bf16 activations; of |x_k| times the largest value of its group's table, with int8 ones, Nf4 and Codebook2x16
/// (unless all its values are multiples of a power of two, at most 127 of it).
inline constexpr double bf16_table_error_bound = 0x1p-16;
inline constexpr double int8_table_error_bound = 0.5001 / 127;

/// What Activations::bf16 makes of an activation, at most, as a share of it; int8: of its block's largest magnitude.
constexpr double activation_error_bound(Activations a) {
  return a == Activations::fp32 ? 0 : a == Activations::bf16 ? 0x1p-8 : 0.5001 / 127;
}

/// y = x * w^T. x [tokens, cols], y [tokens, rows], fp32, rows contiguous. A row of w gives the same numbers, to the
/// bit, whatever the other rows, the other tokens and the number of threads. Scratch: a copy of x. ArgumentError where
/// shapes differ, before y is written. O(tokens * rows * cols).
template <class F>
  requires Codes<F>
void matmul(Cpu& cpu, const Packed<F>& w, View<const float, 2> x, View<float, 2> y,
            Activations activations = Activations::bf16) {
  constexpr const char* where = "quant::matmul";
  detail::require_product(w, x, y);
  require(activations <= Activations::int8, where, "activations", "bf16, fp32 or int8", static_cast<int>(activations));
  const index_t tokens = x.extent(0);
  if (tokens == 0 || w.rows() == 0) return;

  const MatmulKernels<F> kernels = matmul_kernels(cpu.isa(), w, activations);
  const auto aligned = [](index_t bytes) { return (bytes + 63) / 64 * 64; };
  const index_t x_bytes = aligned(kernels.arranged_bytes(w));
  const index_t scratch_bytes = kernels.scratch_bytes ? aligned(kernels.scratch_bytes(w)) : 0;
  constexpr index_t grain = 16;
  Workspace::Scope scope(cpu.workspace());
  std::byte* const arranged = cpu.workspace().take<std::byte>(tokens * x_bytes);
  std::byte* const scratch = cpu.workspace().take<std::byte>(cpu.parts(w.rows(), grain) * scratch_bytes);
  cpu.parallel_ranges(tokens, 1, [&](index_t first, index_t last, index_t) {
    kernels.arrange(w, x.data() + first * x.stride(0), x.stride(0), last - first, arranged + first * x_bytes, x_bytes);
  });
  cpu.parallel_ranges(w.rows(), grain, [&](index_t first, index_t last, index_t part) {
    kernels.rows(w, first, last, arranged, x_bytes, tokens, y.data(), y.stride(0), scratch + part * scratch_bytes);
  });
}

/// y = w * x for one token. x [cols], y [rows], both contiguous.
template <class F>
  requires Codes<F>
void matvec(Cpu& cpu, const Packed<F>& w, View<const float, 1> x, View<float, 1> y,
            Activations activations = Activations::bf16) {
  require_contiguous(x, "quant::matvec", "x");
  require_contiguous(y, "quant::matvec", "y");
  matmul(cpu, w, View<const float, 2>(x.data(), 1, x.extent(0)), View<float, 2>(y.data(), 1, y.extent(0)), activations);
}

/// All rows as floats: out [rows, cols], rows contiguous.
template <class F>
  requires Codes<F>
void dequantize(Cpu& cpu, const Packed<F>& w, View<float, 2> out) {
  constexpr const char* where = "quant::dequantize";
  require_equal(out.extent(0), w.rows(), where, "out");
  require_equal(out.extent(1), w.cols(), where, "out");
  require(out.stride(1) == 1, where, "out", "contiguous rows", out.stride(1));
  if (w.rows() == 0) return;
  const typename F::Layer layer = w.layer();
  cpu.parallel_ranges(w.rows(), 1, [&](index_t first, index_t last, index_t) {
    for (index_t r = first; r < last; ++r) detail::decode_row(w, layer, r, out.data() + r * out.stride(0));
  });
}

static_assert(Codes<Int<4>> && WeightFormat<Int<4>, Cpu>);

}  // namespace decant::quant

#endif
