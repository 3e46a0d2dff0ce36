// The formats of decant's own through the suite of weight_format.hpp.
#include "conformance/weight_format.hpp"

#include "decant/quant/codebook.hpp"
#include "decant/quant/fp8.hpp"
#include "decant/quant/if4.hpp"
#include "decant/quant/int_group.hpp"
#include "decant/quant/nf4.hpp"

namespace {

using namespace decant::quant;
using conformance::weight_format;

TEST_CASE("WeightFormat: Int<2>") {
  weight_format(Int<2>{.group = 16, .grid = IntGrid::minimum}, 4);
}
TEST_CASE("WeightFormat: Int<3>") {
  weight_format(Int<3>{.group = 32, .grid = IntGrid::signed_max}, 8);
}
TEST_CASE("WeightFormat: Int<4>") {
  weight_format(Int<4>{}, 16);
  weight_format(Int<4>{.group = 0, .grid = IntGrid::symmetric}, 16);
}
TEST_CASE("WeightFormat: Int<7>") {
  weight_format(Int<7>{.group = 50, .grid = IntGrid::zero_point}, 128);
}
TEST_CASE("WeightFormat: Int<8>") {
  weight_format(Int<8>{.group = 64, .grid = IntGrid::minimum}, 256);
}
TEST_CASE("WeightFormat: Nf4") {
  weight_format(Nf4{}, 16);
  weight_format(Nf4{.block = 21}, 16);
}
TEST_CASE("WeightFormat: Fp8") {
  weight_format(Fp8<decant::fp8_e4m3>{}, 256);
  weight_format(Fp8<decant::fp8_e5m2>{}, 256);
}
TEST_CASE("WeightFormat: MxFp4") {
  weight_format(MxFp4{}, 16);
  weight_format(MxFp4{.rule = MxScale::round_up}, 16);
}
TEST_CASE("WeightFormat: NvFp4") {
  weight_format(NvFp4{}, 16);
  weight_format(NvFp4{.four_over_six = true}, 16);
}
TEST_CASE("WeightFormat: If4") {
  weight_format(If4{}, 16);
}
TEST_CASE("WeightFormat: Codebook2x16") {
  weight_format(Codebook2x16<>{}, 16);
  weight_format(Codebook2x16<>{.group = 128, .select = 32}, 16);
  weight_format(Codebook2x16<decant::fp8_e4m3>{}, 16);
}

}  // namespace
