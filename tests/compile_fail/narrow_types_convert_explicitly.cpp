// Storing a float in 16 bits loses bits, so it is written down; reading it back is free.
// expect: (no viable conversion from .float. to .*bf16|conversion from .float. to non-scalar type .*bf16.* requested)
#include <decant/core/dtype.hpp>

decant::bf16 narrow(float x) {
#ifdef MUST_FAIL
  decant::bf16 y = x;
#else
  decant::bf16 y{x};
#endif
  return y;
}
