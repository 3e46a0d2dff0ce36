// decant: how much each group's bit-width moves EAR and KL, three ways (SLQ, arXiv 2605.02404): Shapley values of a
// game per bit-width (algorithm 1), a slope per group from injected noise (equations 5 and 6, after HIGGS, arXiv
// 2411.17525), and one group at a time, which misses how errors add up.
#ifndef DECANT_QUANT_SLQ_SENSITIVITY_HPP
#define DECANT_QUANT_SLQ_SENSITIVITY_HPP

#include <concepts>

#include "../core/random.hpp"
#include "slq_table.hpp"

namespace decant::quant {

namespace detail {

/// An empty table, with the model at its widest measured.
template <class Evaluate>
SlqTable new_table(Evaluate& evaluate, index_t groups, const std::vector<int>& options, const char* where) {
  require_widths(options, where);
  require(groups >= 1, where, "groups", "at least 1", groups);
  SlqTable table;
  table.options = options;
  table.groups = groups;
  table.kl.assign(static_cast<std::size_t>(groups) * options.size(), 0.0);
  table.miss = table.kl;
  const std::vector<int> bits(static_cast<std::size_t>(groups), options.back());
  table.widest = evaluate(View<const int, 1>(bits));
  table.evaluations = 1;
  return table;
}

/// A random order of [0, n).
inline void shuffle(std::vector<index_t>& order, const Philox& random, std::uint32_t step, std::uint32_t request) {
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<index_t>(i);
  for (std::size_t i = order.size(); i-- > 1;) {
    const std::uint64_t word = random(static_cast<std::uint32_t>(i), step, request, 0x514c53u).word[0];
    const auto j = static_cast<std::size_t>(word * (i + 1) >> 32);
    const index_t swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
}

}  // namespace detail

/// Shapley values: for each width but the widest, all groups start at the widest and switch to it in a random order;
/// what a group adds is its mean over `permutations` orders (P of the paper, which does not print it: 8 [ours]). The
/// values of a width sum to what all groups at it add, for any number of orders. 1 + (options - 1) ((groups - 1)
/// permutations + 1) evaluations: both ends of every order are measured once.
template <SlqEvaluate Evaluate>
SlqTable shapley_sensitivities(Evaluate&& evaluate, index_t groups, const std::vector<int>& options,
                               int permutations = 8, std::uint64_t seed = 0) {
  constexpr const char* where = "quant::shapley_sensitivities";
  require(permutations >= 1, where, "permutations", "at least 1", permutations);
  SlqTable table = detail::new_table(evaluate, groups, options, where);
  std::vector<index_t> order(static_cast<std::size_t>(groups));
  for (std::size_t o = 0; o + 1 < options.size(); ++o) {
    std::vector<int> bits(order.size(), options[o]);
    const Fidelity all = evaluate(View<const int, 1>(bits));
    ++table.evaluations;
    for (int p = 0; p < permutations; ++p) {
      detail::shuffle(order, Philox{seed}, static_cast<std::uint32_t>(p), static_cast<std::uint32_t>(options[o]));
      bits.assign(order.size(), options.back());
      Fidelity before = table.widest;
      for (std::size_t j = 0; j < order.size(); ++j) {
        bits[static_cast<std::size_t>(order[j])] = options[o];
        Fidelity after = all;
        if (j + 1 < order.size()) {
          after = evaluate(View<const int, 1>(bits));
          ++table.evaluations;
        }
        table.kl[table.at(order[j], o)] += (after.kl - before.kl) / permutations;
        table.miss[table.at(order[j], o)] += (before.ear - after.ear) / permutations;
        before = after;
      }
    }
  }
  return table;
}

/// [ours] One group at a time below the widest width. Unsafe where errors amplify one another, and they do: searches on
/// it promise what they do not keep. 1 + groups (options - 1) evaluations.
template <SlqEvaluate Evaluate>
SlqTable one_at_a_time_sensitivities(Evaluate&& evaluate, index_t groups, const std::vector<int>& options) {
  SlqTable table = detail::new_table(evaluate, groups, options, "quant::one_at_a_time_sensitivities");
  std::vector<int> bits(static_cast<std::size_t>(groups), options.back());
  for (index_t m = 0; m < groups; ++m) {
    for (std::size_t o = 0; o + 1 < options.size(); ++o) {
      bits[static_cast<std::size_t>(m)] = options[o];
      const Fidelity f = evaluate(View<const int, 1>(bits));
      ++table.evaluations;
      table.kl[table.at(m, o)] = f.kl - table.widest.kl;
      table.miss[table.at(m, o)] = table.widest.ear - f.ear;
    }
    bits[static_cast<std::size_t>(m)] = options.back();
  }
  return table;
}

/// alpha_m e_m(b): errors [groups, options] are the groups' relative squared errors |W - Wq|^2 / |W|^2 (mean over the
/// group's matrices), and noise(m, e) measures the model with Gaussian noise of the relative square e in group m alone,
/// for every e in levels. alpha_m is the slope of least squares through 0 [ours]. 1 + groups * levels evaluations.
template <SlqEvaluate Evaluate, class Noise>
  requires requires(Noise& noise) {
    { noise(index_t{}, 0.0) } -> std::convertible_to<Fidelity>;
  }
SlqTable linear_sensitivities(Evaluate&& evaluate, Noise&& noise, View<const double, 2> errors,
                              View<const double, 1> levels, const std::vector<int>& options) {
  constexpr const char* where = "quant::linear_sensitivities";
  require_equal(errors.extent(1), static_cast<index_t>(options.size()), where, "errors");
  double squares = 0;
  for (index_t t = 0; t < levels.extent(0); ++t) {
    require(levels[t] >= 0, where, "levels", "relative squared errors of at least 0", levels[t]);
    squares += levels[t] * levels[t];
  }
  require(squares > 0, where, "levels", "a level above 0", squares);
  SlqTable table = detail::new_table(evaluate, errors.extent(0), options, where);
  for (index_t m = 0; m < table.groups; ++m) {
    double kl = 0;
    double miss = 0;
    for (index_t t = 0; t < levels.extent(0); ++t) {
      const Fidelity f = noise(m, levels[t]);
      ++table.evaluations;
      kl += levels[t] * f.kl;
      miss += levels[t] * (1 - f.ear);
    }
    for (std::size_t o = 0; o < options.size(); ++o) {
      const double error = errors(m, static_cast<index_t>(o));
      table.kl[table.at(m, o)] = kl / squares * error;
      table.miss[table.at(m, o)] = miss / squares * error;
    }
  }
  return table;
}

}  // namespace decant::quant

#endif
