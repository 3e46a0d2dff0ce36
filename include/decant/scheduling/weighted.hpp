// decant: Wsf, weighted shortest first, and BidPrice, admission by a price of memory. Smith's rule with tokens x steps,
// the resource that is short, in the place of processing time; and what airlines do: a request is taken if its worth is
// at least the price of what it uses, the price being the dual of the budget. Both ours; the second takes the analogy of
// a position paper (arXiv 2605.01280) at its word.
#ifndef DECANT_SCHEDULING_WEIGHTED_HPP
#define DECANT_SCHEDULING_WEIGHTED_HPP

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory_safe.hpp"

namespace decant::scheduling {

/// Tokens that a request will hold, summed over the steps that it is expected to stay.
constexpr std::uint64_t remaining_area(const RequestState& r) {
  const std::uint64_t steps = r.remaining();
  return steps * (std::uint64_t{r.info.prompt} + r.generated) + steps * (steps - 1) / 2;
}

/// Area per worth, the least first, in 2^-16 of a token; one worth nothing comes last.
struct AreaPerWeight {
  bool operator==(const AreaPerWeight&) const = default;

  template <class Memory>
  std::int64_t operator()(const Batch<Memory>& batch, RequestId id) const {
    const RequestState& r = batch[id];
    if (r.info.weight == 0) return INT64_MAX;
    constexpr std::uint64_t most = std::uint64_t{INT64_MAX} >> 16;
    return static_cast<std::int64_t>(((std::min)(most, remaining_area(r)) << 16) / r.info.weight);
  }
};

using Wsf = Continuous<ByKey<AreaPerWeight>, MemorySafe>;
static_assert(Scheduler<Wsf>);

/// What a request is worth and uses.
struct Offer {
  std::uint64_t weight = 1, area = 1;
  bool operator==(const Offer&) const = default;
};

/// pi as a fraction: `weight` per `area`; 0 / 1: everything is taken.
class BidPrice {
 public:
  BidPrice() = default;

  /// The dual of: most weight, areas within `budget` (memory x steps), fractions allowed: weight / area of the offer at
  /// which the order by it exhausts the budget. O(n log n). ArgumentError: an area of 0.
  static BidPrice of(std::vector<Offer> recent, std::uint64_t budget) {
    for (const Offer& o : recent) {
      require(o.area > 0, "scheduling::BidPrice::of", "recent.area", "at least 1", o.area);
    }
    std::stable_sort(recent.begin(), recent.end(), [](const Offer& a, const Offer& b) { return denser(a, b); });
    BidPrice price;
    for (const Offer& o : recent) {
      if (o.area > budget) {
        price.critical_ = o;
        break;
      }
      budget -= o.area;
    }
    return price;
  }

  /// O(1).
  bool accepts(const Offer& offer) const { return !denser(critical_, offer); }
  bool accepts(const RequestState& r) const { return accepts(Offer{r.info.weight, remaining_area(r)}); }
  double value() const { return static_cast<double>(critical_.weight) / static_cast<double>(critical_.area); }

 private:
  __extension__ typedef unsigned __int128 Wide;
  static bool denser(const Offer& a, const Offer& b) { return Wide{a.weight} * b.area > Wide{b.weight} * a.area; }

  Offer critical_{0, 1};
};

}  // namespace decant::scheduling

#endif
