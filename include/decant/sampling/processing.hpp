// decant: Processing, how logits become the distribution that is sampled from. Filters are sets, so that equal tokens
// are kept or dropped together: top-k keeps x where fewer than k tokens are likelier, top-p where the likelier tokens
// have less than P together, min-p where p(x) >= min_p * max p. The sampling law is p restricted to the tokens kept by
// all. Where all tokens are equal, each filter keeps all of them.
#ifndef DECANT_SAMPLING_PROCESSING_HPP
#define DECANT_SAMPLING_PROCESSING_HPP

#include <cstdint>

#include "../core/error.hpp"
#include "../core/view.hpp"
#include "logit_row.hpp"
#include "status.hpp"

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

/// What the functions of process.hpp and process.cuh ask of their arguments. ArgumentError names what does not fit.
inline void require_penalise(const Processing& p, const View<float, 2>& logits, const TokenCounts& seen,
                             const View<RowStatus, 1>& status, const char* where) {
  validate(p);
  require_rows(logits, where, "logits");
  require_counts(seen, logits.extent(0), where);
  require_equal(status.extent(0), logits.extent(0), where, "status");
}

inline void require_filter(const Processing& p, const View<const float, 2>& logits, const View<LogitRow, 1>& out,
                           const View<RowStatus, 1>& status, const char* where) {
  validate(p);
  require(!p.penalises(), where, "p", "no penalties: sampling::penalise applies them", "penalties");
  require_rows(logits, where, "logits");
  require_equal(out.extent(0), logits.extent(0), where, "out");
  require_equal(status.extent(0), logits.extent(0), where, "status");
}

/// Probabilities of the same shape as the logits that they are made of.
inline void require_probabilities(const View<float, 2>& probabilities, const View<const float, 2>& logits,
                                  const char* where) {
  require_rows(probabilities, where, "probabilities");
  require_equal(probabilities.extent(0), logits.extent(0), where, "probabilities");
  require_equal(probabilities.extent(1), logits.extent(1), where, "probabilities");
}

inline void require_materialise(const LogitRows& rows, const View<const RowStatus, 1>& status,
                                const View<float, 2>& probabilities, const char* where) {
  require_rows(rows.logits, where, "rows.logits");
  require_equal(rows.rows.extent(0), rows.logits.extent(0), where, "rows.rows");
  require_equal(status.extent(0), rows.logits.extent(0), where, "status");
  require_probabilities(probabilities, rows.logits, where);
}

inline void require_process(const Processing& p, const View<const float, 2>& logits, const TokenCounts& seen,
                            const View<float, 2>& probabilities, const View<RowStatus, 1>& status, const char* where) {
  validate(p);
  require_rows(logits, where, "logits");
  require_counts(seen, logits.extent(0), where);
  require_probabilities(probabilities, logits, where);
  require_equal(status.extent(0), logits.extent(0), where, "status");
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
