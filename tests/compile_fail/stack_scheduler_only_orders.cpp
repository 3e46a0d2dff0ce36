// An order of the waiting list is no scheduler: Continuous makes one of it.
// expect: the ninth part must be a scheduler, as scheduling::Fcfs, or NoScheduler
#include <decant/scheduling/orders.hpp>
#include <decant/stack.hpp>

int main() {
  using namespace decant;
#ifdef MUST_FAIL
  using Order = scheduling::ByArrival;
#else
  using Order = scheduling::Fcfs;
#endif
  const Stack stack{kv::FullVisibility{}, kv::Full{},     attention::Dense{}, NoCodec{}, AsStored{},
                    NoDrafter{},          NoVerifier{}, NoController{},     Order{}};
  return stack.budget.value() == 1.0 ? 0 : 1;
}
