// Stack: parts from the left, plain defaults, and the checks that need numbers.
#include <type_traits>

#include <decant/attention/santa.hpp>
#include <decant/codec/splitzip.hpp>
#include <decant/scheduling/memory_safe.hpp>
#include <decant/speculative/fixed_length.hpp>
#include <decant/speculative/ngram.hpp>
#include <decant/speculative/verifiers.hpp>
#include <decant/stack.hpp>

#include "catch_compat.hpp"

namespace stack_test {

using decant::Stack;
using decant::kv::Budget;
using decant::kv::Full;
using decant::kv::FullVisibility;
using decant::kv::Speed;

TEST_CASE("a stack names the parts that differ from plain", "[stack]") {
  const Stack plain{};
  REQUIRE(std::is_same_v<decltype(plain.visibility), FullVisibility>);
  REQUIRE(std::is_same_v<decltype(plain.eviction), Full>);
  REQUIRE(plain.budget == Budget::keep(1.0));

  const Stack some{Speed{.depth = 0.5f}, Full{}};
  REQUIRE(some.visibility.depth == 0.5f);
  REQUIRE(std::is_same_v<decltype(some.drafter), decant::NoDrafter>);
}

TEST_CASE("a stack is checked against the model", "[stack]") {
  REQUIRE_NOTHROW(validate(Stack{Speed{.depth = 0.75f}}, 8));
  REQUIRE_NOTHROW(validate(Stack{Speed{.depth = 1.0f / 3}}, 12));
  REQUIRE_THROWS_WITH(validate(Stack{Speed{.depth = 0.7f}}, 8),
                      "decant::Stack: argument `visibility.depth`: expected a share that is a whole number of 8 layers, "
                      "got 0.699999988");
  REQUIRE_THROWS_AS(validate(Stack{}, 0), decant::ArgumentError);
  Stack greedy{};
  greedy.budget = Budget::keep(1.5);
  REQUIRE_THROWS_WITH(validate(greedy, 8), catch_compat::contains("kv::Budget: argument `value`"));
}

TEST_CASE("a stack holds a sampling attention policy and checks it", "[stack]") {
  using decant::attention::Santa;
  const Stack sampled{Speed{.depth = 0.75f}, Full{}, Santa{.samples = 2048}};
  REQUIRE(std::is_same_v<decltype(sampled.attention), Santa>);
  REQUIRE(sampled.attention.samples == 2048);
  REQUIRE_NOTHROW(validate(sampled, 8));
  const Stack odd{FullVisibility{}, Full{}, Santa{.tile = 40}};
  REQUIRE_THROWS_WITH(validate(odd, 8), catch_compat::contains("attention::Santa: argument `tile`"));
}

TEST_CASE("a stack holds a codec and checks it", "[stack]") {
  using SplitZip = decant::codec::SplitZip<decant::bf16>;
  const Stack moved{FullVisibility{}, Full{}, decant::attention::Dense{}, SplitZip{}};
  REQUIRE_NOTHROW(validate(moved, 8));
  const Stack odd{FullVisibility{}, Full{}, decant::attention::Dense{}, SplitZip{.chunk = 1000}};
  REQUIRE_THROWS_WITH(validate(odd, 8), catch_compat::contains("codec::SplitZip: argument `chunk`"));
}

TEST_CASE("a stack holds a drafter, a verifier that is lossless for it, and a controller", "[stack]") {
  using namespace decant::speculative;
  const decant::Stack drafted{FullVisibility{}, Full{}, decant::attention::Dense{}, decant::NoCodec{}, decant::AsStored{},
                              Ngram{}, Membership{}, FixedLength{}};
  REQUIRE(decltype(drafted.drafter)::law == Law::deterministic);
  REQUIRE(drafted.controller.budget.depth == 4);
  REQUIRE_NOTHROW(validate(drafted, 8));
}

TEST_CASE("a stack holds a scheduler", "[stack]") {
  using namespace decant;
  const Stack served{FullVisibility{}, Full{},       attention::Dense{}, NoCodec{}, AsStored{}, NoDrafter{}, NoVerifier{},
                     NoController{}, scheduling::McSf{}};
  REQUIRE(std::is_same_v<decltype(served.scheduler), scheduling::McSf>);
  REQUIRE_NOTHROW(validate(served, 8));
}

}  // namespace stack_test
