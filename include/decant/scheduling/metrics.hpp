// decant: what a serving run was like, from the records of its requests: latencies as users of servers name them, and
// goodput under objectives of them. Percentile p of n values is the one at index ceil(p n) - 1 of the sorted ones.
#ifndef DECANT_SCHEDULING_METRICS_HPP
#define DECANT_SCHEDULING_METRICS_HPP

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "simulated_engine.hpp"

namespace decant::scheduling {

/// Time to the first token.
constexpr Nanoseconds ttft(const RequestRecord& r) { return r.first_token - r.arrival; }
/// Time from arrival to the end.
constexpr Nanoseconds e2e(const RequestRecord& r) { return r.end - r.arrival; }
/// Mean time per token after the first, rounded down; a request of one token has none: 0.
constexpr Nanoseconds tpot(const RequestRecord& r) {
  return r.output > 1 ? (r.end - r.first_token) / (r.output - 1) : 0;
}

struct Percentiles {
  std::uint64_t count = 0, sum = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
  double mean() const { return count == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count); }
  bool operator==(const Percentiles&) const = default;
};

/// The value that `per_mille` thousandths of the sorted, non-empty `values` do not exceed.
inline std::uint64_t percentile(const std::vector<std::uint64_t>& values, std::uint32_t per_mille) {
  require(!values.empty(), "scheduling::percentile", "values", "at least one", "none");
  require(per_mille >= 1 && per_mille <= 1000, "scheduling::percentile", "per_mille", "1 to 1000", per_mille);
  return values[(values.size() * per_mille + 999) / 1000 - 1];
}

/// Sorts `values`. None: all 0.
inline Percentiles percentiles(std::vector<std::uint64_t>& values) {
  Percentiles out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  out.count = values.size();
  for (const std::uint64_t v : values) out.sum += v;
  out.p50 = percentile(values, 500);
  out.p90 = percentile(values, 900);
  out.p99 = percentile(values, 990);
  out.max = values.back();
  return out;
}

/// What users are promised; a request meets it if it meets both. 0: no bound.
struct LatencyObjective {
  Nanoseconds ttft = 0, tpot = 0;
  bool operator==(const LatencyObjective&) const = default;
};

struct ServingSummary {
  std::uint64_t requests = 0, rejected = 0, output_tokens = 0, prompt_tokens = 0, hit_tokens = 0;
  Percentiles ttft{}, tpot{}, e2e{}, longest_gap{};
  Nanoseconds duration = 0;          ///< from the first arrival to the last end
  std::uint64_t within_objective = 0;
  double fairness = 1;  ///< Jain's index over tenants of the mean output tokens per second that a request saw

  double tokens_per_second() const { return rate(output_tokens); }
  double requests_per_second() const { return rate(requests); }
  /// Requests per second within the objective.
  double goodput() const { return rate(within_objective); }

 private:
  double rate(std::uint64_t n) const {
    return duration == 0 ? 0 : static_cast<double>(n) * 1e9 / static_cast<double>(duration);
  }
};

/// O(n log n). Rejected requests count as such and nowhere else.
inline ServingSummary summarise(const std::vector<RequestRecord>& records, const LatencyObjective& objective = {}) {
  ServingSummary out;
  std::vector<std::uint64_t> first, per_token, whole, gaps;
  struct Tenant {
    double rate = 0, requests = 0;
  };
  std::vector<Tenant> tenants;
  std::vector<std::uint32_t> names;
  Nanoseconds begin = ~Nanoseconds{0}, end = 0;
  for (const RequestRecord& r : records) {
    if (r.rejected) {
      ++out.rejected;
      continue;
    }
    ++out.requests;
    out.output_tokens += r.output;
    out.prompt_tokens += r.prompt;
    out.hit_tokens += r.hit_tokens;
    begin = (std::min)(begin, r.arrival);
    end = (std::max)(end, r.end);
    first.push_back(ttft(r));
    whole.push_back(e2e(r));
    gaps.push_back(r.longest_gap);
    if (r.output > 1) per_token.push_back(tpot(r));
    out.within_objective += (objective.ttft == 0 || ttft(r) <= objective.ttft) &&
                            (objective.tpot == 0 || tpot(r) <= objective.tpot);
    const auto at = std::lower_bound(names.begin(), names.end(), r.tenant);
    const auto index = at - names.begin();
    if (at == names.end() || *at != r.tenant) {
      names.insert(at, r.tenant);
      tenants.insert(tenants.begin() + index, Tenant{});
    }
    Tenant& tenant = tenants[static_cast<std::size_t>(index)];
    tenant.rate += static_cast<double>(r.output) / static_cast<double>(e2e(r));
    tenant.requests += 1;
  }
  if (out.requests == 0) return out;
  out.duration = end - begin;
  out.ttft = percentiles(first);
  out.tpot = percentiles(per_token);
  out.e2e = percentiles(whole);
  out.longest_gap = percentiles(gaps);
  double sum = 0, squares = 0;
  for (const Tenant& tenant : tenants) {
    const double x = tenant.rate / tenant.requests;
    sum += x;
    squares += x * x;
  }
  out.fairness = sum * sum / (static_cast<double>(tenants.size()) * squares);
  return out;
}

}  // namespace decant::scheduling

#endif
