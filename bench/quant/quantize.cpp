// Packing weights: the figure is millions of weights per second, its inverse the time per million. The error is the
// share of the layer's output that is lost, tr(D H D^T) / tr(W H W^T), on the inputs that the quantizer saw; the peer
// is plain rounding to four bits, which says what an algorithm costs. Groups of 128, inputs with a falling
// spectrum. Osaq, which needs Eigen, is in quantize_osaq.cpp.

#include "decant/quant/aaac.hpp"
#include "decant/quant/awq.hpp"
#include "decant/quant/gptq.hpp"
#include "decant/quant/int_group.hpp"
#include "decant/quant/nf4.hpp"
#include "packing.hpp"

int main(int argc, char** argv) {
  using namespace decant::quant;
  bench::Suite suite("quant", argc, argv);
  using Int4 = Int<4>;
  for (const long n : suite.sizes({512, 1024})) {
    const auto add = [&](const char* name, const auto& quantizer) {
      bench::add_quantizer(suite, name, quantizer, Rtn<Int4>{}, n);
    };
    add("Rtn<Int<4>>", Rtn<Int4>{});
    add("Gptq<Int<4>>", Gptq<Int4>{});
    add("AwqScale<Rtn<Int<4>>>", AwqScale<Rtn<Int4>>{});
    add("Rtn<Nf4>", Rtn<Nf4>{});
    Aaac<> paper;
    paper.mode = AaacMode::paper;
    add("Aaac<> (paper)", paper);
    add("Aaac<> (best_of)", Aaac<>{});
    add("Gptq<Aaac<>>", Gptq<Aaac<>>{});
  }
  return suite.run();
}
