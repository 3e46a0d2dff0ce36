// decant: quant::CalibrationSums gathers a Calibration from a layer's inputs, batch by batch, in double precision. The
// Hessian is a running mean, as in GPTQ's official code (Frantar et al., arXiv 2210.17323); the sample of inputs is a
// reservoir (Vitter, algorithm R), drawn by token number, so that it does not depend on how tokens come in batches.
#ifndef DECANT_QUANT_CALIBRATION_SUMS_HPP
#define DECANT_QUANT_CALIBRATION_SUMS_HPP

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../core/cpu.hpp"
#include "../core/random.hpp"
#include "calibration.hpp"
#include "detail/product_f64.hpp"

namespace decant::quant {

struct CalibrationOptions {
  bool hessian = true;     ///< 8 cols^2 bytes, and nearly all of the work
  index_t inputs = 128;    ///< how many inputs are kept, at most
  std::uint64_t seed = 0;  ///< of their choice
};

/// One per layer input. Copies own their sums.
class CalibrationSums {
 public:
  /// Raises ArgumentError unless cols >= 1 and options.inputs >= 0.
  explicit CalibrationSums(index_t cols, const CalibrationOptions& options = {}) : cols_(cols), options_(options) {
    require(cols >= 1, "quant::CalibrationSums", "cols", "at least 1", cols);
    require(options.inputs >= 0, "quant::CalibrationSums", "options.inputs", "at least 0", options.inputs);
    const auto n = static_cast<std::size_t>(cols);
    squares_.resize(n);
    magnitudes_.resize(n);
    importance_.resize(n);
    magnitude_.resize(n);
    if (options.hessian) hessian_.resize(n * n);
  }

  /// Adds x [tokens, cols], rows contiguous. Batches of any sizes give the same sums but for rounding; importance,
  /// magnitude and inputs to the bit. ArgumentError, before anything is added, when a number is not finite (named).
  /// Allocates only where the sample of inputs still grows. O(tokens * cols^2), half of which symmetry saves.
  void add(Cpu& cpu, View<const float, 2> x) {
    constexpr const char* where = "quant::CalibrationSums::add";
    require_equal(x.extent(1), cols_, where, "x");
    require(x.stride(1) == 1 || cols_ == 1, where, "x", "contiguous rows", x.stride(1));
    for (index_t t = 0; t < x.extent(0); ++t) {
      const float* const row = &x(t, index_t{0});
      for (index_t k = 0; k < cols_; ++k)
        require(std::isfinite(row[k]), where, "x", "finite inputs",
                [&] { return std::to_string(row[k]) + " at (" + std::to_string(t) + ", " + std::to_string(k) + ")"; });
    }
    if (x.extent(0) == 0) return;

    const Workspace::Scope scope(cpu.workspace());
    double* const tokens = options_.hessian ? cpu.workspace().take<double>(batch * cols_) : nullptr;
    for (index_t t = 0; t < x.extent(0); t += batch) {
      const index_t count = x.extent(0) - t < batch ? x.extent(0) - t : batch;
      if (options_.hessian) add_products(cpu, x.slice(0, t, count), tokens);
      for (index_t i = 0; i < count; ++i) add_token(&x(t + i, index_t{0}), tokens_ + i);
      tokens_ += count;
    }
    for (index_t k = 0; k < cols_; ++k) {
      const auto i = static_cast<std::size_t>(k);
      importance_[i] = static_cast<float>(squares_[i] / static_cast<double>(tokens_));
      magnitude_[i] = static_cast<float>(magnitudes_[i] / static_cast<double>(tokens_));
    }
    if (options_.hessian) mirror(cpu);
  }

  index_t cols() const { return cols_; }
  /// Inputs seen.
  index_t tokens() const { return tokens_; }

  /// What has been gathered, as views that hold until the next add(); empty before the first.
  Calibration view() const {
    Calibration c;
    if (tokens_ == 0) return c;
    c.importance = View<const float, 1>(importance_);
    c.magnitude = View<const float, 1>(magnitude_);
    if (options_.hessian) c.hessian = View<const double, 2>(hessian_.data(), cols_, cols_);
    c.inputs = View<const float, 2>(inputs_.data(), static_cast<index_t>(inputs_.size()) / cols_, cols_);
    return c;
  }

 private:
  /// Inputs whose products are added at once.
  static constexpr index_t batch = 128;
  static constexpr index_t tile = 64;

  /// H's lower triangle becomes the mean over all inputs with these.
  void add_products(Cpu& cpu, View<const float, 2> x, double* tokens) {
    const index_t count = x.extent(0);
    for (index_t t = 0; t < count; ++t) {
      for (index_t k = 0; k < cols_; ++k) tokens[t * cols_ + k] = static_cast<double>(x(t, k));
    }
    const double all = static_cast<double>(tokens_ + count);
    const double keep = static_cast<double>(tokens_) / all;
    cpu.parallel_for((cols_ + tile - 1) / tile, [&](index_t block) {
      // The longest rows of tiles first, so that a parallel run does not end with one of them.
      const index_t last = cols_ - block * tile;
      const index_t first = last > tile ? last - tile : 0;
      detail::product_f64(cpu.isa(), {last - first, last, count, tokens + first, 1, cols_, tokens, cols_,
                                      hessian_.data() + first * cols_, cols_, keep, 2 / all});
    });
  }

  void add_token(const float* x, index_t token) {
    for (index_t k = 0; k < cols_; ++k) {
      const double v = static_cast<double>(x[k]);
      squares_[static_cast<std::size_t>(k)] += v * v;
      magnitudes_[static_cast<std::size_t>(k)] += std::abs(v);
    }
    if (token < options_.inputs) {
      inputs_.insert(inputs_.end(), x, x + cols_);
      return;
    }
    const Philox4 bits =
        Philox{options_.seed}(static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(token >> 32));
    const std::uint64_t word = std::uint64_t{bits.word[0]} << 32 | bits.word[1];
    const index_t at = static_cast<index_t>(word % static_cast<std::uint64_t>(token + 1));
    if (at >= options_.inputs) return;
    for (index_t k = 0; k < cols_; ++k) inputs_[static_cast<std::size_t>(at * cols_ + k)] = x[k];
  }

  void mirror(Cpu& cpu) {
    double* const h = hessian_.data();
    cpu.parallel_for((cols_ + tile - 1) / tile, [&](index_t block) {
      const index_t first = block * tile;
      const index_t last = first + tile < cols_ ? first + tile : cols_;
      for (index_t j = 0; j < last; ++j) {
        for (index_t i = j < first ? first : j + 1; i < last; ++i) h[j * cols_ + i] = h[i * cols_ + j];
      }
    });
  }

  index_t cols_;
  CalibrationOptions options_;
  index_t tokens_ = 0;
  std::vector<double> squares_, magnitudes_, hessian_;
  std::vector<float> importance_, magnitude_, inputs_;
};

}  // namespace decant::quant

#endif
