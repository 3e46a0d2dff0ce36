// decant: the options and results of quant::ear (ear.hpp), which the CPU and CUDA share.
#ifndef DECANT_QUANT_EAR_TYPES_HPP
#define DECANT_QUANT_EAR_TYPES_HPP

#include <cstdint>
#include <string>

#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::quant {

/// Over which tokens of the vocabulary the minima are summed.
enum class EarSupport : std::uint8_t {
  full,              ///< all
  topk,              ///< the reference's top_k likeliest, with their probabilities among all: at most p(T), q(T)
  topk_conditioned,  ///< the same tokens, both distributions renormalised on them
};

constexpr const char* name(EarSupport s) {
  constexpr const char* names[] = {"full", "topk", "topk_conditioned"};
  return names[static_cast<int>(s)];
}

struct EarOptions {
  EarSupport support = EarSupport::full;
  int top_k = 10;         ///< 1 to 1024; of equal logits the lower token; the whole vocabulary where that is smaller
  float temperature = 1;  ///< 1e-30 to 1e30; both models' logits are divided by it
  float top_p = 1;        ///< (0, 1]: then each model keeps its fewest likeliest tokens of at least this probability
  bool operator==(const EarOptions&) const = default;
};

enum class EarState : std::uint8_t { skipped, excluded, counted };

struct EarPosition {
  double ear = 0;
  double kl = 0;
  float margin = 0;     ///< the reference's p1 - p2 after temperature, where its likeliest token is not the other's
  bool agrees = false;  ///< the likeliest tokens are the same; of equal logits the lower token
  EarState state = EarState::skipped;
};

/// Over the counted positions; ear, percentile, KL and agreement are NaN where there is none. Neighbouring positions
/// are not independent: the standard error is that of as many independent ones.
struct EarResult {
  double ear = 0;
  double standard_error = 0;  ///< of ear
  double percentile_1 = 0;    ///< the ear that 1 % of positions, at least one, do not exceed
  double kl = 0;
  double top1_agreement = 0;
  double margin = 0;  ///< the mean of p1 - p2 at disagreements; 0 without any
  index_t positions = 0;
  index_t excluded = 0;
};

namespace detail {

inline constexpr float ear_log2_e = 1.44269504f;

/// What exponents are counted from; where all logits are -inf, anything finite.
DECANT_HD constexpr float ear_base(float max) { return max == -__builtin_huge_valf() ? 0.0f : max; }

/// d of two logits, at a temperature.
DECANT_HD inline double ear_exponent(float logit, float max, float inverse) {
  return (static_cast<double>(logit) - static_cast<double>(max)) * static_cast<double>(inverse);
}

template <class P, class Q>
void require_ear(const View<P, 2>& p, const View<Q, 2>& q, const EarOptions& options,
                 const View<const std::uint8_t, 1>& keep, const View<EarPosition, 1>& each, const char* where) {
  require_equal(q.extent(0), p.extent(0), where, "q");
  require_equal(q.extent(1), p.extent(1), where, "q");
  require(p.extent(1) >= 1 || p.extent(0) == 0, where, "p", "at least one token", p.extent(1));
  require(p.extent(1) <= 0x7fffffff, where, "p", "at most 2^31 - 1 tokens", p.extent(1));
  require(p.stride(1) == 1 || p.empty(), where, "p", "contiguous rows", p.stride(1));
  require(q.stride(1) == 1 || q.empty(), where, "q", "contiguous rows", q.stride(1));
  if (!keep.empty()) require_equal(keep.extent(0), p.extent(0), where, "keep");
  if (!each.empty()) require_equal(each.extent(0), p.extent(0), where, "each");
  require(options.support <= EarSupport::topk_conditioned, where, "options.support", "a support",
          static_cast<int>(options.support));
  require(options.top_k >= 1 && options.top_k <= 1024, where, "options.top_k", "1 to 1024", options.top_k);
  require(options.temperature >= 1e-30f && options.temperature <= 1e30f, where, "options.temperature",
          "1e-30 to 1e30", options.temperature);
  require(options.top_p > 0 && options.top_p <= 1, where, "options.top_p", "above 0, at most 1", options.top_p);
}

}  // namespace detail

}  // namespace decant::quant

#endif
