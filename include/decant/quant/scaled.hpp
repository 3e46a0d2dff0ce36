// decant: Scaled<F>, the format F behind a scale for each column: what AWQ writes when the scales are not folded into
// the layer before (Lin et al., AWQ, arXiv 2306.00978). The bytes are the inverse scales, fp32, padded to 64 bytes,
// then the matrix in the format F. A weight is the inner one times its column's inverse scale; a product multiplies its
// inputs by them first, and then is the inner one.
#ifndef DECANT_QUANT_SCALED_HPP
#define DECANT_QUANT_SCALED_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "../core/bits.hpp"
#include "../core/bytes.hpp"
#include "../core/cpu.hpp"
#include "../core/view.hpp"
#include "detail/require_product.hpp"
#include "packed.hpp"

namespace decant::quant {

template <class F>
struct Scaled {
  using Format = Scaled;
  F inner{};
  bool operator==(const Scaled&) const = default;
  const Scaled& format() const { return *this; }
  index_t group_size(index_t cols) const { return inner.group_size(cols); }
  static index_t scale_bytes(index_t cols) { return (4 * cols + 63) / 64 * 64; }
  index_t packed_bytes(index_t rows, index_t cols) const {
    return scale_bytes(cols) + quant::packed_bytes(inner, rows, cols);
  }
};
template <class F>
Scaled(F) -> Scaled<F>;

template <class F>
void validate(const Scaled<F>& f, index_t cols) {
  validate(f.inner, cols);
}

/// As Packed<F>, of which it holds one.
template <class F, class Byte>
class Packed<Scaled<F>, Byte> {
 public:
  using Format = Scaled<F>;

  Packed() = default;

  /// Over `data`, which has packed_bytes(format, rows, cols) bytes, at any address. Raises ArgumentError when the inner
  /// format cannot have this shape or the size differs.
  Packed(const Format& format, index_t rows, index_t cols, View<Byte, 1> data) : format_(format), data_(data.data()) {
    constexpr const char* where = "quant::Packed";
    detail::require_packed_shape(format, rows, cols);
    const index_t bytes = format.packed_bytes(rows, cols);
    require(data.size() == bytes, where, "data", [&] { return std::to_string(bytes) + " bytes"; }, data.size());
    require_contiguous(data, where, "data");
    const index_t scales = Format::scale_bytes(cols);
    inner_ = Packed<F, Byte>(format.inner, rows, cols, data.slice(0, scales, bytes - scales));
  }

  /// One that is being written is also one to read.
  template <class Other>
    requires(std::is_const_v<Byte> && std::is_same_v<Other, std::byte>)
  Packed(const Packed<Scaled<F>, Other>& w)
      : Packed(w.format(), w.rows(), w.cols(), View<const std::byte, 1>(w.data(), w.bytes())) {}

  const Format& format() const { return format_; }
  index_t rows() const { return inner_.rows(); }
  index_t cols() const { return inner_.cols(); }
  index_t bytes() const { return format_.packed_bytes(rows(), cols()); }
  double bits_per_weight() const {
    return 8.0 * static_cast<double>(bytes()) / (static_cast<double>(rows()) * static_cast<double>(cols()));
  }
  Byte* data() const { return data_; }

  /// The matrix behind the scales.
  const Packed<F, Byte>& inner() const { return inner_; }
  /// What column k's inner weights, or input k, are multiplied by.
  float inverse_scale(index_t k) const {
    return bit_cast<float>(load_le<std::uint32_t>(data_ + 4 * k));
  }
  void set_inverse_scale(index_t k, float x) const
    requires(!std::is_const_v<Byte>)
  {
    store_le(data_ + 4 * k, bit_cast<std::uint32_t>(x));
  }
  /// Zeros between the scales and the matrix.
  void clear_padding() const
    requires(!std::is_const_v<Byte>)
  {
    const index_t used = 4 * cols();
    std::memset(data_ + used, 0, static_cast<std::size_t>(Format::scale_bytes(cols()) - used));
  }

 private:
  Format format_{};
  Packed<F, Byte> inner_;
  Byte* data_ = nullptr;
};

/// Row r as floats. out [cols]. O(cols).
template <class F>
void dequantize_row(Cpu& cpu, const Packed<Scaled<F>>& w, index_t r, View<float, 1> out) {
  dequantize_row(cpu, w.inner(), r, out);
  for (index_t k = 0; k < w.cols(); ++k) out[k] *= w.inverse_scale(k);
}

/// y = x * weights^T. x [tokens, cols], y [tokens, rows], both with contiguous rows: the inner format's product of
/// scaled inputs, which are held in the workspace. Takes the options that the inner one takes.
template <class F, class... Options>
void matmul(Cpu& cpu, const Packed<Scaled<F>>& w, View<const float, 2> x, View<float, 2> y,
            const Options&... options) {
  detail::require_product(w, x, y);
  const Workspace::Scope scope(cpu.workspace());
  const View<float, 2> scaled = cpu.workspace().template take_view<float>(x.extent(0), x.extent(1));
  for (index_t t = 0; t < x.extent(0); ++t) {
    for (index_t k = 0; k < w.cols(); ++k) scaled(t, k) = x(t, k) * w.inverse_scale(k);
  }
  matmul(cpu, w.inner(), scaled, y, options...);
}

/// y = w * x for one token. x [cols], y [rows], both contiguous.
template <class F, class... Options>
void matvec(Cpu& cpu, const Packed<Scaled<F>>& w, View<const float, 1> x, View<float, 1> y, const Options&... options) {
  require_contiguous(x, "quant::matvec", "x");
  require_contiguous(y, "quant::matvec", "y");
  matmul(cpu, w, View<const float, 2>(x.data(), 1, x.extent(0)), View<float, 2>(y.data(), 1, y.extent(0)), options...);
}

/// All rows as floats: out [rows, cols], rows contiguous.
template <class F>
void dequantize(Cpu& cpu, const Packed<Scaled<F>>& w, View<float, 2> out) {
  dequantize(cpu, w.inner(), out);
  cpu.parallel_ranges(w.rows(), 1, [&](index_t first, index_t last, index_t) {
    for (index_t r = first; r < last; ++r)
      for (index_t k = 0; k < w.cols(); ++k) out(r, k) *= w.inverse_scale(k);
  });
}

}  // namespace decant::quant

#endif
