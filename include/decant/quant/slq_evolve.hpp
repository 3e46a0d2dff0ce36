// decant: SLQ's evolutionary search (arXiv 2605.02404, algorithm 3, after EvoPress, arXiv 2410.14649): fewer and fewer
// bits with a measured KL below a threshold. It needs no table of sensitivities, and orders of magnitude more
// measurements: for joint quantization of weights and activations, whose errors no sum foretells. Host code.
#ifndef DECANT_QUANT_SLQ_EVOLVE_HPP
#define DECANT_QUANT_SLQ_EVOLVE_HPP

#include <concepts>
#include <utility>

#include "slq_search.hpp"

namespace decant::quant {

struct SlqEvolve {
  std::vector<int> options{2, 3, 4, 5, 6, 7, 8};
  double most_kl = 0.01;          ///< tau
  int offspring = 16;             ///< lambda, in each generation
  std::vector<int> stages{4, 1};  ///< how many offspring each stage leaves; the last leaves 1
  double penalty = 1000;          ///< of KL above tau, >> 1
  int switches = 3;               ///< most levels that an offspring switches
  int stall = 5;                  ///< generations without an improvement before bit-widths are swapped
  int generations = 200;          ///< most of them
  std::uint64_t seed = 0;
  SlqStorage storage;
  bool operator==(const SlqEvolve&) const = default;
};

/// KL per bit saved; above tau much worse. Lower is better; infinite where nothing is saved [ours]. Equation 9 has
/// penalty * (KL - tau) as the factor, which would reward KL just above tau; ours is 1 more.
inline double evolve_fitness(double kl, double saved_bits, double most_kl, double penalty) {
  if (!(saved_bits > 0)) return __builtin_huge_val();
  return kl / saved_bits * (kl <= most_kl ? 1 : 1 + penalty * (kl - most_kl));
}

namespace detail {

/// An endless row of random words.
struct Draws {
  Philox random;
  std::uint64_t next = 0;
  std::size_t below(std::size_t n) {
    const std::uint64_t at = next++;
    const std::uint64_t word =
        random(static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32), 0, 0x65766fu).word[0];
    return static_cast<std::size_t>(word * n >> 32);
  }
};

struct Candidate {
  std::vector<int> bits;
  double average = 0;
  Fidelity measured;
  double fitness = 0;
};

/// One level of one group at a time: down, and half of the time, after the first, another group up.
inline void switch_levels(const SlqEvolve& search, Draws& draws, std::vector<int>& bits) {
  const std::size_t count = 1 + draws.below(static_cast<std::size_t>(search.switches));
  const auto step = [&](std::size_t m, bool down) {
    std::size_t o = 0;
    while (search.options[o] != bits[m]) ++o;
    if (down ? o > 0 : o + 1 < search.options.size()) bits[m] = search.options[down ? o - 1 : o + 1];
  };
  for (std::size_t i = 0; i < count; ++i) {
    step(draws.below(bits.size()), true);
    if (i > 0 && draws.below(2) == 1) step(draws.below(bits.size()), false);
  }
}

/// Leaves the `keep` fittest, in order; of equal ones the earlier.
inline void keep_fittest(std::vector<Candidate>& all, std::size_t keep) {
  for (std::size_t i = 1; i < all.size(); ++i) {
    for (std::size_t j = i; j > 0 && all[j].fitness < all[j - 1].fitness; --j) std::swap(all[j], all[j - 1]);
  }
  if (all.size() > keep) all.resize(keep);
}

}  // namespace detail

/// evaluate(bits, stage) measures the model, stage 0 on the fewest tokens, the last of search.stages on all; only that
/// one decides. Starts from all groups at the widest; `met` is false where not even that is below tau. Stops after
/// search.generations, or when two swaps of the widths of equally large groups in succession bring no smaller KL.
template <class Evaluate>
  requires requires(Evaluate& evaluate, View<const int, 1> bits) {
    { evaluate(bits, 0) } -> std::convertible_to<Fidelity>;
  }
SlqResult evolve(const SlqEvolve& search, View<const SlqGroup, 1> groups, Evaluate&& evaluate) {
  constexpr const char* where = "quant::evolve";
  detail::require_widths(search.options, where);
  require(groups.extent(0) >= 1, where, "groups", "at least 1", groups.extent(0));
  require(search.offspring >= 1, where, "search.offspring", "at least 1", search.offspring);
  require(search.switches >= 1, where, "search.switches", "at least 1", search.switches);
  require(search.stall >= 1, where, "search.stall", "at least 1", search.stall);
  require(!search.stages.empty() && search.stages.back() == 1, where, "search.stages", "stages that leave 1 at last",
          search.stages.empty() ? 0 : search.stages.back());
  const auto count = static_cast<std::size_t>(groups.extent(0));
  const int last = static_cast<int>(search.stages.size()) - 1;
  double parameters = 0;
  for (index_t m = 0; m < groups.extent(0); ++m) {
    require(groups[m].rows >= 1 && groups[m].cols >= 1, where, "groups", "matrices with weights",
            [&] { return "none in group " + std::to_string(m); });
    parameters += groups[m].parameters();
  }
  const auto average = [&](const std::vector<int>& bits) {
    double sum = 0;
    for (std::size_t m = 0; m < count; ++m) sum += groups[static_cast<index_t>(m)].parameters() * bits[m];
    return sum / parameters;
  };
  SlqResult result;
  const auto measure = [&](const std::vector<int>& bits, int stage) {
    ++result.evaluations;
    return static_cast<Fidelity>(evaluate(View<const int, 1>(bits), stage));
  };
  detail::Draws draws{Philox{search.seed}};
  result.bits.assign(count, search.options.back());
  result.measured = measure(result.bits, last);
  result.met = result.measured.kl < search.most_kl;
  double now = average(result.bits);
  int stalled = 0;
  int fruitless = 0;
  for (int generation = 0; generation < search.generations && result.met && fruitless < 2; ++generation) {
    std::vector<detail::Candidate> all;
    for (int i = 0; i < search.offspring; ++i) {
      detail::Candidate c;
      c.bits = result.bits;
      detail::switch_levels(search, draws, c.bits);
      c.average = average(c.bits);
      if (c.average < now) all.push_back(c);  // the parent, which saves nothing, never wins: it need not compete
    }
    for (int stage = 0; stage <= last && !all.empty(); ++stage) {
      for (detail::Candidate& c : all) {
        c.measured = measure(c.bits, stage);
        c.fitness = evolve_fitness(c.measured.kl, now - c.average, search.most_kl, search.penalty);
      }
      detail::keep_fittest(all, static_cast<std::size_t>(search.stages[static_cast<std::size_t>(stage)]));
    }
    if (!all.empty() && all[0].measured.kl < search.most_kl) {
      result.bits = all[0].bits;
      result.measured = all[0].measured;
      now = all[0].average;
      stalled = fruitless = 0;
      continue;
    }
    if (++stalled < search.stall) continue;
    // The same size and a smaller KL leave room for the next savings.
    stalled = 0;
    ++fruitless;
    std::vector<int> best;
    for (int i = 0; i < search.offspring; ++i) {
      const std::size_t a = draws.below(count);
      const std::size_t b = draws.below(count);
      if (result.bits[a] == result.bits[b] ||
          groups[static_cast<index_t>(a)].parameters() != groups[static_cast<index_t>(b)].parameters())
        continue;
      std::vector<int> bits = result.bits;
      std::swap(bits[a], bits[b]);
      const Fidelity f = measure(bits, last);
      if (f.kl < result.measured.kl) {
        result.measured = f;
        best = bits;
      }
    }
    if (best.empty()) continue;
    result.bits = best;
    fruitless = 0;
  }
  result.average_bits = now;
  for (index_t m = 0; m < groups.extent(0); ++m)
    result.bits_per_weight +=
        stored_bits(groups[m], result.bits[static_cast<std::size_t>(m)], search.storage) / parameters;
  return result;
}

}  // namespace decant::quant

#endif
