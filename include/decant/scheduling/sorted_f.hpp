// decant: Sorted-F, an order for requests whose prompts differ in length (arXiv 2508.06133): again and again the batch X
// of least F(X) = sum of outputs / |X|^2 among those that fit in memory together, each in ascending order of output. By
// length alone a few short answers to huge prompts hold up everybody; this is within a factor 48 of the best order.
// F and the loop are the paper's, known to us from summaries; the search for X is ours: exact for a sufficient condition
// of fitting (the sum of the largest sizes), by dynamic programming, or greedy with swaps.
#ifndef DECANT_SCHEDULING_SORTED_F_HPP
#define DECANT_SCHEDULING_SORTED_F_HPP

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory_safe.hpp"

namespace decant::scheduling {

struct SortedFJob {
  std::uint32_t prompt = 1;  ///< tokens that it holds from the start
  std::uint32_t output = 1;  ///< steps that it stays
  bool operator==(const SortedFJob&) const = default;

  constexpr std::uint64_t peak() const { return std::uint64_t{prompt} + output - 1; }
};

struct SortedFOptions {
  bool exact = false;         ///< dynamic programming, O(n^2 M / block) time and n^2 M / block bits for each batch
  std::uint32_t block = 16;   ///< tokens; sizes are rounded up to it (exact), memory down
  bool operator==(const SortedFOptions&) const = default;
};

/// F(X) as a fraction; less(a, b) without rounding.
struct BatchQuality {
  std::uint64_t outputs = 0, count = 0;
  bool operator==(const BatchQuality&) const = default;

  constexpr double value() const {
    return static_cast<double>(outputs) / (static_cast<double>(count) * static_cast<double>(count));
  }
  /// True if F is smaller; no batch is worse than all.
  constexpr bool better(const BatchQuality& other) const {
    if (count == 0 || other.count == 0) return count > 0 && other.count == 0;
    const Wide a = Wide{outputs} * other.count * other.count, b = Wide{other.outputs} * count * count;
    return a < b;
  }

 private:
  __extension__ typedef unsigned __int128 Wide;
};

namespace detail {

// A job alone always fits.
inline std::uint64_t cells_of(const SortedFJob& job, std::uint64_t cells, std::uint32_t block) {
  return (std::min)(cells, (job.peak() + block - 1) / block);
}

// Least sum of outputs of exactly k jobs in c cells, for all k and c, and which were taken.
inline std::vector<std::uint32_t> exact_batch(View<const SortedFJob, 1> jobs, std::uint64_t memory,
                                              std::uint32_t block) {
  constexpr std::uint64_t none = ~std::uint64_t{0};
  const auto n = static_cast<std::size_t>(jobs.extent(0));
  const std::uint64_t cells = (std::max)(std::uint64_t{1}, memory / block);
  const auto width = static_cast<std::size_t>(cells) + 1;
  std::vector<std::uint64_t> least((n + 1) * width, none);
  std::vector<bool> taken(n * (n + 1) * width, false);
  std::fill(least.begin(), least.begin() + static_cast<std::ptrdiff_t>(width), 0);
  for (std::size_t i = 0; i < n; ++i) {
    const SortedFJob& job = jobs[static_cast<index_t>(i)];
    const auto size = static_cast<std::size_t>(cells_of(job, cells, block));
    for (std::size_t k = i + 1; k >= 1; --k) {
      for (std::size_t c = size; c < width; ++c) {
        const std::uint64_t before = least[(k - 1) * width + c - size];
        if (before == none || before + job.output >= least[k * width + c]) continue;
        least[k * width + c] = before + job.output;
        taken[(i * (n + 1) + k) * width + c] = true;
      }
    }
  }
  std::size_t count = 0;
  BatchQuality best;
  for (std::size_t k = 1; k <= n; ++k) {
    if (least[k * width + width - 1] == none) break;
    const BatchQuality q{least[k * width + width - 1], k};
    if (q.better(best)) {
      best = q;
      count = k;
    }
  }
  std::vector<std::uint32_t> batch;
  std::size_t c = width - 1;
  for (std::size_t i = n; i-- > 0 && count > 0;) {
    if (!taken[(i * (n + 1) + count) * width + c]) continue;
    batch.push_back(static_cast<std::uint32_t>(i));
    c -= static_cast<std::size_t>(cells_of(jobs[static_cast<index_t>(i)], cells, block));
    --count;
  }
  return batch;
}

struct GreedyBatch {
  std::vector<bool> in;
  std::uint64_t used = 0;
  BatchQuality quality{};

  // Takes the shortest that fit and are no larger than `bound`, while F falls.
  void extend(View<const SortedFJob, 1> jobs, std::uint64_t memory, std::uint64_t bound,
              const std::vector<std::uint32_t>& by_output) {
    for (const std::uint32_t j : by_output) {
      const SortedFJob& job = jobs[j];
      const bool alone = quality.count == 0 && bound >= memory;  // one must always start
      if (in[j] || (!alone && (job.peak() > bound || used + job.peak() > memory))) continue;
      const BatchQuality more{quality.outputs + job.output, quality.count + 1};
      if (!more.better(quality)) return;  // nor with any longer one
      in[j] = true;
      used += job.peak();
      quality = more;
    }
  }
};

// The shortest that fit, of those no larger than memory, half of it, a quarter ...: the best of these; then, once, each
// of them for a shorter or smaller one, and those that fit now.
inline std::vector<std::uint32_t> greedy_batch(View<const SortedFJob, 1> jobs, std::uint64_t memory,
                                               const std::vector<std::uint32_t>& by_output) {
  GreedyBatch best;
  for (std::uint64_t bound = memory; bound > 0; bound /= 2) {
    GreedyBatch trial{std::vector<bool>(by_output.size(), false)};
    trial.extend(jobs, memory, bound, by_output);
    if (trial.quality.better(best.quality)) best = trial;
  }
  for (const std::uint32_t i : by_output) {
    for (const std::uint32_t j : by_output) {
      const SortedFJob &a = jobs[i], &b = jobs[j];
      if (!best.in[i]) break;
      if (best.in[j] || best.used - a.peak() + b.peak() > memory) continue;
      if (b.output > a.output || (b.output == a.output && b.peak() >= a.peak())) continue;
      best.in[i] = false;
      best.in[j] = true;
      best.used = best.used - a.peak() + b.peak();
      best.quality.outputs = best.quality.outputs - a.output + b.output;
    }
  }
  if (!by_output.empty()) best.extend(jobs, memory, memory, by_output);
  std::vector<std::uint32_t> batch;
  for (const std::uint32_t j : by_output) {
    if (best.in[j]) batch.push_back(j);
  }
  return batch;
}

inline std::vector<std::uint32_t> by_output(View<const SortedFJob, 1> jobs) {
  std::vector<std::uint32_t> order(static_cast<std::size_t>(jobs.extent(0)));
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const SortedFJob &x = jobs[a], &y = jobs[b];
    if (x.output != y.output) return x.output < y.output;
    return x.prompt != y.prompt ? x.prompt < y.prompt : a < b;
  });
  return order;
}

}  // namespace detail

/// The first batch of the order: indices of `jobs`, by ascending output. Not empty unless `jobs` is. Jobs fit together
/// if the sum of their peaks does. O(n^2 + n log memory) if greedy. ArgumentError: a memory or block of 0.
inline std::vector<std::uint32_t> best_batch(View<const SortedFJob, 1> jobs, std::uint64_t memory,
                                             const SortedFOptions& options = {}) {
  require(memory > 0, "scheduling::best_batch", "memory", "at least 1 token", memory);
  require(options.block > 0, "scheduling::best_batch", "options.block", "at least 1 token", options.block);
  const std::vector<std::uint32_t> order = detail::by_output(jobs);
  if (!options.exact) return detail::greedy_batch(jobs, memory, order);
  std::vector<bool> in(order.size(), false);
  for (const std::uint32_t i : detail::exact_batch(jobs, memory, options.block)) in[i] = true;
  std::vector<std::uint32_t> batch;
  for (const std::uint32_t i : order) {
    if (in[i]) batch.push_back(i);
  }
  return batch;
}

/// The whole order: a permutation of the indices of `jobs`. Errors as above.
inline std::vector<std::uint32_t> sorted_f(View<const SortedFJob, 1> jobs, std::uint64_t memory,
                                           const SortedFOptions& options = {}) {
  std::vector<std::uint32_t> order, left(static_cast<std::size_t>(jobs.extent(0)));
  for (std::uint32_t i = 0; i < left.size(); ++i) left[i] = i;
  std::vector<SortedFJob> rest;
  while (!left.empty()) {
    rest.clear();
    for (const std::uint32_t i : left) rest.push_back(jobs[i]);
    for (const std::uint32_t i : best_batch({rest.data(), static_cast<index_t>(rest.size())}, memory, options)) {
      order.push_back(left[i]);
      left[i] = no_request;
    }
    left.erase(std::remove(left.begin(), left.end(), no_request), left.end());
  }
  return order;
}

/// The waiting list in this order, by predicted lengths. When a request comes that has no place yet, all that wait are
/// put in order anew (the paper's receding horizon); otherwise a step costs O(waiting log waiting).
class BySortedF {
 public:
  BySortedF() = default;
  explicit BySortedF(const SortedFOptions& options) : options_(options) {}

  template <class Memory>
  void begin(const Batch<Memory>& batch) {
    waiting_.clear();
    at_ = 0;
    bool all_known = true;
    for (RequestId id = batch.first_waiting(); id != no_request; id = batch.next_waiting(id)) {
      const std::uint64_t tag = batch[id].info.tag;
      const auto place = find(tag);
      const bool known = place != places_.end() && place->tag == tag;
      all_known = all_known && known;
      waiting_.push_back({id, known ? place->rank : 0, tag});
    }
    if (!all_known) rank(batch);
    std::sort(waiting_.begin(), waiting_.end(), [](const Waiting& a, const Waiting& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.tag < b.tag;
    });
  }
  template <class Memory>
  RequestId peek(const Batch<Memory>&) const {
    return at_ == waiting_.size() ? no_request : waiting_[at_].id;
  }
  template <class Memory>
  void pop(const Batch<Memory>&) {
    ++at_;
  }

 private:
  struct Waiting {
    RequestId id;
    std::uint32_t rank;
    std::uint64_t tag;
  };
  struct Place {
    std::uint64_t tag;
    std::uint32_t rank;
  };

  std::vector<Place>::const_iterator find(std::uint64_t tag) const {
    return std::lower_bound(places_.begin(), places_.end(), tag,
                            [](const Place& p, std::uint64_t t) { return p.tag < t; });
  }

  // In the order of (arrival, tag) first, so that the order of the list does not matter.
  template <class Memory>
  void rank(const Batch<Memory>& batch) {
    std::sort(waiting_.begin(), waiting_.end(), [&](const Waiting& a, const Waiting& b) {
      return earlier(batch[a.id].info, batch[b.id].info);
    });
    jobs_.clear();
    for (const Waiting& w : waiting_) {
      const RequestState& r = batch[w.id];
      jobs_.push_back({r.info.prompt + r.generated, r.remaining()});
    }
    const View<const SortedFJob, 1> jobs{jobs_.data(), static_cast<index_t>(jobs_.size())};
    const std::vector<std::uint32_t> order = sorted_f(jobs, batch.memory().capacity(), options_);
    places_.clear();
    for (std::uint32_t at = 0; at < order.size(); ++at) {
      waiting_[order[at]].rank = at;
      places_.push_back({waiting_[order[at]].tag, at});
    }
    std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.tag < b.tag; });
  }

  SortedFOptions options_{};
  std::vector<Waiting> waiting_;
  std::vector<Place> places_;  // by tag
  std::vector<SortedFJob> jobs_;
  std::size_t at_ = 0;
};

using SortedF = Continuous<BySortedF, MemorySafe>;
static_assert(Scheduler<SortedF>);

}  // namespace decant::scheduling

#endif
