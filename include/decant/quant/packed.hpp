// decant: quant::Packed<F>, a weight matrix in the packed format F: the format, a shape, and bytes that the caller owns
// (a mapped file, a device buffer). The bytes are what the whole matrix shares (a tensor scale, tables), padded to 64
// bytes, then one record per row, so that rows can be sliced and a row is one stream of memory. ggml's rows are the
// same with nothing shared.
//
// A format F is a small value that says how bits lie and what they mean. Codes are at most 8 bits wide; the weights of
// a row that share a scale (or a block) are a group, whose last one may be short. F has:
//   F::Layer, F::Group            what a matrix shares and what a group shares, as numbers; trivially copyable
//   group_size(cols)              weights per group
//   layer_bytes(), row_bytes(cols)
//   layer(w)                      what a matrix shares, from its weights [rows, cols]
//   fit(layer, w, importance, n)  a group, from its n weights; importance may be null, which is 1
//   nearest(layer, group, i, w)   the code for weight w as the group's i-th
//   value(layer, group, i, code)  and back
//   load_layer(bytes), store_layer(layer, bytes)
//   load_group(layer, row, cols, j), store_group(layer, group, row, cols, j)   the j-th group in a row's bytes
//   load_code(row, cols, k), store_code(code, row, cols, k)                    the code of column k
// and validate(format, cols). nearest() of a stored group may differ from that of the fitted one where a published
// encoder divides by an unrounded scale; value() never does. A group of zeros decodes to +0 (in ggml's formats, to the
// zeros that ggml has).
#ifndef DECANT_QUANT_PACKED_HPP
#define DECANT_QUANT_PACKED_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "../core/cpu.hpp"
#include "../core/view.hpp"

namespace decant::quant {

/// Bytes of a matrix in this format, which may have a word of its own (Scaled).
template <class F>
index_t packed_bytes(const F& format, index_t rows, index_t cols) {
  if constexpr (requires { format.packed_bytes(rows, cols); }) {
    return format.packed_bytes(rows, cols);
  } else {
    return (format.layer_bytes() + 63) / 64 * 64 + rows * format.row_bytes(cols);
  }
}

namespace detail {

/// Before any size is computed: sizes may come from a file.
template <class F>
void require_packed_shape(const F& format, index_t rows, index_t cols) {
  constexpr const char* where = "quant::Packed";
  constexpr index_t most = index_t{1} << 30;  // no product of sizes overflows
  require(rows >= 0 && rows <= most, where, "rows", "between 0 and 2^30", rows);
  require(cols <= most, where, "cols", "at most 2^30", cols);
  validate(format, cols);
}

}  // namespace detail

/// Byte is const std::byte, or std::byte for one that is being written.
template <class F, class Byte = const std::byte>
class Packed {
 public:
  using Format = F;

  Packed() = default;

  /// Over `data`, which has packed_bytes(format, rows, cols) bytes, at any address (64-byte alignment is fastest).
  /// Raises ArgumentError when the format cannot have this shape or the size differs.
  Packed(const F& format, index_t rows, index_t cols, View<Byte, 1> data)
      : format_(format), rows_(rows), cols_(cols), data_(data.data()) {
    constexpr const char* where = "quant::Packed";
    detail::require_packed_shape(format, rows, cols);
    row_bytes_ = format.row_bytes(cols);  // of a shape that the format can have
    require(data.size() == bytes(), where, "data",
            [&] { return std::to_string(packed_bytes(format, rows, cols)) + " bytes"; }, data.size());
    require_contiguous(data, where, "data");
  }

  /// One that is being written is also one to read.
  template <class Read>
    requires(!std::is_const_v<Byte> && std::is_same_v<Read, const Byte>)
  operator Packed<F, Read>() const {
    return {format_, rows_, cols_, View<const std::byte, 1>(data_, bytes())};
  }

  DECANT_HD const F& format() const { return format_; }
  DECANT_HD index_t rows() const { return rows_; }
  DECANT_HD index_t cols() const { return cols_; }
  index_t bytes() const { return packed_bytes(format_, rows_, cols_); }
  double bits_per_weight() const {
    return 8.0 * static_cast<double>(bytes()) / (static_cast<double>(rows_) * static_cast<double>(cols_));
  }

  index_t groups() const {
    const index_t size = format_.group_size(cols_);
    return (cols_ + size - 1) / size;
  }
  /// Bytes from one row's record to the next.
  DECANT_HD index_t row_bytes() const { return row_bytes_; }
  DECANT_HD Byte* data() const { return data_; }
  Byte* row(index_t r) const { return data_ + (format_.layer_bytes() + 63) / 64 * 64 + r * row_bytes_; }
  typename F::Layer layer() const { return format_.load_layer(data_); }

 private:
  F format_{};
  index_t rows_ = 0;
  index_t cols_ = 0;
  index_t row_bytes_ = 0;
  Byte* data_ = nullptr;
};

namespace detail {

/// How every quantizer begins to write: the shared part, and zeros elsewhere, so that bytes which hold nothing
/// (padding, the codes behind a row's last) are the same each time.
template <class F>
void begin_packed(const Packed<F, std::byte>& out, const typename F::Layer& layer) {
  if (out.data() == nullptr) return;
  std::memset(out.data(), 0, static_cast<std::size_t>(out.bytes()));
  out.format().store_layer(layer, out.data());
}

/// Row r, without checks: out[k] for every column.
template <class F, class Out>
void decode_row(const Packed<F>& w, const typename F::Layer& layer, index_t r, Out out) {
  const F& format = w.format();
  const std::byte* const row = w.row(r);
  const index_t cols = w.cols();
  const index_t size = format.group_size(cols);
  for (index_t j = 0, k = 0; k < cols; ++j) {
    const typename F::Group group = format.load_group(layer, row, cols, j);
    const index_t count = cols - k < size ? cols - k : size;
    for (index_t i = 0; i < count; ++i, ++k) out[k] = format.value(layer, group, i, format.load_code(row, cols, k));
  }
}

}  // namespace detail

/// Row r as floats: the definition that every kernel is held to. out [cols]. O(cols).
template <class F>
void dequantize_row(Cpu&, const Packed<F>& w, index_t r, View<float, 1> out) {
  constexpr const char* where = "quant::dequantize_row";
  require(r >= 0 && r < w.rows(), where, "r", [&] { return "a row below " + std::to_string(w.rows()); }, r);
  require_equal(out.extent(0), w.cols(), where, "out");
  detail::decode_row(w, w.layer(), r, out);
}

}  // namespace decant::quant

#endif
