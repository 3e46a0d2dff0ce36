// A stage of attention is no attention policy: BernoulliQuery estimates scores, and what reads the values is missing.
// expect: the third part must be an attention policy, as attention::Dense or attention::Santa
#include <decant/attention/santa.hpp>
#include <decant/attention/santa_scores.hpp>
#include <decant/stack.hpp>

int main() {
  using namespace decant;
#ifdef MUST_FAIL
  const Stack stack{kv::FullVisibility{}, kv::Full{}, attention::BernoulliQuery{}};
#else
  const Stack stack{kv::FullVisibility{}, kv::Full{}, attention::Santa{}};
#endif
  return stack.budget.value() == 1.0 ? 0 : 1;
}
