// expect: the first part must be a visibility policy
#include <decant/stack.hpp>

int main() {
#ifdef MUST_FAIL
  const decant::Stack stack{decant::kv::Full{}};
#else
  const decant::Stack stack{decant::kv::FullVisibility{}, decant::kv::Full{}};
#endif
  return stack.budget.value() == 1.0 ? 0 : 1;
}
