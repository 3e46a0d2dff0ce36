// Every codec through the suite of kv_codec.hpp.

#include "conformance/kv_codec.hpp"

#include "decant/codec/splitzip.hpp"
#include "decant/codec/stored.hpp"

namespace {

using namespace decant::codec;

TEST_CASE("KVCodec: SplitZip of bf16") {
  conformance::kv_codec(SplitZip<decant::bf16>{});
}
TEST_CASE("KVCodec: SplitZip of e5m2") {
  conformance::kv_codec(SplitZip<decant::fp8_e5m2>{.reserve_zero = true});
}
TEST_CASE("KVCodec: SplitZip of e4m3") {
  conformance::kv_codec(SplitZip<decant::fp8_e4m3>{.chunk = 64});
}
TEST_CASE("KVCodec: Stored bf16") {
  conformance::kv_codec(Stored<decant::bf16>{});
}
TEST_CASE("KVCodec: Stored float") {
  conformance::kv_codec(Stored<float>{});
}

}  // namespace
