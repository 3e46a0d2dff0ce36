// decant: workloads whose requests share prefixes in groups, as those of applications with system prompts, few-shot
// examples or documents do: which group a request belongs to is drawn by Zipf's law, so groups are equally or unequally
// wanted. For simulations of schedulers that look at prefixes, on GroupMemory. Ours; as the other drawn workloads
// (generators.hpp) it uses libm.
#ifndef DECANT_SCHEDULING_PREFIX_WORKLOAD_HPP
#define DECANT_SCHEDULING_PREFIX_WORKLOAD_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "generators.hpp"

namespace decant::scheduling {

struct PrefixGroups {
  std::uint32_t groups = 5;
  std::uint32_t prefix = 5000;  ///< tokens that the requests of a group have in common; 0: nothing is shared
  double skew = 0;              ///< theta: the g-th group is wanted in proportion to 1 / g^theta; 0: all alike
  std::uint32_t chunk = 64;     ///< K: tokens per digest of RequestInfo::chain, as the scheduler must count them
  bool operator==(const PrefixGroups&) const = default;
};

/// Requests and the digests that their chains show, so it moves but is not copied.
class PrefixWorkload {
 public:
  PrefixWorkload(Workload requests, std::vector<std::uint64_t> keys)
      : requests_(std::move(requests)), keys_(std::move(keys)) {}
  PrefixWorkload(PrefixWorkload&&) = default;
  PrefixWorkload& operator=(PrefixWorkload&&) = default;
  PrefixWorkload(const PrefixWorkload&) = delete;
  PrefixWorkload& operator=(const PrefixWorkload&) = delete;

  /// Valid while this lives.
  const Workload& requests() const { return requests_; }

 private:
  Workload requests_;
  std::vector<std::uint64_t> keys_;
};

/// Whole chunks of the prefix have their group's digests, all others the request's own; a chunk that is begun has one
/// too. Groups count from 1, in the order of how much they are wanted; with a prefix of 0 requests have none.
/// ArgumentError: no group, a chunk of 0, a skew that is negative or not a number, and as random_workload.
inline PrefixWorkload prefix_workload(std::uint64_t seed, std::uint32_t requests, const PrefixGroups& shape,
                                      const Arrivals& arrivals, const LengthLaw& own, const LengthLaw& output) {
  constexpr auto where = "scheduling::prefix_workload";
  require(shape.groups >= 1, where, "shape.groups", "at least 1", shape.groups);
  require(shape.chunk >= 1, where, "shape.chunk", "at least 1 token", shape.chunk);
  require(shape.skew >= 0 && shape.skew < 1e3, where, "shape.skew", "0 or more", shape.skew);
  std::vector<double> below(shape.groups);  // wanted, up to and with each group
  double sum = 0;
  for (std::uint32_t g = 0; g < shape.groups; ++g) below[g] = sum += std::pow(g + 1.0, -shape.skew);

  Workload workload = random_workload(seed, requests, arrivals, own, output);
  SplitMix64 next{seed ^ 0x9f0c95u};
  std::vector<std::uint64_t> keys;
  for (SimulatedRequest& r : workload) {
    const auto drawn = std::upper_bound(below.begin(), below.end() - 1, unit(next) * sum) - below.begin();
    r.info.prompt += shape.prefix;
    r.info.group = shape.prefix == 0 ? 0 : static_cast<std::uint32_t>(drawn) + 1;
    r.info.group_tokens = shape.prefix;
    for (std::uint64_t at = 0; at < r.info.prompt; at += shape.chunk) {
      const bool shared = at + shape.chunk <= shape.prefix;
      // One number per (group or request, place), mixed so that it looks like a digest.
      const std::uint64_t who = shared ? r.info.group : ~r.info.tag;
      keys.push_back(SplitMix64{(who << 32) + at / shape.chunk}());
    }
  }
  std::size_t first = 0;
  for (SimulatedRequest& r : workload) {
    const std::size_t n = (std::size_t{r.info.prompt} + shape.chunk - 1) / shape.chunk;
    r.info.chain = {keys.data() + first, n};
    first += n;
  }
  return {std::move(workload), std::move(keys)};
}

}  // namespace decant::scheduling

#endif
