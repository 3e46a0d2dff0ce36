// A drafter and a verifier whose output would not have the target's law do not compose, unless Lossy is named.
// expect: this verifier is not lossless for the drafter's law
// expect: this verifier changes the law of the output; name speculative::Lossy
#include <decant/speculative/policy.hpp>
#include <decant/speculative/verifiers.hpp>

using namespace decant::speculative;

/// Draws siblings without replacement.
struct Sampler {
  static constexpr Law law = Law::without_replacement;
};

int main() {
  require_lossless<Sampler, Traversal>();
  require_lossless<Sampler, UniVer>();
  require_lossless<Sampler, TypicalAcceptance, Lossy>();
  require_lossless<Sampler, MultiRound, Lossy>();
  static_assert(lossless_for<RRSw, Sampler::law> && !lossless_for<MultiRound, Sampler::law>);
  static_assert(!lossless_for<TopKAcceptance, Law::chain>);
#ifdef MUST_FAIL
  require_lossless<Sampler, MultiRound>();
  require_lossless<Sampler, TypicalAcceptance>();
#endif
  return 0;
}
