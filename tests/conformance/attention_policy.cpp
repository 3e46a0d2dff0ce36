// Every attention policy through the suite of attention_policy.hpp.

#include "conformance/attention_policy.hpp"
#include "decant/attention/santa.hpp"
#include "sanitizers.hpp"

namespace {

TEST_CASE("AttentionPolicy: Dense over float caches") {
  conformance::attention_policy<float>(decant::attention::Dense{});
}

TEST_CASE("AttentionPolicy: Dense over bf16 caches") {
  conformance::attention_policy<decant::bf16>(decant::attention::Dense{.chunk = 100});
}

// Santa declares its bound for 16 samples per key; the suite's longest sequence has 1500 keys. Plain draws are not
// within it, and are tested as random numbers (tests/unit/attention/santa_law.cpp).
using decant::attention::Santa;
using decant::attention::SantaScheme;

TEST_CASE("AttentionPolicy: Santa over float caches, every scheme with a bound") {
  std::vector<SantaScheme> schemes{SantaScheme::stratified, SantaScheme::flash, SantaScheme::threshold_systematic};
  if (!under_asan)
    schemes.insert(schemes.end(), {SantaScheme::global_systematic, SantaScheme::prop, SantaScheme::prop_exact});
  for (const SantaScheme scheme : schemes) {
    INFO(name(scheme));
    conformance::attention_policy<float>(Santa{.samples = 24000, .scheme = scheme});
  }
}

TEST_CASE("AttentionPolicy: Santa over bf16 caches") {
  conformance::attention_policy<decant::bf16>(Santa{.samples = 24000, .couple_group = true, .layer = 2});
}

}  // namespace
