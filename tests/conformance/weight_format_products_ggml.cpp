// Products with ggml's block formats through the suite of weight_format_products.hpp.
#include "conformance/weight_format_products.hpp"

#include "decant/quant/ggml_blocks.hpp"
#include "decant/quant/ggml_fp4_blocks.hpp"
#include "decant/quant/ggml_k_blocks.hpp"

namespace {

namespace ggml = decant::quant::ggml;
using conformance::weight_format_products;

TEST_CASE("WeightFormat: products with ggml blocks") {
  weight_format_products(ggml::Q8_0{});
  weight_format_products(ggml::Q4_0{});
  weight_format_products(ggml::Q4_1{});
  weight_format_products(ggml::IQ4_NL{});
  weight_format_products(ggml::Q4_K{});
  weight_format_products(ggml::Q6_K{});
  weight_format_products(ggml::MXFP4{});
  weight_format_products(ggml::NVFP4{});
}

}  // namespace
