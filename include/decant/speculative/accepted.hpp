// decant: what verification reads and writes, for a batch.
#ifndef DECANT_SPECULATIVE_ACCEPTED_HPP
#define DECANT_SPECULATIVE_ACCEPTED_HPP

#include <cstdint>

#include "../core/view.hpp"
#include "../sampling/logit_row.hpp"
#include "law.hpp"

namespace decant::speculative {

/// Probabilities as they lie in memory, [rows, vocab], rows contiguous, any distance apart. A target's row
/// offsets[b] + i belongs to node i of tree b. Rows sum to 1 within 1e-5, and are the processed distributions
/// (temperature, filters): nothing may be renormalised after verification.
using ProbabilityRows = View<const float, 2>;

/// The same law from logits, without the probabilities in memory.
using sampling::LogitRows;

/// Results of a batch of B trees whose deepest level is at most D: emitted tokens are the accepted path and one more.
/// Optional views may be empty.
struct Accepted {
  View<std::int32_t, 2> tokens{};        ///< [B, D + 1], padded with -1
  View<std::int32_t, 2> nodes{};         ///< [B, D], the accepted path without the root, padded with -1
  View<std::int32_t, 1> length{};        ///< [B]: tau, accepted drafted tokens; -1 where status is not ok
  View<Status, 1> status{};              ///< [B]
  View<float, 2> log_probability{};      ///< [B, D + 1], optional: log p of each emitted token at its node, NaN behind
  /// [B], optional: how many nodes of a chain would be accepted each by itself, with the random numbers of the walk: the
  /// unbiased estimate of the acceptance per position. Membership reads all rows for it. Trees that are no chain, and
  /// verifiers other than Membership that read no draft rows: -1.
  View<std::int32_t, 1> independent{};
};

}  // namespace decant::speculative

#endif
