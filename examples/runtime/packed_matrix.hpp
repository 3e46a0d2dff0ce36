// PackedMatrix: a quantised weight matrix in any of decant's formats, chosen when the program runs, and the text by
// which files name a format ("int4:grid=zero_point,group=128"). A runtime with one format uses decant::quant::Packed
// itself.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <decant/core/cpu.hpp>
#include <decant/core/view.hpp>
#include <decant/quant/policy.hpp>

namespace runtime {

using decant::index_t;
using decant::View;

/// What PackedMatrix holds. Implementations own their bytes, or keep alive what does.
class PackedWeights {
 public:
  virtual ~PackedWeights() = default;
  virtual index_t rows() const = 0;
  virtual index_t cols() const = 0;
  virtual View<const std::byte, 1> data() const = 0;
  /// The text that read_packed() takes.
  virtual std::string format() const = 0;
  virtual void multiply(decant::Cpu& cpu, View<const float, 2> x, View<float, 2> y) const = 0;
  virtual void row(decant::Cpu& cpu, index_t r, View<float, 1> out) const = 0;
};

/// A decant::quant::WeightMatrix. Copies share the bytes.
class PackedMatrix {
 public:
  explicit PackedMatrix(std::shared_ptr<const PackedWeights> weights) : weights_(std::move(weights)) {}

  index_t rows() const { return weights_->rows(); }
  index_t cols() const { return weights_->cols(); }
  index_t bytes() const { return weights_->data().size(); }
  View<const std::byte, 1> data() const { return weights_->data(); }
  std::string format() const { return weights_->format(); }

  friend void matmul(decant::Cpu& cpu, const PackedMatrix& w, View<const float, 2> x, View<float, 2> y) {
    w.weights_->multiply(cpu, x, y);
  }
  friend void dequantize_row(decant::Cpu& cpu, const PackedMatrix& w, index_t r, View<float, 1> out) {
    w.weights_->row(cpu, r, out);
  }

 private:
  std::shared_ptr<const PackedWeights> weights_;
};
static_assert(decant::quant::WeightMatrix<PackedMatrix, decant::Cpu>);

/// A matrix over the caller's bytes, which must outlive it. `where` names the tensor in errors: FormatError when the
/// text names no format, when the format cannot have this shape, or when it takes another number of bytes. Compiled
/// with all formats' kernels in packed_matrix.cpp: programs that read packed models pass it to Weights, the others need
/// not.
PackedMatrix read_packed(const std::string& format, index_t rows, index_t cols, View<const std::byte, 1> bytes,
                         const std::string& where);
using PackedReader = decltype(&read_packed);

}  // namespace runtime
