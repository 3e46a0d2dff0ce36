// decant: the multiple-choice knapsack, the allocator of every budget over layers: item m takes one of its options o,
// with a cost c(m, o) (bytes, bits, FLOPs) and a loss d(m, o). Least loss within a budget, or least cost within a loss.
// Two ways: the lower convex hulls of the items, edges taken by slope (Sinha and Zoltners, Operations Research 27,
// 1979), and dynamic programming over costs, which is exact where costs are whole numbers. Host code, in double.
#ifndef DECANT_QUANT_KNAPSACK_HPP
#define DECANT_QUANT_KNAPSACK_HPP

#include <cstdint>
#include <string>

#include "../core/cpu.hpp"
#include "../core/view.hpp"

namespace decant::quant {

/// No choice keeps to the budget. least() is the smallest one with a choice.
class InfeasibleError : public ArgumentError {
 public:
  InfeasibleError(const std::string& what, double least) : ArgumentError(what), least_(least) {}
  double least() const { return least_; }

 private:
  double least_;
};

/// cost, loss [items, options], at least 0. An option of infinite cost does not exist; every item has one that does. At
/// most 256 options.
struct Knapsack {
  View<const double, 2> cost;
  View<const double, 2> loss;
};

enum class KnapsackMethod : std::uint8_t {
  /// Edges of the hulls in the order of slope until one does not fit. Optimal for the cost (or loss) that it ends at; a
  /// larger budget never gives a larger loss.
  hull,
  /// Then, for least_loss, every later edge that still fits. Off the optimum by less than one edge's loss (or cost).
  filled_hull,
  /// Dynamic programming. The optimum, where costs are whole numbers whose range, in units of their common divisor, is
  /// at most 2^20 (and 2^28 over the number of items); otherwise costs, less the item's cheapest, are rounded up to a
  /// 65536th of the range, so that the budget is kept. A larger budget then may, by rounding, give a larger loss.
  exact,
};

struct KnapsackTotals {
  double cost = 0;
  double loss = 0;
  bool operator==(const KnapsackTotals&) const = default;
};

namespace detail {

inline void require_knapsack(const Knapsack& k, const View<std::int32_t, 1>& choice, const char* where) {
  const index_t options = k.cost.extent(1);
  require_equal(k.loss.extent(0), k.cost.extent(0), where, "loss");
  require_equal(k.loss.extent(1), options, where, "loss");
  require_equal(choice.extent(0), k.cost.extent(0), where, "choice");
  require(options <= 256, where, "cost", "at most 256 options", options);
  for (index_t m = 0; m < k.cost.extent(0); ++m) {
    bool any = false;
    for (index_t o = 0; o < options; ++o) {
      const double cost = k.cost(m, o);
      require(cost >= 0, where, "cost", "costs of at least 0", cost);
      if (cost > 1.7976931348623157e308) continue;
      any = true;
      const double loss = k.loss(m, o);
      require(loss >= 0 && loss <= 1.7976931348623157e308, where, "loss", "finite losses of at least 0", loss);
    }
    require(any, where, "cost", "an option for every item", [&] { return "none for item " + std::to_string(m); });
  }
}

inline bool exists(const Knapsack& k, index_t m, index_t o) { return k.cost(m, o) <= 1.7976931348623157e308; }

/// The option of least cost, or of least loss; of several the one that is best in the other, then the first.
inline index_t least_option(const View<const double, 2>& first, const View<const double, 2>& second, const Knapsack& k,
                            index_t m) {
  index_t best = -1;
  for (index_t o = 0; o < k.cost.extent(1); ++o) {
    if (!exists(k, m, o)) continue;
    if (best < 0 || first(m, o) < first(m, best) || (first(m, o) == first(m, best) && second(m, o) < second(m, best)))
      best = o;
  }
  return best;
}

/// Always added in the order of items, so that equal choices have equal totals.
inline KnapsackTotals totals(const Knapsack& k, const View<std::int32_t, 1>& choice) {
  KnapsackTotals t;
  for (index_t m = 0; m < choice.extent(0); ++m) {
    t.cost += k.cost(m, choice[m]);
    t.loss += k.loss(m, choice[m]);
  }
  return t;
}

/// Chooses every item's cheapest option (or that of least loss), and raises InfeasibleError where that is too much.
inline void require_feasible(const Knapsack& k, bool by_cost, double most, const View<std::int32_t, 1>& choice,
                             const char* where, const char* argument) {
  require(most == most, where, argument, "a number", most);
  for (index_t m = 0; m < choice.extent(0); ++m)
    choice[m] = static_cast<std::int32_t>(by_cost ? least_option(k.cost, k.loss, k, m)
                                                  : least_option(k.loss, k.cost, k, m));
  const KnapsackTotals t = totals(k, choice);
  const double least = by_cost ? t.cost : t.loss;
  if (least > most) {
    using ::decant::detail::to_text;
    DECANT_THROW(InfeasibleError(
        ::decant::detail::describe(where, argument, "at least " + to_text(least), to_text(most)), least));
  }
}

/// An item's options on its lower convex hull, cheapest first, to hull[0 ...]; how many.
inline index_t lower_hull(const Knapsack& k, index_t m, std::int32_t* hull) {
  const auto cost = [&](std::int32_t o) { return k.cost(m, o); };
  const auto loss = [&](std::int32_t o) { return k.loss(m, o); };
  index_t count = 0;
  auto next = static_cast<std::int32_t>(least_option(k.cost, k.loss, k, m));
  while (next >= 0) {
    hull[count++] = next;
    // The steepest way down from here; of several the nearest, so that no stop is left out.
    const std::int32_t at = next;
    next = -1;
    double steepest = 0;
    for (std::int32_t o = 0; o < static_cast<std::int32_t>(k.cost.extent(1)); ++o) {
      if (!exists(k, m, o) || !(cost(o) > cost(at)) || !(loss(o) < loss(at))) continue;
      const double slope = (loss(at) - loss(o)) / (cost(o) - cost(at));
      if (slope > steepest || (slope == steepest && next >= 0 && cost(o) < cost(next))) {
        steepest = slope;
        next = o;
      }
    }
  }
  return count;
}

/// Items by the slope of the next edge of their hulls, the steepest on top; then the lower item. A binary heap.
struct KnapsackHeap {
  struct Edge {
    double slope;
    std::int32_t item;
  };
  Edge* edges;
  index_t count = 0;

  static bool before(const Edge& a, const Edge& b) {
    return a.slope > b.slope || (a.slope == b.slope && a.item < b.item);
  }
  void push(const Edge& e) {
    index_t i = count++;
    for (; i > 0 && before(e, edges[(i - 1) / 2]); i = (i - 1) / 2) edges[i] = edges[(i - 1) / 2];
    edges[i] = e;
  }
  Edge pop() {
    const Edge top = edges[0];
    const Edge last = edges[--count];
    index_t i = 0;
    for (index_t child = 1; child < count; child = 2 * i + 1) {
      if (child + 1 < count && before(edges[child + 1], edges[child])) ++child;
      if (!before(edges[child], last)) break;
      edges[i] = edges[child];
      i = child;
    }
    if (count > 0) edges[i] = last;
    return top;
  }
};

/// From the cheapest options along the hulls. by_cost: while the cost stays within `most`; else until the loss does.
inline void choose_by_hull(Workspace& workspace, const Knapsack& k, bool by_cost, bool fill, double most,
                           const View<std::int32_t, 1>& choice) {
  const index_t items = choice.extent(0);
  const index_t options = k.cost.extent(1);
  std::int32_t* const hull = workspace.take<std::int32_t>(items * options);
  index_t* const length = workspace.take<index_t>(items);
  index_t* const at = workspace.take<index_t>(items);
  KnapsackHeap heap{workspace.take<KnapsackHeap::Edge>(items)};
  const auto push = [&](index_t m) {
    if (at[m] + 1 == length[m]) return;
    const std::int32_t* const o = hull + m * options + at[m];
    const double slope = (k.loss(m, o[0]) - k.loss(m, o[1])) / (k.cost(m, o[1]) - k.cost(m, o[0]));
    heap.push({slope, static_cast<std::int32_t>(m)});
  };
  for (index_t m = 0; m < items; ++m) {
    length[m] = lower_hull(k, m, hull + m * options);
    at[m] = 0;
    choice[m] = hull[m * options];
    push(m);
  }
  // Running sums say where to look; near the limit the totals decide.
  KnapsackTotals now = totals(k, choice);
  const double near = 1e-9 * (by_cost ? most : now.loss);
  while (heap.count > 0) {
    if (!by_cost && now.loss <= most + near && totals(k, choice).loss <= most) return;
    const index_t m = heap.pop().item;
    const std::int32_t from = hull[m * options + at[m]];
    const std::int32_t to = hull[m * options + at[m] + 1];
    KnapsackTotals then = now;
    then.cost += k.cost(m, to) - k.cost(m, from);
    then.loss += k.loss(m, to) - k.loss(m, from);
    choice[m] = to;
    if (by_cost && then.cost > most - near && totals(k, choice).cost > most) {
      choice[m] = from;
      if (!fill) return;
      continue;  // nor will it fit later
    }
    now = then;
    ++at[m];
    push(m);
  }
}

/// The common divisor of the costs beyond each item's cheapest; 0 when one is not whole, or all are 0.
inline double common_unit(const Knapsack& k) {
  std::uint64_t unit = 0;
  for (index_t m = 0; m < k.cost.extent(0); ++m) {
    const double least = k.cost(m, least_option(k.cost, k.loss, k, m));
    for (index_t o = 0; o < k.cost.extent(1); ++o) {
      if (!exists(k, m, o)) continue;
      const double cost = k.cost(m, o);
      if (cost >= 0x1p53 || cost != static_cast<double>(static_cast<std::uint64_t>(cost))) return 0;
      if (least != static_cast<double>(static_cast<std::uint64_t>(least))) return 0;
      std::uint64_t a = static_cast<std::uint64_t>(cost - least);
      while (a != 0) {
        const std::uint64_t rest = unit % a;
        unit = a;
        a = rest;
      }
    }
  }
  return static_cast<double>(unit);
}

/// best[s] is the least loss of the first items at s units above the cheapest choice; the choice of each item and s is
/// kept. by_cost: the least loss within `most` of cost; else the least cost with a loss within it.
inline void choose_by_cost(Workspace& workspace, const Knapsack& k, bool by_cost, double most,
                           const View<std::int32_t, 1>& choice) {
  const index_t items = choice.extent(0);
  const index_t options = k.cost.extent(1);
  double* const least = workspace.take<double>(items);
  double base = 0;
  double useful = 0;  // beyond this, cost buys nothing
  for (index_t m = 0; m < items; ++m) {
    least[m] = k.cost(m, least_option(k.cost, k.loss, k, m));
    base += least[m];
    useful += k.cost(m, least_option(k.loss, k.cost, k, m)) - least[m];
  }
  const double range = by_cost && most - base < useful ? (most > base ? most - base : 0.0) : useful;
  double unit = common_unit(k);
  const double states_most = items * (index_t{1} << 20) > index_t{1} << 28
                                 ? static_cast<double>((index_t{1} << 28) / items)
                                 : static_cast<double>(1 << 20);
  const bool whole = unit > 0 && range / unit <= states_most;
  if (!whole) unit = range > 0 ? range / 65536 : 1;
  // Rounded up, the choice of least loss may take a unit more per item, where the budget has it.
  const double room = whole ? range : range + static_cast<double>(items) * unit;
  const double limit = !by_cost || most - base > room ? room : most > base ? most - base : 0.0;
  const index_t states = static_cast<index_t>(limit / unit) + 1;
  double* best = workspace.take<double>(states);
  double* next = workspace.take<double>(states);
  std::uint8_t* const from = workspace.take<std::uint8_t>(items * states);
  const auto units = [&](index_t m, index_t o) {
    const double above = (k.cost(m, o) - least[m]) / unit;
    if (!(above < static_cast<double>(states))) return states;
    const auto floor = static_cast<index_t>(above);
    return static_cast<double>(floor) < above ? floor + 1 : floor;
  };
  for (index_t s = 0; s < states; ++s) best[s] = 0;
  for (index_t m = 0; m < items; ++m) {
    std::uint8_t* const by = from + m * states;
    for (index_t s = 0; s < states; ++s) {
      next[s] = __builtin_huge_val();
      by[s] = 0;
    }
    for (index_t o = 0; o < options; ++o) {
      if (!exists(k, m, o)) continue;
      const index_t step = units(m, o);
      const double loss = k.loss(m, o);
      for (index_t s = step; s < states; ++s) {
        const double with = best[s - step] + loss;
        const bool better = with < next[s];
        next[s] = better ? with : next[s];
        by[s] = better ? static_cast<std::uint8_t>(o) : by[s];
      }
    }
    double* const swap = best;
    best = next;
    next = swap;
  }
  // best falls with s: the first that is good enough is the cheapest.
  index_t s = 0;
  const double enough = by_cost ? best[states - 1] : most;
  while (s + 1 < states && best[s] > enough) ++s;
  for (index_t m = items - 1; m >= 0; --m) {
    choice[m] = from[m * states + s];
    s -= units(m, choice[m]);
  }
}

}  // namespace detail

/// The choice of least loss whose cost is at most `budget`: choice [items]; its totals. Of equally good ones, by the
/// exact method, the cheapest. InfeasibleError when the cheapest options together cost more; no items: an empty choice,
/// cost 0. O(items * options^2 + edges * log items); exact: O(items * options * states), scratch items * states bytes.
inline KnapsackTotals least_loss(Cpu& cpu, const Knapsack& k, double budget, View<std::int32_t, 1> choice,
                                 KnapsackMethod method = KnapsackMethod::filled_hull) {
  constexpr const char* where = "quant::least_loss";
  detail::require_knapsack(k, choice, where);
  detail::require_feasible(k, true, budget, choice, where, "budget");
  Workspace::Scope scope(cpu.workspace());
  if (method == KnapsackMethod::exact) {
    detail::choose_by_cost(cpu.workspace(), k, true, budget, choice);
  } else {
    detail::choose_by_hull(cpu.workspace(), k, true, method == KnapsackMethod::filled_hull, budget, choice);
  }
  return detail::totals(k, choice);
}

/// The choice of least cost whose loss is at most `most`. Of equally cheap ones, by the exact method, that of least
/// loss. InfeasibleError when the least losses together are more. The rest as above.
inline KnapsackTotals least_cost(Cpu& cpu, const Knapsack& k, double most, View<std::int32_t, 1> choice,
                                 KnapsackMethod method = KnapsackMethod::filled_hull) {
  constexpr const char* where = "quant::least_cost";
  detail::require_knapsack(k, choice, where);
  detail::require_feasible(k, false, most, choice, where, "most");
  Workspace::Scope scope(cpu.workspace());
  if (method == KnapsackMethod::exact) {
    detail::choose_by_cost(cpu.workspace(), k, false, most, choice);
  } else {
    detail::choose_by_hull(cpu.workspace(), k, false, false, most, choice);
  }
  return detail::totals(k, choice);
}

}  // namespace decant::quant

#endif
