// Products with the formats of decant's own through the suite of weight_format_products.hpp.
#include "conformance/weight_format_products.hpp"

#include "decant/quant/codebook.hpp"
#include "decant/quant/fp8.hpp"
#include "decant/quant/if4.hpp"
#include "decant/quant/int_group.hpp"
#include "decant/quant/nf4.hpp"

namespace {

using namespace decant::quant;
using conformance::weight_format_products;

TEST_CASE("WeightFormat: products with integers") {
  weight_format_products(Int<2>{.group = 16, .grid = IntGrid::minimum});
  weight_format_products(Int<3>{.group = 50, .grid = IntGrid::signed_max});
  weight_format_products(Int<4>{});
  weight_format_products(Int<4>{.group = 32, .grid = IntGrid::symmetric});
  weight_format_products(Int<8>{.group = 0, .grid = IntGrid::zero_point});
}
TEST_CASE("WeightFormat: products with tables") {
  weight_format_products(Nf4{});
  weight_format_products(Codebook2x16<>{});
  weight_format_products(Codebook2x16<>{.group = 128, .select = 32});
  weight_format_products(Codebook2x16<decant::fp8_e4m3>{});
}
TEST_CASE("WeightFormat: products with small floats") {
  weight_format_products(Fp8<decant::fp8_e4m3>{});
  weight_format_products(MxFp4{});
  weight_format_products(NvFp4{});
  weight_format_products(If4{});
}

}  // namespace
