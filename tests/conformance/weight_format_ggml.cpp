// ggml's block formats through the suite of weight_format.hpp.
#include "conformance/weight_format.hpp"

#include "decant/quant/ggml_blocks.hpp"
#include "decant/quant/ggml_fp4_blocks.hpp"
#include "decant/quant/ggml_k_blocks.hpp"

namespace {

namespace ggml = decant::quant::ggml;
using conformance::weight_format;

TEST_CASE("WeightFormat: ggml blocks of 32") {
  weight_format(ggml::Q8_0{}, 256);
  weight_format(ggml::Q4_0{}, 16);
  weight_format(ggml::Q4_1{}, 16);
  weight_format(ggml::IQ4_NL{}, 16);
}
TEST_CASE("WeightFormat: ggml K blocks") {
  weight_format(ggml::Q4_K{}, 16);
  weight_format(ggml::Q6_K{}, 64);
}
TEST_CASE("WeightFormat: ggml fp4 blocks") {
  weight_format(ggml::MXFP4{}, 16);
  weight_format(ggml::NVFP4{}, 16);
}

}  // namespace
