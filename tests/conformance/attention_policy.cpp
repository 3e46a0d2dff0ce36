// Every attention policy through the suite of attention_policy.hpp.

#include "conformance/attention_policy.hpp"

namespace {

TEST_CASE("AttentionPolicy: Dense over float caches") {
  conformance::attention_policy<float>(decant::attention::Dense{});
}

TEST_CASE("AttentionPolicy: Dense over bf16 caches") {
  conformance::attention_policy<decant::bf16>(decant::attention::Dense{.chunk = 100});
}

}  // namespace
