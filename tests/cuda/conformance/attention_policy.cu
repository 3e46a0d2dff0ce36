// The attention suite on the device.
#include "conformance/attention_policy.hpp"

#include "cuda/mirror.cuh"

namespace {

using cuda_test::MirrorCuda;

TEST_CASE("AttentionPolicy on Cuda: Dense over float caches") {
  conformance::attention_policy<float, MirrorCuda>(decant::attention::Dense{});
}

TEST_CASE("AttentionPolicy on Cuda: Dense over bf16 caches") {
  conformance::attention_policy<decant::bf16, MirrorCuda>(decant::attention::Dense{.chunk = 100});
}

}  // namespace
