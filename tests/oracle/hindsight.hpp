#pragma once
// The hindsight optimum of serving with growing memory, by exact branch and bound: unit steps, a request starts once at
// k >= arrival, holds s + (t - k) tokens at t = k + 1 .. k + o and is done at k + o; never more than M are held. The least
// sum of (end - arrival). For half a dozen requests, 8 at most.
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace oracle {

struct HindsightRequest {
  std::int64_t arrival = 0, prompt = 1, output = 1;
};

class Hindsight {
 public:
  Hindsight(std::vector<HindsightRequest> requests, std::int64_t memory)
      : requests_(std::move(requests)), memory_(memory) {
    std::sort(requests_.begin(), requests_.end(),
              [](const auto& a, const auto& b) { return a.output != b.output ? a.output < b.output : a.prompt < b.prompt; });
    std::int64_t horizon = 1;
    for (const auto& r : requests_) horizon = std::max(horizon, r.arrival);
    for (const auto& r : requests_) horizon += r.output + 1;
    held_.assign(static_cast<std::size_t>(horizon) + 2, 0);
  }

  /// The optimum, if it is below `bound`; else `bound`, the sum of a schedule that is known.
  std::int64_t latency(std::int64_t bound) {
    best_ = bound;
    for (const auto& r : requests_) best_ += r.arrival;
    const std::int64_t arrivals = best_ - bound;
    started_.assign(requests_.size(), false);
    Soonest soonest{};
    for (std::size_t i = 0; i < requests_.size(); ++i) soonest[i] = requests_[i].arrival;
    search(0, 0, 0, soonest);
    return best_ - arrivals;
  }

 private:
  static constexpr std::int64_t far = INT64_MAX / 4;
  // When each request could start at the soonest beside those that have started; they only move later.
  using Soonest = std::array<std::int64_t, 8>;

  // Starts of requests are decided in the order of time, those of one instant in the order of the list.
  void search(std::int64_t now, std::size_t first, std::int64_t ends, Soonest soonest) {
    std::size_t left = 0, last = 0;
    std::int64_t next = far, after = far;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (started_[i]) continue;
      ++left;
      last = i;
      soonest[i] = soonest_start(requests_[i], std::max(soonest[i], now + (i < first ? 1 : 0)));
      next = std::min(next, soonest[i]);
    }
    if (left <= 1) {  // nothing is gained by holding back the last one
      best_ = std::min(best_, left == 0 ? ends : ends + soonest[last] + requests_[last].output);
      return;
    }
    if (next > now) now = next;
    if (ends + rest(now, soonest) >= best_) return;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (started_[i]) continue;
      const HindsightRequest& r = requests_[i];
      if (soonest[i] > now) {
        after = std::min(after, soonest[i]);
        continue;
      }
      after = now + 1;
      if (static_cast<std::size_t>(now + r.output) >= held_.size()) return;  // all could have run one after another
      add(r, now, 1);
      started_[i] = true;
      search(now, i + 1, ends + now + r.output, soonest);
      started_[i] = false;
      add(r, now, -1);
    }
    search(after, 0, ends, soonest);
  }

  std::int64_t held(std::int64_t t) const {
    return static_cast<std::size_t>(t) < held_.size() ? held_[static_cast<std::size_t>(t)] : 0;
  }

  std::int64_t soonest_start(const HindsightRequest& r, std::int64_t start) const {
    for (std::int64_t t = start + r.output; t > start; --t) {
      const std::int64_t excess = held(t) + r.prompt + t - start - memory_;
      if (excess > 0) return soonest_start(r, std::min(t, start + excess));
    }
    return start;
  }

  void add(const HindsightRequest& r, std::int64_t start, std::int64_t sign) {
    for (std::int64_t j = 1; j <= r.output; ++j) held_[static_cast<std::size_t>(start + j)] += sign * (r.prompt + j);
  }

  /// Into an ascending list of n. (g++ 12 warns of std::sort on so short an array.)
  static void insert(std::int64_t* list, std::size_t n, std::int64_t value) {
    for (; n > 0 && list[n - 1] > value; --n) list[n] = list[n - 1];
    list[n] = value;
  }

  // No schedule of the others ends sooner in sum: the k-th to end cannot end before k of them have had their steps, nor
  // before the k smallest of their areas (tokens times steps) fit in the memory that is left free.
  std::int64_t rest(std::int64_t now, const Soonest& soonest) const {
    std::int64_t ends[8], areas[8];
    std::size_t n = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (started_[i]) continue;
      const HindsightRequest& r = requests_[i];
      insert(ends, n, std::max(soonest[i], now) + r.output);
      insert(areas, n++, r.prompt * r.output + r.output * (r.output + 1) / 2);
    }
    std::int64_t sum = 0, area = 0, free = 0, t = now;
    for (std::size_t k = 0; k < n; ++k) {
      area += areas[k];
      while (free < area) {
        ++t;
        free += memory_ - held(t);
      }
      sum += std::max(ends[k], t);
    }
    return sum;
  }

  std::vector<HindsightRequest> requests_;
  std::int64_t memory_;
  std::vector<std::int64_t> held_;  // tokens at every instant
  std::vector<bool> started_;
  std::int64_t best_ = 0;
};

}  // namespace oracle
