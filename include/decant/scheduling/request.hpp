// decant: what a scheduler knows of a request. Host code, as everything in scheduling/: deciding what runs next is a few
// microseconds of pointer work between two kernels, and there is nothing in it for a GPU.
#ifndef DECANT_SCHEDULING_REQUEST_HPP
#define DECANT_SCHEDULING_REQUEST_HPP

#include <cstdint>

#include "../core/view.hpp"

namespace decant::scheduling {

/// Time, always in whole nanoseconds: a simulation is the same on every machine.
using Nanoseconds = std::uint64_t;

/// The slot of a live request in its Batch: small, dense, used again after the request is gone.
using RequestId = std::uint32_t;
inline constexpr RequestId no_request = 0xffffffffu;

/// What is believed of the number of tokens that a request will generate, the first and the last included.
struct LengthEstimate {
  std::uint32_t low = 1;       ///< at least
  std::uint32_t expected = 1;  ///< the point prediction: o^ of the papers
  std::uint32_t high = 1;      ///< at most
  bool operator==(const LengthEstimate&) const = default;

  static constexpr LengthEstimate exactly(std::uint32_t tokens) { return {tokens, tokens, tokens}; }
  /// Nothing is known but the request's own limit.
  static constexpr LengthEstimate unknown(std::uint32_t max_output) { return {1, max_output, max_output}; }
};

/// A request as it arrives. Views are of the caller's memory and must outlive the request.
struct RequestInfo {
  std::uint64_t tag = 0;          ///< the engine's own name of it, unique; ties are broken by (arrival, tag)
  Nanoseconds arrival = 0;
  std::uint32_t prompt = 1;       ///< s: tokens, at least 1
  std::uint32_t max_output = 1;   ///< the most it may generate, at least 1
  LengthEstimate output{};        ///< what a policy may believe of it
  std::int32_t priority = 0;      ///< the smaller the sooner
  std::uint32_t weight = 1;       ///< worth of its completion, to policies that weigh
  std::uint32_t tenant = 0;
  View<const std::uint32_t, 1> tokens{};  ///< the prompt; empty: not known, no prefix can be found
  View<const std::uint64_t, 1> chain{};   ///< digests of whole prefixes, one per chunk (see chain_hash.hpp); may be empty
  std::uint32_t group = 0;         ///< requests of one group other than 0 share their first `group_tokens` tokens
  std::uint32_t group_tokens = 0;
};

enum class Phase : std::uint8_t { waiting, running, finished };

/// A live request.
struct RequestState {
  RequestInfo info{};
  std::uint32_t generated = 0;    ///< g: tokens sampled
  std::uint32_t computed = 0;     ///< c: tokens whose keys and values are in memory
  std::uint32_t planned = 0;      ///< tokens of the step being planned
  std::uint32_t preemptions = 0;
  Phase phase = Phase::finished;
  RequestId previous = no_request, next = no_request;  ///< neighbours in the waiting list

  /// Tokens to compute before the next one can be sampled. After the first sample of a request that was never
  /// preempted this is 1: the token sampled last is not in memory yet.
  constexpr std::uint32_t need() const { return info.prompt + generated - computed; }
  /// Tokens expected still; at least 1, also when the prediction was exceeded.
  constexpr std::uint32_t remaining() const {
    return info.output.expected > generated ? info.output.expected - generated : 1;
  }
  /// The least output that what was foretold and what was seen allow: one token more than there are, at least.
  constexpr std::uint32_t least() const { return info.output.low > generated ? info.output.low : generated + 1; }
};

/// The order that breaks all ties: by arrival, then by the engine's name.
constexpr bool earlier(const RequestInfo& a, const RequestInfo& b) {
  return a.arrival != b.arrival ? a.arrival < b.arrival : a.tag < b.tag;
}

}  // namespace decant::scheduling

#endif
