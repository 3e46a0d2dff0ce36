// decant: Processing, how logits become the distribution that is sampled from. Filters are sets, so that equal tokens
// are kept or dropped together: top-k keeps x where fewer than k tokens are likelier, top-p where the likelier tokens
// have less than P together, min-p where p(x) >= min_p * max p. The sampling law is p restricted to the tokens kept by
// all. Where all tokens are equal, each filter keeps all of them.
#ifndef DECANT_SAMPLING_PROCESSING_HPP
#define DECANT_SAMPLING_PROCESSING_HPP

#include <cstdint>

#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::sampling {

/// Which p top-p adds up.
enum class Order : std::uint8_t {
  joint,     ///< that of all tokens
  k_then_p,  ///< that of the tokens which top-k keeps, renormalised
};

constexpr const char* name(Order order) {
  constexpr const char* names[] = {"joint", "k_then_p"};
  return names[static_cast<int>(order)];
}

struct Processing {
  float temperature = 1;         ///< 0: the likeliest token, of equal ones the lowest; else 1e-30 to 1e30
  float repetition_penalty = 1;  ///< above 0: logits of seen tokens are divided by it, multiplied where negative
  float frequency_penalty = 0;   ///< taken off for each time that a token was emitted
  float presence_penalty = 0;    ///< taken off once for an emitted token
  int top_k = 0;                 ///< 0 or less, or the vocabulary or more: off
  float top_p = 1;               ///< 1 or more: off; 0 or less: only the likeliest
  float min_p = 0;               ///< [0, 1]; 0: off
  Order order = Order::joint;
  bool operator==(const Processing&) const = default;

  bool penalises() const { return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0; }
};

/// Which tokens penalties apply to, row by row: tokens[offsets[r] ... offsets[r + 1]), each once. A count is how often
/// it was emitted; 0: only in the prompt, for which frequency and presence do not count.
struct TokenCounts {
  View<const std::int32_t, 1> offsets{};  ///< [rows + 1]; all empty: no tokens
  View<const std::int32_t, 1> tokens{};
  View<const std::int32_t, 1> counts{};
};

/// Raises ArgumentError where a parameter is out of range or NaN.
inline void validate(const Processing& p) {
  constexpr const char* where = "sampling::Processing";
  require(p.temperature == 0 || (p.temperature >= 1e-30f && p.temperature <= 1e30f), where, "temperature",
          "0 or 1e-30 to 1e30", p.temperature);
  require(p.repetition_penalty >= 1e-30f && p.repetition_penalty <= 1e30f, where, "repetition_penalty",
          "1e-30 to 1e30", p.repetition_penalty);
  require(p.frequency_penalty >= -1e30f && p.frequency_penalty <= 1e30f, where, "frequency_penalty", "-1e30 to 1e30",
          p.frequency_penalty);
  require(p.presence_penalty >= -1e30f && p.presence_penalty <= 1e30f, where, "presence_penalty", "-1e30 to 1e30",
          p.presence_penalty);
  require(p.top_p == p.top_p, where, "top_p", "a number", p.top_p);
  require(p.min_p >= 0 && p.min_p <= 1, where, "min_p", "0 to 1", p.min_p);
  require(p.order <= Order::k_then_p, where, "order", "an order", static_cast<int>(p.order));
}

namespace detail {

/// What filters are told about rows of logits or probabilities.
inline void require_rows(const View<const float, 2>& rows, const char* where, const char* argument) {
  require(rows.extent(1) >= 1 || rows.extent(0) == 0, where, argument, "at least one token", rows.extent(1));
  require(rows.extent(1) <= 1 << 22, where, argument, "at most 2^22 tokens", rows.extent(1));
  require(rows.stride(1) == 1 || rows.extent(1) <= 1, where, argument, "contiguous rows", rows.stride(1));
}

inline void require_counts(const TokenCounts& seen, index_t rows, const char* where) {
  require_equal(seen.counts.extent(0), seen.tokens.extent(0), where, "seen.counts");
  if (!seen.offsets.empty()) {
    require_equal(seen.offsets.extent(0), rows + 1, where, "seen.offsets");
  } else {
    require_equal(seen.tokens.extent(0), 0, where, "seen.tokens");
  }
}

/// A logit after penalties, rounded step by step; -inf stays, finite numbers stay finite.
DECANT_HD inline float penalised(const Processing& p, float logit, std::int32_t count) {
  if (!(logit > -__builtin_huge_valf())) return logit;
  const double raised = logit > 0 ? static_cast<double>(logit) / static_cast<double>(p.repetition_penalty)
                                  : static_cast<double>(logit) * static_cast<double>(p.repetition_penalty);
  auto x = static_cast<float>(raised < -3e38 ? -3e38 : raised > 3e38 ? 3e38 : raised);
  if (count > 0) {
    // Products of floats are exact in double, so that a fused sum is the same sum.
    const double off = static_cast<double>(p.frequency_penalty) * static_cast<double>(count);
    const double lowered = static_cast<double>(x) - off - static_cast<double>(p.presence_penalty);
    x = static_cast<float>(lowered < -3e38 ? -3e38 : lowered > 3e38 ? 3e38 : lowered);
  }
  return x;
}

/// The range of a row's tokens; false: not inside the list.
struct SeenRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
  bool valid = true;
};
DECANT_HD inline SeenRange seen_range(const TokenCounts& seen, index_t row) {
  if (seen.offsets.empty()) return {};
  const std::int32_t first = seen.offsets[row];
  const std::int32_t last = seen.offsets[row + 1];
  if (first < 0 || last < first || last > seen.tokens.extent(0)) return {0, 0, false};
  return {first, last, true};
}

}  // namespace detail

}  // namespace decant::sampling

#endif
