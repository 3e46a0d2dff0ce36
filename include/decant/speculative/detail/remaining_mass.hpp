// decant: RemainingMass, a distribution that tokens are taken out of, one after another, with sums of blocks, so that a
// draw reads one block and the sums, not the vocabulary.
#ifndef DECANT_SPECULATIVE_DETAIL_REMAINING_MASS_HPP
#define DECANT_SPECULATIVE_DETAIL_REMAINING_MASS_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../core/view.hpp"

namespace decant::speculative::detail {

class RemainingMass {
 public:
  /// Weights of at least 0. O(n).
  void load(const View<const float, 1>& weights) {
    const auto n = static_cast<std::size_t>(weights.extent(0));
    weights_.resize(n);
    for (std::size_t i = 0; i < n; ++i) weights_[i] = weights[static_cast<index_t>(i)];
    blocks_.resize((n + block - 1) / block);
    for (std::size_t b = 0; b < blocks_.size(); ++b) sum(b);
  }

  double total() const {
    double all = 0;
    for (const Block& b : blocks_) all += b.sum;
    return all;
  }

  /// Drawn in proportion to what is left, u uniform on [0, 1); -1: nothing is left. O(n / block + block).
  std::int32_t draw(double u) const {
    const double target = u * total();
    double before = 0;
    std::size_t chosen = blocks_.size();
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (!(blocks_[b].sum > 0)) continue;
      if (chosen < blocks_.size()) before += blocks_[chosen].sum;
      chosen = b;
      if (before + blocks_[b].sum > target) break;
    }
    if (chosen == blocks_.size()) return -1;
    std::int32_t token = -1;
    for (std::size_t i = chosen * block; i < end(chosen); ++i) {
      if (!(weights_[i] > 0)) continue;
      token = static_cast<std::int32_t>(i);
      before += static_cast<double>(weights_[i]);
      if (before > target) break;
    }
    return token;
  }

  /// The largest that is left, of equal ones the lowest; -1: nothing is left.
  std::int32_t largest() const {
    std::int32_t best = -1;
    for (const Block& b : blocks_) {
      if (b.largest >= 0 && (best < 0 || weight(b.largest) > weight(best))) best = b.largest;
    }
    return best;
  }

  void remove(std::int32_t token) {
    weights_[static_cast<std::size_t>(token)] = 0;
    sum(static_cast<std::size_t>(token) / block);
  }

 private:
  static constexpr std::size_t block = 256;
  struct Block {
    double sum = 0;
    std::int32_t largest = -1;
  };

  float weight(std::int32_t i) const { return weights_[static_cast<std::size_t>(i)]; }
  std::size_t end(std::size_t b) const {
    return (b + 1) * block < weights_.size() ? (b + 1) * block : weights_.size();
  }
  void sum(std::size_t b) {
    Block found;
    for (std::size_t i = b * block; i < end(b); ++i) {
      found.sum += static_cast<double>(weights_[i]);
      const auto at = static_cast<std::int32_t>(i);
      if (weights_[i] > 0 && (found.largest < 0 || weights_[i] > weight(found.largest))) found.largest = at;
    }
    blocks_[b] = found;
  }

  std::vector<float> weights_;
  std::vector<Block> blocks_;
};

}  // namespace decant::speculative::detail

#endif
