// decant: the likeliest tokens of rows of logits, in order, and the rows' log-sum-exp, in one pass: what a drafter that
// branches by probability needs of a row. The same bits on every instruction set and on Cuda (top_logits.cuh). Each tile
// of 1024 logits has its own maximum and its sum of exponentials below that, in the order of core/row_sum.hpp; these,
// scaled to the row's maximum, are added up in double, one after another. [ours]
#ifndef DECANT_SPECULATIVE_TOP_LOGITS_HPP
#define DECANT_SPECULATIVE_TOP_LOGITS_HPP

#include <cstdint>
#include <type_traits>

#include "../core/cpu.hpp"
#include "../core/dtype.hpp"
#include "../core/row_sum.hpp"
#include "../sampling/detail/rounded_math.hpp"
#include "detail/row_top.hpp"

namespace decant::speculative {

/// Of each row its k largest logits, largest first, of equal ones the lower token first; k is 1 to 32. NaN and -inf are
/// never among them: where fewer are left, count says how many, and -inf and -1 stand behind them.
struct TopLogits {
  View<float, 2> value{};         ///< [rows, k]
  View<std::int32_t, 2> token{};  ///< [rows, k]
  View<std::int32_t, 1> count{};  ///< [rows]
  View<double, 1> log_sum_exp{};  ///< [rows], in nats; NaN where a logit is, else +inf where one is, -inf where all are
};

namespace detail {

inline constexpr index_t most_top_logits = 32;
inline constexpr index_t most_logits = index_t{1} << 22;  // of a row

/// e^(x - most) for the largest logit of a tile; if that is infinite, what the limit gives: 1 for +inf, else 0. NaN stays.
DECANT_HD DECANT_INLINE float top_logits_term(float x, float most) {
  if (most - most != 0) return x != x ? x : x == most && most > 0 ? 1.0f : 0.0f;
  return sampling::detail::rounded_exp(x - most);
}

/// What a tile adds to the row's sum of terms, given its largest logit, its own sum, and the row's largest logit.
DECANT_HD DECANT_UNFUSED inline double top_logits_share(float most, float sum, float largest) {
  const auto own = static_cast<double>(sum);
  if (most == largest) return own;
  return ::decant::detail::rounded_product(own, static_cast<double>(sampling::detail::rounded_exp(most - largest)));
}

/// The row's log-sum-exp from the sum of all shares.
DECANT_HD DECANT_UNFUSED inline double top_logits_log(float largest, double sum) {
  if (sum != sum) return __builtin_nan("");
  const auto most = static_cast<double>(largest);
  return largest - largest != 0 ? most : most + sampling::detail::rounded_log(sum);
}

struct TopLogitsTerm {
  const float* x;
  float most;

  DECANT_INLINE float operator()(index_t i) const { return top_logits_term(x[i], most); }
  DECANT_INLINE void block(index_t i, float* w) const {
    if (most - most != 0) {
      for (int l = 0; l < 64; ++l) w[l] = top_logits_term(x[i + l], most);
      return;
    }
    for (int l = 0; l < 64; ++l) w[l] = x[i + l] - most;
    sampling::detail::rounded_exp_64(w);
  }
};

/// What one pass finds of a tile.
struct TopLogitsTile {
  float most;             // the largest logit, NaN ignored
  float sum;              // of terms
  std::uint32_t entries;  // bit i: one of elements 64 i ... may be larger than `least`
};

DECANT_INLINE TopLogitsTile top_logits_tile_lanes(const float* x, index_t n, float least) {
  float lane[row_lanes];
  for (index_t l = 0; l < row_lanes; ++l) lane[l] = -__builtin_huge_valf();
  std::uint32_t entries = 0;
  index_t i = 0;
  for (; i + row_lanes <= n; i += row_lanes) {
    std::int32_t above = 0;
    for (index_t l = 0; l < row_lanes; ++l) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (index_t l = 0; l < row_lanes; ++l) above |= x[i + l] > least ? 1 : 0;
    entries |= static_cast<std::uint32_t>(above) << (i / row_lanes);
  }
  if (i < n) entries |= 1u << (i / row_lanes);
  for (index_t l = 0; i + l < n; ++l) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  for (index_t l = 1; l < row_lanes; ++l) lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
  return {lane[0], ::decant::detail::tile_total(TopLogitsTerm{x, lane[0]}, 0, n), entries};
}

DECANT_UNFUSED inline TopLogitsTile top_logits_tile_portable(const float* x, index_t n, float least) {
  return top_logits_tile_lanes(x, n, least);
}
#if DECANT_X86
DECANT_TARGET_AVX2 DECANT_UNFUSED inline TopLogitsTile top_logits_tile_avx2(const float* x, index_t n, float least) {
  return top_logits_tile_lanes(x, n, least);
}
DECANT_TARGET_AVX512 DECANT_UNFUSED inline TopLogitsTile top_logits_tile_avx512(const float* x, index_t n,
                                                                                float least) {
  return top_logits_tile_lanes(x, n, least);
}
#endif

inline TopLogitsTile top_logits_tile(Isa isa, const float* x, index_t n, float least) {
#if DECANT_X86
  if (isa == Isa::avx512) return top_logits_tile_avx512(x, n, least);
  if (isa == Isa::avx2) return top_logits_tile_avx2(x, n, least);
#else
  (void)isa;
#endif
  return top_logits_tile_portable(x, n, least);
}

/// One row of at most most_logits, whose log-sum-exp is returned; `count` becomes how many of top are there.
template <class T>
double top_logits_row(Isa isa, const T* row, index_t n, View<RowTop, 1> top, std::int32_t& count) {
  float most[row_tiles(most_logits)];
  float sum[row_tiles(most_logits)];
  float largest = -__builtin_huge_valf();
  count = 0;
  float wide[std::is_same_v<T, float> ? 1 : row_tile];
  for (index_t first = 0; first < n; first += row_tile) {
    const index_t size = n - first < row_tile ? n - first : row_tile;
    const float* x;
    if constexpr (std::is_same_v<T, float>) {
      x = row + first;
    } else {
      for (index_t i = 0; i < size; ++i) wide[i] = static_cast<float>(row[first + i]);
      x = wide;
    }
    const bool full = count == top.extent(0);
    const TopLogitsTile tile = top_logits_tile(isa, x, size, full ? top[count - 1].value : -__builtin_huge_valf());
    most[first / row_tile] = tile.most;
    sum[first / row_tile] = tile.sum;
    largest = tile.most > largest ? tile.most : largest;
    for (index_t i = 0; i < size; i += row_lanes) {
      if ((tile.entries >> (i / row_lanes) & 1u) == 0) continue;
      const index_t some = size - i < row_lanes ? size - i : row_lanes;
      count = row_top_more(View<const float, 1>(x + i, some), first + i, -__builtin_huge_valf(), top, count);
    }
  }
  double all = 0;
  for (index_t t = 0; t < row_tiles(n); ++t) all += top_logits_share(most[t], sum[t], largest);
  return top_logits_log(largest, all);
}

/// What both contexts ask for.
template <class T>
void require_top_logits(const View<T, 2>& logits, const TopLogits& out, const char* where) {
  const index_t rows = logits.extent(0);
  require(logits.extent(1) >= 1 && logits.extent(1) <= most_logits, where, "logits", "1 to 2^22 tokens",
          logits.extent(1));
  require(logits.stride(1) == 1 || logits.extent(1) == 1, where, "logits", "stride 1 along rows", logits.stride(1));
  require(out.value.extent(1) >= 1 && out.value.extent(1) <= most_top_logits, where, "out.value", "1 to 32 columns",
          out.value.extent(1));
  require_equal(out.value.extent(0), rows, where, "out.value");
  require_equal(out.token.extent(0), rows, where, "out.token");
  require_equal(out.token.extent(1), out.value.extent(1), where, "out.token");
  require_equal(out.count.extent(0), rows, where, "out.count");
  require_equal(out.log_sum_exp.extent(0), rows, where, "out.log_sum_exp");
}

}  // namespace detail

/// logits [rows, vocab] in float, bf16 or fp16, rows contiguous. Reads each logit once. O(rows (vocab + entered k)).
template <class T>
void top_logits(Cpu& cpu, View<T, 2> logits, const TopLogits& out) {
  detail::require_top_logits(logits, out, "speculative::top_logits");
  cpu.parallel_for(logits.extent(0), [&](index_t r) {
    detail::RowTop top[detail::most_top_logits];
    const index_t k = out.value.extent(1);
    std::int32_t count;
    out.log_sum_exp[r] = detail::top_logits_row(cpu.isa(), &logits(r, 0), logits.extent(1),
                                                View<detail::RowTop, 1>(top, k), count);
    out.count[r] = count;
    for (index_t j = 0; j < k; ++j) {
      out.value(r, j) = j < count ? top[j].value : -__builtin_huge_valf();
      out.token(r, j) = j < count ? top[j].token : -1;
    }
  });
}

}  // namespace decant::speculative

#endif
