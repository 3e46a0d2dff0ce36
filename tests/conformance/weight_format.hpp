#pragma once
// The laws of every packed weight format, tested through nothing but what packed.hpp says of a format: bytes hold what
// was stored, rows stand alone, decoding is value(), Rtn writes the same bytes each time and names what it refuses, and
// a product is that of the decoded rows within the bound that matmul.hpp declares.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/bits.hpp"
#include "decant/quant/rtn.hpp"
#include "unit/quant/quantized.hpp"

namespace conformance {

using namespace quant_test;

/// Numbers of columns around groups, registers and bytes; for a format of whole blocks, multiples of them.
template <class F>
std::vector<index_t> columns_of(const F&) {
  std::vector<index_t> all;
  for (const index_t cols : {1, 15, 16, 17, 63, 64, 127, 128, 129, 352}) {
    index_t c = cols;
    if constexpr (requires { F::block_size; }) c = (cols + F::block_size - 1) / F::block_size * F::block_size;
    if (all.empty() || c != all.back()) all.push_back(c);
  }
  return all;
}

/// Gaussian weights with a group of zeros, an outlier, and rows of different scales.
inline Matrix mixed_weights(index_t rows, index_t cols) {
  return Matrix(rows, cols, [&](index_t i) {
    const index_t r = i / cols, k = i % cols;
    if (r == 1 && k < 256) return k % 3 == 0 ? -0.0 : 0.0;
    return std::ldexp(gaussian(i, 51), static_cast<int>(r % 4) - 2) * (k == 7 ? 6 : 1);
  });
}

/// ggml's own decoders give -0 in some groups of zeros; elsewhere it is +0.
template <class F>
bool plain_zero(float x) {
  if constexpr (requires { F::block_size; }) return x == 0;
  return decant::bit_cast<std::uint32_t>(x) == 0;
}

inline bool same_bits(float a, float b) {
  return decant::bit_cast<std::uint32_t>(a) == decant::bit_cast<std::uint32_t>(b);
}

/// What the parts of a row are, stored anew, last first: the same bytes, and nothing else is written.
template <class F>
bool stores_again(const Quantized<F>& q, index_t r) {
  const F& f = q.format;
  const auto packed = q.packed();
  const auto layer = packed.layer();
  std::vector<std::byte> row(at(f.row_bytes(q.cols)));
  for (index_t k = q.cols - 1; k >= 0; --k) f.store_code(q.code(r, k), row.data(), q.cols, k);
  for (index_t j = packed.groups() - 1; j >= 0; --j) f.store_group(layer, q.group(r, j), row.data(), q.cols, j);
  return std::equal(row.begin(), row.end(), packed.row(r));
}

/// Every code in every column: it comes back, and its neighbours and the groups stay what they were.
template <class F>
int wrong_codes(const Quantized<F>& q, int codes) {
  const F& f = q.format;
  Quantized<F> changed = q;
  std::byte* const row = changed.packed().row(0);
  int wrong = 0;
  for (index_t k = 0; k < q.cols; k += k < 40 ? 1 : 7) {
    for (int code = 0; code < codes; ++code) {
      f.store_code(static_cast<std::uint8_t>(code), row, q.cols, k);
      wrong += f.load_code(row, q.cols, k) != code;
      if (k > 0) wrong += f.load_code(row, q.cols, k - 1) != q.code(0, k - 1);
      if (k + 1 < q.cols) wrong += f.load_code(row, q.cols, k + 1) != q.code(0, k + 1);
    }
    f.store_code(q.code(0, k), row, q.cols, k);
    wrong += changed.bytes != q.bytes;
  }
  return wrong;
}

/// Weights whose code is not the nearest, up to rounding, of those that the group has in use or next to it.
template <class F>
int wrong_nearest(const Quantized<F>& q, const Matrix& m) {
  const F& f = q.format;
  const auto layer = q.packed().layer();
  const index_t size = f.group_size(q.cols);
  int wrong = 0;
  for (index_t r = 0; r < q.rows; ++r)
    for (index_t k = 0; k < q.cols; ++k) {
      const auto group = q.group(r, k / size);
      const double w = m.w[at(r * q.cols + k)];
      const auto distance = [&](std::uint8_t code) {
        return std::abs(static_cast<double>(f.value(layer, group, k % size, code)) - w);
      };
      const std::uint8_t chosen = f.nearest(layer, group, k % size, m.w[at(r * q.cols + k)]);
      for (index_t other = 0; other < q.cols; other += 5) {
        const std::uint8_t code = q.code(r, other);
        if (other / size == k / size) wrong += distance(chosen) > distance(code) * (1 + 1e-5) + 1e-7 * std::abs(w);
      }
      // Its own value is a code's value.
      const float value = f.value(layer, group, k % size, q.code(r, k));
      wrong += f.value(layer, group, k % size, f.nearest(layer, group, k % size, value)) != value;
    }
  return wrong;
}

/// Whatever a weight has become, NaN included, its code is one.
template <class F>
int wrong_extremes(const Quantized<F>& q, int codes) {
  using limits = std::numeric_limits<float>;
  int wrong = 0;
  for (index_t j = 0; j < q.packed().groups(); ++j)
    for (index_t r = 0; r < q.rows; ++r)
      for (const float w : {limits::quiet_NaN(), limits::infinity(), -limits::infinity(), limits::max(), -limits::max(),
                            limits::denorm_min(), -limits::min()})
        wrong += q.format.nearest(q.packed().layer(), q.group(r, j), 0, w) >= codes;
  return wrong;
}

template <class F>
void weight_format_shape(const F& format, int codes, index_t cols) {
  INFO("cols " << cols);
  const index_t rows = 4;
  const Matrix m = mixed_weights(rows, cols);
  const Quantized<F> q(format, m);
  const auto packed = q.packed();
  const auto layer = packed.layer();
  CHECK(packed.bytes() == (format.layer_bytes() + 63) / 64 * 64 + rows * format.row_bytes(cols));

  // Bytes.
  int wrong = 0;
  for (index_t r = 0; r < rows; ++r) wrong += !stores_again(q, r);
  CHECK(wrong == 0);
  std::vector<std::byte> shared(at((format.layer_bytes() + 63) / 64 * 64));
  format.store_layer(layer, shared.data());
  CHECK(std::equal(shared.begin(), shared.end(), q.bytes.begin()));
  CHECK(wrong_codes(q, codes) == 0);
  CHECK(wrong_nearest(q, m) == 0);
  CHECK(wrong_extremes(q, codes) == 0);

  // Decoding is value(), and finite; zeros among other groups are zeros.
  const std::vector<float> values = q.values();
  const index_t size = format.group_size(cols);
  wrong = 0;
  for (index_t r = 0; r < rows; ++r)
    for (index_t k = 0; k < cols; ++k) {
      const float value = values[at(r * cols + k)];
      wrong += !same_bits(value, format.value(layer, q.group(r, k / size), k % size, q.code(r, k)));
      wrong += !std::isfinite(value);
      if (r == 1 && k / size * size + size <= 256) wrong += !plain_zero<F>(value);
    }
  CHECK(wrong == 0);

  // The same again, into other rubbish.
  Cpu cpu;
  Quantized<F> again(format, rows, cols);
  again.bytes.assign(again.bytes.size(), std::byte{0x5a});
  quantize(cpu, quant::Rtn<F>{format}, m.view(), {}, again.packed());
  CHECK(again.bytes == q.bytes);

  // Rows 1 and 2 of the four, behind the same shared bytes, are a matrix; rows by themselves are the same records where
  // nothing is shared.
  Quantized<F> slice(format, 2, cols);
  std::copy_n(q.bytes.begin(), format.layer_bytes(), slice.bytes.begin());
  std::copy_n(packed.row(1), 2 * format.row_bytes(cols), slice.packed().row(0));
  CHECK(slice.values() == std::vector<float>(values.begin() + cols, values.begin() + 3 * cols));
  if (format.layer_bytes() == 0) {
    Matrix two(2, cols, [&](index_t i) { return m.w[at(cols + i)]; });
    CHECK(Quantized<F>(format, two).bytes == slice.bytes);
  }
}

/// codes: how many there are, from 0.
template <class F>
void weight_format(const F& format, int codes) {
  static_assert(quant::Codes<F> && quant::Quantizer<quant::Rtn<F>, Cpu>);
  const std::vector<index_t> columns = columns_of(format);
  for (const index_t cols : columns) weight_format_shape(format, codes, cols);

  // Nothing but zeros; no rows.
  const index_t cols = columns.back();
  int wrong = 0;
  for (const float x : Quantized<F>(format, Matrix(2, cols, [](index_t) { return 0; })).values())
    wrong += !plain_zero<F>(x);
  CHECK(wrong == 0);
  CHECK(Quantized<F>(format, Matrix(0, cols)).values().empty());

  // Refusals, before anything is written.
  Cpu cpu;
  Quantized<F> q(format, 2, cols);
  const std::vector<std::byte> before = q.bytes;
  const Matrix fits(2, cols);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Matrix m = fits;
    m.w[at(cols)] = bad;
    CHECK_THROWS_WITH(quantize(cpu, quant::Rtn<F>{format}, m.view(), {}, q.packed()),
                      catch_compat::contains("at (1, 0)"));
  }
  const Matrix taller(3, cols);
  CHECK_THROWS_AS(quantize(cpu, quant::Rtn<F>{format}, taller.view(), {}, q.packed()), decant::ArgumentError);
  const std::vector<float> importance(at(cols + 1), 1.0f);
  CHECK_THROWS_AS(
      quantize(cpu, quant::Rtn<F>{format}, fits.view(), {.importance = View<const float, 1>(importance)}, q.packed()),
      decant::ArgumentError);
  CHECK(q.bytes == before);
  using Packed = quant::Packed<F>;
  const View<const std::byte, 1> bytes(q.bytes);
  CHECK_THROWS_AS(Packed(format, 2, cols, bytes.slice(0, 0, bytes.extent(0) - 1)), decant::ArgumentError);
  CHECK_THROWS_AS(Packed(format, 2, 0, bytes.slice(0, 0, 0)), decant::ArgumentError);
  if constexpr (requires { F::block_size; }) CHECK_THROWS_AS(Packed(format, 2, cols + 1, bytes), decant::ArgumentError);
}

}  // namespace conformance
