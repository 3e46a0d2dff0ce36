// decant: the rows of a walk (walk.hpp) on a device. All threads of a block walk together; a pass over a row is shared
// by its warps, a tile of 1024 tokens each. Order of sums, the same as on the CPU: within a tile 64 lanes, every lane in
// fp32, folded in halves; tiles one after another in double. So tokens are the CPU's, bit for bit.
// A pass moves 8 bytes per token of the vocabulary, and leaves the tiles' totals for the draw that may follow it, which
// then reads one tile.
#ifndef DECANT_SPECULATIVE_DETAIL_BLOCK_ROWS_CUH
#define DECANT_SPECULATIVE_DETAIL_BLOCK_ROWS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../../core/detail/device.cuh"
#include "../../core/row_sum.cuh"
#include "../../core/view.hpp"
#include "../../sampling/draw.cuh"
#include "../../sampling/probability.hpp"
#include "../keys.hpp"
#include "longest_path.hpp"
#include "residual.hpp"
#include "residual_tile.hpp"

namespace decant::speculative::detail {

/// Target: at(node, token) -> float. totals: shared memory for 3 floats per tile.
template <class Target>
class BlockRows {
 public:
  __device__ BlockRows(const Target& p, View<const float, 2> q, std::int32_t vocab, float* totals)
      : p_(p), q_(q), vocab_(vocab), totals_(totals) {}

  __device__ double target(std::int32_t node, std::int32_t token) { return checked(p_.at(node, token)); }
  __device__ double draft(std::int32_t row, std::int32_t token) { return checked(q_at(row, token)); }
  __device__ bool bad() const { return bad_; }

  __device__ PassSums<double> pass(const Residual<double>& residual, double step, std::int32_t skip) {
    const PassScalars s = PassScalars::of(residual, step);
    const auto tiles = static_cast<std::int32_t>(row_tiles(vocab_));
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    __syncthreads();  // exceptions are written, totals read
    for (auto tile = static_cast<std::int32_t>(threadIdx.x / 32); tile < tiles;
         tile += static_cast<std::int32_t>(blockDim.x / 32)) {
      const bool plain = !lists(residual, tile) && (skip < 0 || skip / tile_size != tile);
      float left[2] = {}, over[2] = {}, drawn[2] = {};
#pragma unroll 8
      for (std::int32_t i = 0; i < tile_size / 32; ++i) {
        const std::int32_t y = tile * tile_size + i * 32 + lane;
        if (y >= vocab_) break;
        const float p = p_.at(residual.node, y);
        const float q = residual.q_row < 0 ? 0.0f : q_at(residual.q_row, y);
        const PassTerms terms = pass_terms(s, p, q);
        const std::int32_t listed = plain ? -1 : find(residual, y);
        left[i % 2] += listed < 0 ? terms.left : exception_term(residual.exceptions[listed], p, q);
        over[i % 2] += listed < 0 ? terms.over : 0.0f;
        drawn[i % 2] += listed < 0 && y != skip ? q : 0.0f;
      }
      using ::decant::detail::Plus;
      using ::decant::detail::warp_reduce;
      const float sums[3] = {warp_reduce(left[0] + left[1], Plus{}), warp_reduce(over[0] + over[1], Plus{}),
                             warp_reduce(drawn[0] + drawn[1], Plus{})};
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        if (lane == 0) totals_[k * tiles + tile] = sums[k];
      }
    }
    __syncthreads();
    PassSums<double> all;
    for (std::int32_t tile = 0; tile < tiles; ++tile) {
      all.left += static_cast<double>(totals_[tile]);
      all.over += static_cast<double>(totals_[tiles + tile]);
      all.drawn += static_cast<double>(totals_[2 * tiles + tile]);
    }
    if (!(all.left - all.left == 0) || !(all.over - all.over == 0) || !(all.drawn - all.drawn == 0)) bad_ = true;
    last_ = LastPass::of(residual, s);
    __syncthreads();
    return all;
  }

  /// Sum of min(q, p / rho).
  __device__ double overlap(std::int32_t node, std::int32_t q_row, double rho) {
    const auto inverse = static_cast<float>(1 / rho);
    return sum_of([&](index_t y) {
      const float q = q_at(q_row, static_cast<std::int32_t>(y));
      const float p = __fmul_rn(p_.at(node, static_cast<std::int32_t>(y)), inverse);
      return q < p ? q : p;
    });
  }

  /// In nats.
  __device__ double entropy(std::int32_t node) {
    return sum_of([&](index_t y) { return entropy_term(p_.at(node, static_cast<std::int32_t>(y))); });
  }

  /// How many tokens are likelier, and with `ties` those as likely that come before.
  __device__ std::int32_t rank(std::int32_t node, std::int32_t token, bool ties) {
    const float own = p_.at(node, token);
    const double rank = sum_of(
        [&](index_t y) { return rank_term(p_.at(node, static_cast<std::int32_t>(y)), own, ties && y < token); });
    return bad_ ? 0 : static_cast<std::int32_t>(rank);
  }

  /// The token that wins the race p / E; -1: none has mass.
  __device__ std::int32_t race(std::int32_t node, const DrawKey& key) {
    __shared__ double doubles[32];
    __shared__ std::int32_t ints[32];
    std::int32_t token = -1;
    const auto term = [&](index_t y) { return weight_of(p_.at(node, static_cast<std::int32_t>(y))); };
    const auto status = sampling::detail::block_race(term, vocab_, key, doubles, ints, token);
    if (status == sampling::RowStatus::bad_row) bad_ = true;
    return token;
  }

  /// The first token whose cumulated A exceeds u times the sum of A; rounding aside, the last with mass; -1: none has.
  __device__ std::int32_t draw(const Residual<double>& residual, double u) {
    const DrawTerm term{*this, residual, static_cast<float>(residual.scale), static_cast<float>(residual.cut),
                        static_cast<float>(residual.floor)};
    const bool ready = last_.serves(residual);
    last_.valid = false;
    double all = 0;
    if (ready) {
      __syncthreads();
      for (index_t tile = threadIdx.x / 32; tile < row_tiles(vocab_); tile += blockDim.x / 32) {
        if (!lists(residual, static_cast<std::int32_t>(tile))) continue;
        const index_t first = tile * row_tile;
        const float total = warp_tile_total(term, first, first + row_tile < vocab_ ? first + row_tile : vocab_);
        if (threadIdx.x % 32 == 0) totals_[tile] = total;
      }
      __syncthreads();
      for (index_t tile = 0; tile < row_tiles(vocab_); ++tile) all += static_cast<double>(totals_[tile]);
    } else {
      all = block_tile_totals(term, vocab_, totals_);
    }
    if (!(all - all == 0)) bad_ = true;
    if (bad_ || !(all > 0)) return -1;
    const RowPlace place = find_tile(totals_, row_tiles(vocab_), u * all);
    const index_t first = place.tile * row_tile;
    const index_t last = first + row_tile < vocab_ ? first + row_tile : vocab_;
    return static_cast<std::int32_t>(warp_find_in_tile(term, first, last, place.rest));
  }

 private:
  template <class Term>
  __device__ double sum_of(const Term& term) {
    last_.valid = false;
    const double all = block_tile_totals(term, vocab_, totals_);
    if (!(all - all == 0)) bad_ = true;
    return all;
  }

  /// A, as a draw adds it up.
  struct DrawTerm {
    const BlockRows& rows;
    const Residual<double>& residual;
    float scale;
    float cut;
    float floor;

    __device__ float operator()(index_t token) const {
      const auto y = static_cast<std::int32_t>(token);
      const float p = rows.p_.at(residual.node, y);
      const float q = cut == 0 ? 0.0f : rows.q_at(residual.q_row, y);
      const std::int32_t at = residual.count > 0 ? find(residual, y) : -1;
      return at < 0 ? draw_term(scale, cut, floor, p, q) : exception_term(residual.exceptions[at], p, q);
    }
  };

  __device__ float q_at(std::int32_t row, std::int32_t token) const { return q_.data()[row * q_.stride(0) + token]; }

  __device__ double checked(float x) {
    if (!(x >= 0 && x < __builtin_huge_valf())) bad_ = true;
    return static_cast<double>(x);
  }

  __device__ static float exception_term(const Exception<double>& e, float p, float q) {
    return draw_term(static_cast<float>(e.scale), static_cast<float>(e.cut), 0.0f, p, q);
  }

  /// Whether a tile has a listed token.
  __device__ static bool lists(const Residual<double>& residual, std::int32_t tile) {
    const std::int32_t at = lower_bound(residual, tile * tile_size);
    return at < residual.count && residual.exceptions[at].token / tile_size == tile;
  }
  __device__ static std::int32_t find(const Residual<double>& residual, std::int32_t token) {
    const std::int32_t at = lower_bound(residual, token);
    return at < residual.count && residual.exceptions[at].token == token ? at : -1;
  }
  __device__ static std::int32_t lower_bound(const Residual<double>& residual, std::int32_t token) {
    std::int32_t low = 0;
    for (std::int32_t high = residual.count; low < high;) {
      const std::int32_t middle = (low + high) / 2;
      if (residual.exceptions[middle].token < token) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  Target p_;
  View<const float, 2> q_;
  std::int32_t vocab_;
  float* totals_;
  LastPass last_{};
  bool bad_ = false;
};

/// Target rows from logits, the tree's first one at `logits` and `rows`.
struct LogitTarget {
  const float* logits;
  index_t stride;
  const sampling::LogitRow* rows;

  __device__ float at(std::int32_t node, std::int32_t token) const {
    return sampling::probability(rows[node], token, logits[node * stride + token]);
  }
};

/// Rows of probabilities, the tree's first one at `rows`.
struct ProbabilityTarget {
  const float* rows;
  index_t stride;

  __device__ float at(std::int32_t node, std::int32_t token) const { return rows[node * stride + token]; }
};

}  // namespace decant::speculative::detail

#endif
