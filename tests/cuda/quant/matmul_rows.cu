// Rows as floats on CUDA, to the bit as on the CPU: every format that matmul.cu and matmul_formats.cu do not multiply.
#include "packed_problem.cuh"

#include "decant/quant/ggml_fp4_blocks.hpp"
#include "decant/quant/ggml_k_blocks.hpp"

namespace {

using namespace quant_test;

template <class F>
void check(const char* name, const F& format) {
  CAPTURE(name);
  check_rows(format, 5, 512);
  check_rows(format, 3, 256, 1);
}

TEST_CASE("rows of ggml's blocks are the CPU's") {
  check("Q8_0", quant::ggml::Q8_0{});
  check("Q4_1", quant::ggml::Q4_1{});
  check("IQ4_NL", quant::ggml::IQ4_NL{});
  check("MXFP4", quant::ggml::MXFP4{});
  check("NVFP4", quant::ggml::NVFP4{});
  check("Q4_K", quant::ggml::Q4_K{});
  check("Q6_K", quant::ggml::Q6_K{});
}

TEST_CASE("rows of the other widths are the CPU's") {
  check("Int<6>", quant::Int<6>{});
  check("Int<7>", quant::Int<7>{});
  check("Fp8<fp8_e5m2>", quant::Fp8<decant::fp8_e5m2>{});
}

}  // namespace
