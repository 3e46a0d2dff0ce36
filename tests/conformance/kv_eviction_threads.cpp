// Every policy selects the same tokens on one thread and on several, which ThreadSanitizer watches here.
#include "conformance/kv_eviction_policy.hpp"

namespace {

using namespace conformance;

template <class... Policies>
void on_threads(kv::PolicyList<Policies...>) {
  Layer<> data({150, 3, 2, 12, 10, 150}, 6);
  const kv::Budget budget = kv::Budget::tokens(31);
  const auto one = [&](const auto& policy) {
    Cpu serial, threaded(real_threads(3));
    REQUIRE(selected(threaded, policy, data.view(), budget) == selected(serial, policy, data.view(), budget));
  };
  (one(PolicyTraits<Policies>::policy()), ...);
}

TEST_CASE("eviction policies select the same tokens on any number of threads", "[threads]") {
  on_threads(kv::AllPolicies{});
}

}  // namespace
