// decant: SLQ's two searches (arXiv 2605.02404, section 3.3, algorithm 2): the fewest bits whose EAR meets a target
// (distribution-lossless), and the fewest whose KL, through a line measured at one point, promises a share of the
// tasks' scores (task-lossless). Both look for the cheapest choice within a predicted loss with the exact knapsack,
// where the paper bisects the budget of one of least loss: the same allocation, less the bisection's tolerance.
#ifndef DECANT_QUANT_SLQ_SEARCH_HPP
#define DECANT_QUANT_SLQ_SEARCH_HPP

#include <cmath>
#include <concepts>

#include "knapsack.hpp"
#include "slq_sensitivity.hpp"

namespace decant::quant {

struct SlqSearch {
  std::vector<int> options{2, 3, 4, 5, 6, 7, 8};
  int permutations = 8;    ///< of Shapley values
  std::uint64_t seed = 0;
  bool monotone = true;    ///< [ours] see make_monotone; the paper does not
  bool anchored = true;    ///< [ours] see predict; false: the paper's
  int checks = 8;          ///< [ours] most results that are measured; 0: none, the paper
  SlqStorage storage;
  bool operator==(const SlqSearch&) const = default;
};

struct SlqResult {
  std::vector<int> bits;       ///< of each group
  double average_bits = 0;     ///< over parameters, scales and zero points not counted
  double bits_per_weight = 0;  ///< of all that is stored, by search.storage.accounting
  Fidelity predicted;
  Fidelity measured;           ///< where `evaluations` is above 0
  index_t evaluations = 0;
  bool met = false;            ///< the target: as measured, or as predicted where nothing was
};

/// Shapley values as the search says.
template <SlqEvaluate Evaluate>
SlqTable shapley_sensitivities(const SlqSearch& search, Evaluate&& evaluate, index_t groups) {
  SlqTable table = shapley_sensitivities(evaluate, groups, search.options, search.permutations, search.seed);
  if (search.monotone) make_monotone(table);
  return table;
}

enum class SlqMetric : std::uint8_t { ear, kl };

namespace detail {

/// The knapsack over a table: costs in bits, losses from the widest width on.
struct SlqKnapsack {
  index_t groups;
  std::vector<double> cost;
  std::vector<double> loss;
  Knapsack view() const {
    const auto options = static_cast<index_t>(cost.size()) / groups;
    return {View<const double, 2>(cost.data(), groups, options), View<const double, 2>(loss.data(), groups, options)};
  }
};

/// The paper's extra bits per weight are the same at every width, and are left out: costs stay whole numbers.
inline double search_cost(const SlqSearch& search, const SlqGroup& g, int bits) {
  return search.storage.accounting == SlqAccounting::stored ? stored_bits(g, bits, search.storage)
                                                            : g.parameters() * bits;
}

inline SlqKnapsack slq_knapsack(const SlqSearch& search, const SlqTable& table, const View<const SlqGroup, 1>& groups,
                                SlqMetric metric, const char* where) {
  require_equal(groups.extent(0), table.groups, where, "groups");
  require(table.options == search.options, where, "table", "the search's options", "others");
  const std::vector<double>& values = metric == SlqMetric::kl ? table.kl : table.miss;
  SlqKnapsack k{table.groups, {}, {}};
  for (index_t m = 0; m < table.groups; ++m) {
    require(groups[m].rows >= 1 && groups[m].cols >= 1, where, "groups", "matrices with weights",
            [&] { return "none in group " + std::to_string(m); });
    const double widest = values[table.at(m, search.options.size() - 1)];
    for (std::size_t o = 0; o < search.options.size(); ++o) {
      k.cost.push_back(search_cost(search, groups[m], search.options[o]));
      const double loss = values[table.at(m, o)] - widest;
      k.loss.push_back(loss > 0 ? loss : 0);  // what is not monotone may be below
    }
  }
  return k;
}

inline SlqResult slq_result(const SlqSearch& search, const SlqTable& table, const View<const SlqGroup, 1>& groups,
                            const std::vector<std::int32_t>& choice) {
  SlqResult r;
  double parameters = 0;
  for (index_t m = 0; m < table.groups; ++m) {
    const int bits = search.options[static_cast<std::size_t>(choice[static_cast<std::size_t>(m)])];
    r.bits.push_back(bits);
    r.average_bits += groups[m].parameters() * bits;
    r.bits_per_weight += stored_bits(groups[m], bits, search.storage);
    parameters += groups[m].parameters();
  }
  r.average_bits /= parameters;
  r.bits_per_weight /= parameters;
  r.predicted = predict(table, r.bits, search.anchored);
  return r;
}

/// What the table foretells at the widest width.
inline Fidelity predict_widest(const SlqSearch& search, const SlqTable& table) {
  const std::vector<int> bits(static_cast<std::size_t>(table.groups), search.options.back());
  return predict(table, View<const int, 1>(bits), search.anchored);
}

}  // namespace detail

/// The allocation of least predicted loss no larger than all groups at `bits`, 2 to 8 (an option or not).
/// InfeasibleError when the narrowest option is wider.
inline SlqResult allocate_bits(Cpu& cpu, const SlqSearch& search, const SlqTable& table, View<const SlqGroup, 1> groups,
                               int bits, SlqMetric metric) {
  constexpr const char* where = "quant::allocate_bits";
  const detail::SlqKnapsack k = detail::slq_knapsack(search, table, groups, metric, where);
  double budget = 0;
  for (index_t m = 0; m < table.groups; ++m) {
    require(bits >= 2 && bits <= 8, where, "bits", "2 to 8", bits);
    budget += detail::search_cost(search, groups[m], bits);
  }
  std::vector<std::int32_t> choice(static_cast<std::size_t>(table.groups));
  least_loss(cpu, k.view(), budget, choice, KnapsackMethod::exact);
  return detail::slq_result(search, table, groups, choice);
}

/// The smallest allocation whose predicted KL or 1 - EAR is at most `most`; that of the least prediction when none is.
inline SlqResult allocate_loss(Cpu& cpu, const SlqSearch& search, const SlqTable& table, View<const SlqGroup, 1> groups,
                               double most, SlqMetric metric) {
  const detail::SlqKnapsack k = detail::slq_knapsack(search, table, groups, metric, "quant::allocate_loss");
  const Fidelity widest = detail::predict_widest(search, table);
  const double room = most - (metric == SlqMetric::kl ? widest.kl : 1 - widest.ear);
  double least = 0;
  for (index_t m = 0; m < table.groups; ++m) {
    double of_group = __builtin_huge_val();
    for (std::size_t o = 0; o < search.options.size(); ++o)
      of_group = k.loss[table.at(m, o)] < of_group ? k.loss[table.at(m, o)] : of_group;
    least += of_group;
  }
  std::vector<std::int32_t> choice(static_cast<std::size_t>(table.groups));
  least_cost(cpu, k.view(), room > least ? room : least, choice, KnapsackMethod::exact);
  SlqResult r = detail::slq_result(search, table, groups, choice);
  r.met = room >= least;
  return r;
}

/// Distribution-lossless: the fewest bits whose EAR is at least `target`. The prediction decides; then [ours] results
/// are measured, up to search.checks times. While the mean less two standard errors is below the target, the aim rises
/// by what is missing; once a result has met the target, further aims halve the gap between the last that failed and
/// the least that held, since one step up can be far too long. The smallest result that held is returned, or the last
/// one when none did. ArgumentError when not even the widest width is predicted to meet the target.
template <SlqEvaluate Evaluate>
SlqResult distribution_lossless(Cpu& cpu, const SlqSearch& search, const SlqTable& table,
                                View<const SlqGroup, 1> groups, double target, Evaluate&& evaluate) {
  constexpr const char* where = "quant::distribution_lossless";
  require(search.checks >= 0, where, "search.checks", "at least 0", search.checks);
  const double highest = detail::predict_widest(search, table).ear;
  require(target <= highest, where, "target",
          [&] { return "at most " + ::decant::detail::to_text(highest) + ", of all groups at the widest"; }, target);
  if (search.checks == 0) {
    SlqResult r = allocate_loss(cpu, search, table, groups, 1 - target, SlqMetric::ear);
    r.met = true;
    return r;
  }
  SlqResult failed, held;
  double failed_aim = target, held_aim = highest, aim = target;
  index_t evaluations = 0;
  for (int check = 0; check < search.checks; ++check) {
    SlqResult r = allocate_loss(cpu, search, table, groups, 1 - aim, SlqMetric::ear);
    if (r.bits == failed.bits) {
      r.measured = failed.measured;
    } else if (r.bits == held.bits) {
      r.measured = held.measured;
    } else {
      r.measured = evaluate(View<const int, 1>(r.bits));
      ++evaluations;
    }
    const double lower = r.measured.ear - 2 * r.measured.standard_error;
    r.met = lower >= target;
    if (r.met) {
      held = r;
      held_aim = aim;
      if (check == 0) break;  // nothing smaller is predicted to meet it
    } else {
      failed = r;
      failed_aim = aim;
      if (aim >= highest) break;
    }
    if (held.met)
      aim = failed_aim + (held_aim - failed_aim) / 2;
    else
      aim = aim + (target - lower) < highest ? aim + (target - lower) : highest;
  }
  SlqResult& result = held.met ? held : failed;
  result.evaluations = evaluations;
  return result;
}

/// A task's score with the quantized model, in [0, 1], and with the original, in (0, 1], over so many questions.
struct TaskScore {
  double score = 0;
  double baseline = 0;
  index_t samples = 0;
};

namespace detail {

inline void require_tasks(const View<const TaskScore, 1>& tasks, const char* where) {
  require(tasks.extent(0) >= 1, where, "tasks", "at least 1", tasks.extent(0));
  for (index_t i = 0; i < tasks.extent(0); ++i) {
    require(tasks[i].baseline > 0 && tasks[i].baseline <= 1, where, "tasks", "baselines in (0, 1]", tasks[i].baseline);
    require(tasks[i].score >= 0 && tasks[i].score <= 1, where, "tasks", "scores in [0, 1]", tasks[i].score);
    require(tasks[i].samples >= 1, where, "tasks", "at least 1 question each", tasks[i].samples);
  }
}

}  // namespace detail

/// Mean of score / baseline.
inline double recovery(View<const TaskScore, 1> tasks) {
  detail::require_tasks(tasks, "quant::recovery");
  double sum = 0;
  for (index_t i = 0; i < tasks.extent(0); ++i) sum += tasks[i].score / tasks[i].baseline;
  return sum / static_cast<double>(tasks.extent(0));
}

/// [ours] No task is below its baseline by more than chance allows at 5 %: score >= a - 1.645 sqrt(a (1 - a) / n).
inline bool within_chance(View<const TaskScore, 1> tasks) {
  detail::require_tasks(tasks, "quant::within_chance");
  for (index_t i = 0; i < tasks.extent(0); ++i) {
    const double a = tasks[i].baseline;
    if (tasks[i].score < a - 1.645 * std::sqrt(a * (1 - a) / static_cast<double>(tasks[i].samples))) return false;
  }
  return true;
}

/// recovery = 1 - alpha KL (equation 4), and what a prediction must be multiplied by: rho.
struct TaskLine {
  double alpha = 0;
  double rho = 1;
  double most_kl = 0;  ///< measured KL at which recovery is the target; infinite where alpha is not above 0
};

/// From one point: its recovery, and its KL as measured and as predicted.
inline TaskLine task_line(double point_recovery, double measured_kl, double predicted_kl, double target) {
  TaskLine line;
  // Over the likeliest tokens alone KL can be slightly negative, which says nothing of the sign of alpha.
  line.alpha = (1 - point_recovery) / (measured_kl > 0 ? measured_kl : 1e-12);
  line.rho = predicted_kl > 0 ? measured_kl / predicted_kl : 1;
  line.most_kl = line.alpha > 0 ? (1 - target) / line.alpha : __builtin_huge_val();
  return line;
}

struct TaskTarget {
  double recovery = 0.99;
  int anchor_bits = 4;         ///< the average at which the line is measured
  int second_anchor_bits = 6;  ///< [ours] where it is measured again when the result's KL is off by more than twice
};

struct TaskResult : SlqResult {
  TaskLine line;
  double anchor_recovery = 0;
  double recovery = 0;  ///< of the result
  int anchors = 0;      ///< 1, or 2 when measured again
};

/// Task-lossless: the fewest bits whose KL promises target.recovery. benchmark(bits) runs the tasks and returns
/// a vector of TaskScore: once at each anchor and [ours] once at the result, whose `met` says that every task is within
/// chance of its baseline. Where the anchor loses nothing (alpha not above 0) it is the answer [ours].
template <SlqEvaluate Evaluate, class Benchmark>
  requires requires(Benchmark& benchmark, View<const int, 1> bits) {
    { benchmark(bits) } -> std::convertible_to<std::vector<TaskScore>>;
  }
TaskResult task_lossless(Cpu& cpu, const SlqSearch& search, const SlqTable& table, View<const SlqGroup, 1> groups,
                         const TaskTarget& target, Evaluate&& evaluate, Benchmark&& benchmark) {
  require(target.recovery < 1, "quant::task_lossless", "target.recovery", "below 1", target.recovery);
  TaskResult result;
  index_t evaluations = 0;
  for (const int anchor_bits : {target.anchor_bits, target.second_anchor_bits}) {
    const SlqResult anchor = allocate_bits(cpu, search, table, groups, anchor_bits, SlqMetric::kl);
    const Fidelity at_anchor = evaluate(View<const int, 1>(anchor.bits));
    const std::vector<TaskScore> anchor_tasks = benchmark(View<const int, 1>(anchor.bits));
    ++evaluations;
    result.anchor_recovery = recovery(anchor_tasks);
    result.line = task_line(result.anchor_recovery, at_anchor.kl, anchor.predicted.kl, target.recovery);
    ++result.anchors;
    if (!(result.line.alpha > 0)) {
      static_cast<SlqResult&>(result) = anchor;
      result.measured = at_anchor;
      result.recovery = result.anchor_recovery;
      result.met = within_chance(anchor_tasks);
      result.evaluations = evaluations;
      return result;
    }
    static_cast<SlqResult&>(result) =
        allocate_loss(cpu, search, table, groups, result.line.most_kl / result.line.rho, SlqMetric::kl);
    result.measured = evaluate(View<const int, 1>(result.bits));
    ++evaluations;
    const double expected = result.line.rho * result.predicted.kl;
    if (result.measured.kl <= 2 * expected && result.measured.kl >= expected / 2) break;
  }
  const std::vector<TaskScore> tasks = benchmark(View<const int, 1>(result.bits));
  result.recovery = recovery(tasks);
  result.met = within_chance(tasks);
  result.evaluations = evaluations;
  return result;
}

}  // namespace decant::quant

#endif
