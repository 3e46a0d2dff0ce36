// As matmul.cu, the other formats: levels and small floats, 8-bit floats, a block of ggml, and scaled columns.
#include "packed_problem.cuh"

namespace {

using namespace quant_test;

TEST_CASE("products with 4-bit levels and floats are within their bounds, on every path") {
  check_format(quant::Nf4{});
  check_format(quant::MxFp4{});
  check_format(quant::NvFp4{});
  check_format(quant::If4{});
}

TEST_CASE("products with 8-bit floats are within their bounds, on every path") {
  check_format(quant::Fp8<decant::fp8_e4m3>{});
}

TEST_CASE("a format is multiplied through its own functions where nothing faster is known") {
  check_format(quant::ggml::Q4_0{}, 32);
}

TEST_CASE("scaled columns") {
  check_format(quant::Scaled{quant::Int<4>{.group = 32}});
}

}  // namespace
