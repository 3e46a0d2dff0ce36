// Algorithms over a grid through the suite of quantizer.hpp. Here, too, every way into the heap of this test program is
// counted.
#include "conformance/quantizer.hpp"

#include "decant/quant/aaac.hpp"
#include "decant/quant/fp4.hpp"
#include "decant/quant/ggml_blocks.hpp"
#include "decant/quant/gptq.hpp"
#include "decant/quant/if4.hpp"
#include "decant/quant/int_group.hpp"
#include "decant/quant/matmul.hpp"
#include "decant/quant/nf4.hpp"
#include "watched_heap.hpp"

std::atomic<long> conformance::allocations{0};

void watched_heap::on_allocation(std::size_t) { ++conformance::allocations; }

namespace {

using namespace decant::quant;
using conformance::quantizer;

TEST_CASE("Quantizer: Rtn", "[threads]") {
  quantizer(Rtn<Int<4>>{});
  quantizer(Rtn<NvFp4>{});
}
TEST_CASE("Quantizer: Aaac", "[threads]") {
  quantizer(Aaac<>{.group = 32, .select = 16, .passes = 3});
}
TEST_CASE("Quantizer: Gptq of integers", "[threads]") {
  quantizer(Gptq<Int<3>>{.grid = {.group = 40}});
  quantizer(Gptq<Int<4>>{.grid = {.group = 32}, .block = 32, .act_order = true, .cd_sweeps = 2});
}
TEST_CASE("Quantizer: Gptq of floats and tables", "[threads]") {
  quantizer(Gptq<Nf4>{});
  quantizer(Gptq<NvFp4>{});
  quantizer(Gptq<If4>{});
}
TEST_CASE("Quantizer: Gptq of ggml's blocks", "[threads]") {
  quantizer(Gptq<ggml::Q4_0>{});
}
TEST_CASE("Quantizer: Gptq of Aaac", "[threads]") {
  quantizer(Gptq<Aaac<>>{.grid = {.group = 32, .passes = 2, .refit = AaacRefit::yes}});
}

}  // namespace
