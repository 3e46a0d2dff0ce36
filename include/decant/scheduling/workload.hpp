// decant: what a simulation is fed: requests with the lengths that they turn out to have, and a generator of them in
// integers alone (SplitMix64), for runs that must be the same on every machine.
#ifndef DECANT_SCHEDULING_WORKLOAD_HPP
#define DECANT_SCHEDULING_WORKLOAD_HPP

#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "request.hpp"

namespace decant::scheduling {

/// A request of a simulation: what it says of itself, and how long its output will be.
struct SimulatedRequest {
  RequestInfo info{};
  std::uint32_t output = 1;  ///< o, known to the simulator alone

  /// It will generate `tokens`: all that it may, as everybody knows.
  void generates(std::uint32_t tokens) {
    output = info.max_output = tokens;
    info.output = LengthEstimate::exactly(tokens);
  }
};

using Workload = std::vector<SimulatedRequest>;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
struct SplitMix64 {
  std::uint64_t state = 0;

  constexpr std::uint64_t operator()() {
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
};

/// Uniform gaps below `gap`, prompts of 16 to 2048 tokens, outputs of 1 to 256; lengths are predicted exactly.
/// ArgumentError: a gap of 0.
inline Workload integer_workload(std::uint64_t seed, std::uint32_t requests, Nanoseconds gap) {
  require(gap > 0, "scheduling::integer_workload", "gap", "at least 1 ns", gap);
  SplitMix64 next{seed};
  Workload workload(requests);
  Nanoseconds time = 0;
  for (std::uint32_t i = 0; i < requests; ++i) {
    SimulatedRequest& r = workload[i];
    time += next() % gap;
    r.info.tag = i;
    r.info.arrival = time;
    r.info.prompt = static_cast<std::uint32_t>(16 + next() % 2033);
    r.generates(static_cast<std::uint32_t>(1 + next() % 256));
  }
  return workload;
}

}  // namespace decant::scheduling

#endif
