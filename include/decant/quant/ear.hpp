// decant: EAR, the expected acceptance rate of one model's tokens by another: the mean over positions of
// sum_v min(p_v, q_v) = 1 - total variation, the rate at which speculative sampling accepts, the most that any coupling
// agrees (Helcig, Kurtic, Alistarh: Statistically lossless quantization of large language models, arXiv 2605.02404).
// With it KL(p | q) in nats, top-1 agreement and the margins at disagreements. p is the reference; both models saw the
// same text. The paper sums over the reference's 10 likeliest tokens and leaves open whether it renormalises there: all
// three readings are here, and `full`, the only one that is an acceptance rate, is the default.
#ifndef DECANT_QUANT_EAR_HPP
#define DECANT_QUANT_EAR_HPP

#include <cmath>
#include <cstdint>

#include "../core/cpu.hpp"
#include "../core/dtype.hpp"
#include "detail/ear_rows.hpp"
#include "ear_types.hpp"

namespace decant::quant {

/// The mean and the spread of positions. O(positions log positions) at worst; scratch: 8 bytes for each.
inline EarResult ear_summary(Cpu& cpu, View<const EarPosition, 1> each) {
  EarResult r;
  Workspace::Scope scope(cpu.workspace());
  double* const values = cpu.workspace().take<double>(each.extent(0));
  double ear = 0, kl = 0, agreeing = 0, margin = 0;
  for (index_t i = 0; i < each.extent(0); ++i) {
    const EarPosition& at = each[i];
    r.excluded += at.state == EarState::excluded;
    if (at.state != EarState::counted) continue;
    values[r.positions++] = at.ear;
    ear += at.ear;
    kl += at.kl;
    agreeing += at.agrees ? 1 : 0;
    margin += static_cast<double>(at.margin);
  }
  r.ear = r.kl = r.top1_agreement = r.percentile_1 = std::nan("");
  if (r.positions == 0) return r;
  const auto n = static_cast<double>(r.positions);
  r.ear = ear / n;
  r.kl = kl / n;
  r.top1_agreement = agreeing / n;
  r.margin = agreeing < n ? margin / (n - agreeing) : 0;
  double squares = 0;
  for (index_t i = 0; i < r.positions; ++i) squares += (values[i] - r.ear) * (values[i] - r.ear);
  r.standard_error = r.positions > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
  r.percentile_1 = detail::nth_smallest(values, r.positions, (r.positions + 99) / 100 - 1);
  return r;
}

/// p, q [positions, vocab] logits of the reference and of the other model, rows contiguous, any storage types. keep
/// [positions]: positions with 0 there, the padding of ragged texts, are left out; empty: none are. A position with a
/// logit that is NaN or +inf, or none above -inf, is excluded and counted. each [positions], if not empty: what every
/// position gave; pieces of a text too long for memory are summed up by ear_summary over all of it.
/// Within 2e-6 of the exact ear of the given logits, and KL within 2e-6 (1 + KL), on every instruction set; identical
/// rows give exactly 1 and 0 (`full`). KL is infinite where q is 0 and p is not.
/// Moves 2 * positions * vocab logits once; O(positions * (vocab + top_k vocab at worst)), with top_p below 1 also
/// O(k log k) of k candidates. Scratch per thread: 8 bytes per token of the vocabulary at most.
template <Storage P, Storage Q>
EarResult ear(Cpu& cpu, View<P, 2> p, View<Q, 2> q, const EarOptions& options = {},
              View<const std::uint8_t, 1> keep = {}, View<EarPosition, 1> each = {}) {
  constexpr const char* where = "quant::ear";
  detail::require_ear(p, q, options, keep, each, where);
  const index_t positions = p.extent(0);
  const index_t vocab = p.extent(1);
  Workspace::Scope scope(cpu.workspace());
  if (each.empty()) each = cpu.workspace().take_view<EarPosition>(positions);
  const index_t parts = cpu.parts(positions, 1);
  const bool full = options.support == EarSupport::full && options.top_p == 1;
  const index_t tiles = (vocab + detail::ear_tile - 1) / detail::ear_tile;
  const bool cut = options.top_p < 1;
  const index_t kept = full ? vocab : 0;
  const index_t in_p = full ? 0 : cut || options.top_k > vocab ? vocab : options.top_k;
  const index_t in_q = cut ? vocab : 0;
  const detail::EarScratch all{
      cpu.workspace().take<detail::EarTile>(parts * tiles), cpu.workspace().take<float>(parts * kept),
      cpu.workspace().take<float>(parts * kept), cpu.workspace().take<std::int32_t>(parts * in_p),
      cpu.workspace().take<std::int32_t>(parts * in_q)};
  const Isa isa = cpu.isa();
  cpu.parallel_ranges(positions, 1, [&](index_t first, index_t last, index_t part) {
    const detail::EarScratch own{all.tiles + part * tiles, all.a + part * kept, all.b + part * kept,
                                 all.list_p + part * in_p, all.list_q + part * in_q};
    for (index_t i = first; i < last; ++i) {
      const bool skipped = !keep.empty() && keep[i] == 0;
      const P* const row_p = p.data() + i * p.stride(0);
      const Q* const row_q = q.data() + i * q.stride(0);
      each[i] = skipped ? EarPosition{}
                : full  ? detail::full_position(isa, row_p, row_q, vocab, options, own)
                        : detail::listed_position(isa, row_p, row_q, vocab, options, own);
    }
  });
  return ear_summary(cpu, View<const EarPosition, 1>(each));
}

}  // namespace decant::quant

#endif
