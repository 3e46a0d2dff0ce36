// decant: BfIo, which of several data-parallel workers behind a barrier a request is placed on (BF-IO, arXiv 2601.17855):
// all wait for the one with the most tokens, a request once placed never moves, so the waiting requests are put on the
// free slots such that sum over the next h = 0 .. H steps of (G max L - sum L) is least. Of the future only which running
// requests end within H steps is needed. The paper solves an integer program; ours: largest prompt first to the least
// loaded worker, then exchanges while they help. Host code, no allocation once its arrays have grown.
#ifndef DECANT_SCHEDULING_BF_IO_HPP
#define DECANT_SCHEDULING_BF_IO_HPP

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "linear_cost.hpp"

namespace decant::scheduling {

/// A step of all workers: a constant, and so much per token of the most loaded one; the constants of the paper's
/// simulator.
struct BarrierCost {
  LinearCost cost{9'775'000, 100'500};
  bool operator==(const BarrierCost&) const = default;

  Nanoseconds step_ns(View<const std::uint64_t, 1> loads) const {
    std::uint64_t most = 0;
    for (index_t g = 0; g < loads.extent(0); ++g) most = (std::max)(most, loads[g]);
    return cost.of_tokens(most);
  }
};

struct BfIoOptions {
  std::uint32_t horizon = 0;    ///< H
  std::uint32_t exchanges = 64;  ///< at most; 0: greedy alone
  bool operator==(const BfIoOptions&) const = default;
};

/// Each step: begin(), then what is known of every worker, then assign().
class BfIo {
 public:
  static constexpr std::uint32_t nowhere = 0xffffffffu;
  static constexpr std::uint32_t beyond = 0xffffffffu;

  explicit BfIo(const BfIoOptions& options = {}) : options_(options) {}

  void begin(std::uint32_t workers) {
    workers_ = workers;
    free_.assign(workers, 0);
    loads_.assign(std::size_t{workers} * width(), 0);
  }
  void slots(std::uint32_t worker, std::uint32_t free) { free_[worker] = free; }
  /// A running request: the tokens that it holds in the step to come, and in how many steps it is gone, if within the
  /// horizon.
  void resident(std::uint32_t worker, std::uint64_t tokens, std::uint32_t gone_in = beyond) {
    for (std::uint32_t h = 0; h < width() && h < gone_in; ++h) loads_[at(worker, h)] += tokens + h;
  }

  /// The worker of each of `prompts` (tokens, in the order of waiting); those beyond the free slots: nowhere. Valid until
  /// the next call. O(n (log n + G) + exchanges n^2 H / G) or so.
  View<const std::uint32_t, 1> assign(View<const std::uint32_t, 1> prompts) {
    std::uint64_t room = 0;
    for (const std::uint32_t f : free_) room += f;
    const auto n = static_cast<std::size_t>((std::min)(room, static_cast<std::uint64_t>(prompts.extent(0))));
    worker_.assign(static_cast<std::size_t>(prompts.extent(0)), nowhere);
    order_.clear();
    for (std::uint32_t i = 0; i < n; ++i) order_.push_back(i);
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return prompts[a] != prompts[b] ? prompts[a] > prompts[b] : a < b;
    });
    for (const std::uint32_t i : order_) {
      std::uint32_t best = nowhere;
      std::uint64_t least = 0;
      for (std::uint32_t g = 0; g < workers_; ++g) {
        if (free_[g] == 0) continue;
        std::uint64_t load = 0;
        for (std::uint32_t h = 0; h < width(); ++h) load += loads_[at(g, h)];
        if (best != nowhere && load >= least) continue;
        best = g;
        least = load;
      }
      worker_[i] = best;
      --free_[best];
      for (std::uint32_t h = 0; h < width(); ++h) loads_[at(best, h)] += prompts[i] + h;
    }
    for (std::uint32_t e = 0; e < options_.exchanges && exchange(prompts, n); ++e) {
    }
    return {worker_.data(), static_cast<index_t>(worker_.size())};
  }

  /// Of the assignment: sum over the horizon of the largest load; G times it less the sum of all is the imbalance.
  std::uint64_t peak() const {
    std::uint64_t sum = 0;
    for (std::uint32_t h = 0; h < width(); ++h) {
      std::uint64_t most = 0;
      for (std::uint32_t g = 0; g < workers_; ++g) most = (std::max)(most, loads_[at(g, h)]);
      sum += most;
    }
    return sum;
  }

 private:
  std::uint32_t width() const { return options_.horizon + 1; }
  std::size_t at(std::uint32_t worker, std::uint32_t h) const { return std::size_t{worker} * width() + h; }

  // The three most loaded workers of each step ahead: two of them may be those that exchange.
  struct Top {
    std::uint32_t worker[3];
  };

  // The best exchange of a request on a worker that is the largest at some time, for one elsewhere or a free slot.
  bool exchange(View<const std::uint32_t, 1> prompts, std::size_t n) {
    tops_.clear();
    peaks_.assign(workers_, false);
    std::uint64_t now = 0;
    for (std::uint32_t h = 0; h < width(); ++h) {
      Top top{{nowhere, nowhere, nowhere}};
      for (std::uint32_t g = 0; g < workers_; ++g) {
        std::uint32_t candidate = g;
        for (std::uint32_t& place : top.worker) {
          if (place == nowhere || loads_[at(candidate, h)] > loads_[at(place, h)]) std::swap(place, candidate);
          if (candidate == nowhere) break;
        }
      }
      tops_.push_back(top);
      peaks_[top.worker[0]] = true;
      now += loads_[at(top.worker[0], h)];
    }
    std::uint64_t best = now;
    std::size_t from = n, with = n;
    std::uint32_t to = nowhere;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t a = worker_[i];
      if (!peaks_[a]) continue;
      const auto size = static_cast<std::int64_t>(prompts[static_cast<index_t>(i)]);
      for (std::size_t j = 0; j < n; ++j) {
        const std::uint32_t b = worker_[j];
        const auto other = static_cast<std::int64_t>(prompts[static_cast<index_t>(j)]);
        if (b == a || other >= size) continue;
        const std::uint64_t after = peak_after(a, b, size - other, 0);
        if (after >= best) continue;
        best = after;
        from = i;
        with = j;
        to = b;
      }
      for (std::uint32_t b = 0; b < workers_; ++b) {
        if (b == a || free_[b] == 0) continue;
        const std::uint64_t after = peak_after(a, b, size, 1);
        if (after >= best) continue;
        best = after;
        from = i;
        with = n;
        to = b;
      }
    }
    if (from == n) return false;
    const std::uint32_t a = worker_[from];
    std::uint64_t tokens = prompts[static_cast<index_t>(from)];
    if (with < n) {
      tokens -= prompts[static_cast<index_t>(with)];
      worker_[with] = a;
    } else {
      ++free_[a];
      --free_[to];
    }
    worker_[from] = to;
    for (std::uint32_t h = 0; h < width(); ++h) {
      const std::uint64_t moved = tokens + (with < n ? 0 : h);
      loads_[at(a, h)] -= moved;
      loads_[at(to, h)] += moved;
    }
    return true;
  }

  std::uint64_t peak_after(std::uint32_t a, std::uint32_t b, std::int64_t tokens, std::int64_t growth) const {
    std::uint64_t sum = 0;
    for (std::uint32_t h = 0; h < width(); ++h) {
      const auto moved = static_cast<std::uint64_t>(tokens + growth * h);
      std::uint64_t most = (std::max)(loads_[at(a, h)] - moved, loads_[at(b, h)] + moved);
      for (const std::uint32_t g : tops_[h].worker) {
        if (g != a && g != b && g != nowhere) most = (std::max)(most, loads_[at(g, h)]);
      }
      sum += most;
    }
    return sum;
  }

  BfIoOptions options_{};
  std::uint32_t workers_ = 0;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint64_t> loads_;  // [worker][step ahead]
  std::vector<std::uint32_t> worker_, order_;
  std::vector<Top> tops_;
  std::vector<bool> peaks_;
};

}  // namespace decant::scheduling

#endif
