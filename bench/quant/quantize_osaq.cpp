// Packing at two bits, where moving outliers out of the way is meant to pay: Osaq before Gptq, and Gptq alone. Figures
// and errors as in quantize.cpp, the peer is plain rounding to two bits. Most of Osaq's time are the eigenvectors of the
// inputs' Hessian, 9 cols^3 operations.

#include "decant/quant/gptq.hpp"
#include "decant/quant/int_group.hpp"
#include "decant/quant/osaq.hpp"
#include "packing.hpp"

int main(int argc, char** argv) {
  using namespace decant::quant;
  bench::Suite suite("quant", argc, argv);
  using Int2 = Int<2>;
  for (const long n : suite.sizes({512, 1024})) {
    bench::add_quantizer(suite, "Gptq<Int<2>>", Gptq<Int2>{}, Rtn<Int2>{}, n);
    bench::add_quantizer(suite, "Osaq<Gptq<Int<2>>>", Osaq<Gptq<Int2>>{}, Rtn<Int2>{}, n);
  }
  return suite.run();
}
