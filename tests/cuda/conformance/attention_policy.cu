// The attention suite on the device.
#include "conformance/attention_policy.hpp"

#include "cuda/mirror.cuh"
#include "decant/attention/santa.cuh"

namespace {

using cuda_test::MirrorCuda;

TEST_CASE("AttentionPolicy on Cuda: Dense over float caches") {
  conformance::attention_policy<float, MirrorCuda>(decant::attention::Dense{});
}

TEST_CASE("AttentionPolicy on Cuda: Dense over bf16 caches") {
  conformance::attention_policy<decant::bf16, MirrorCuda>(decant::attention::Dense{.chunk = 100});
}

// With as many samples as there are keys, and more, all keys are taken; other schemes are held against the CPU's draws
// (tests/cuda/santa), as 16 samples per key would take long here.
TEST_CASE("AttentionPolicy on Cuda: Santa over float caches") {
  conformance::attention_policy<float, MirrorCuda>(decant::attention::Santa{
      .samples = 24000, .scheme = decant::attention::SantaScheme::threshold_systematic});
}

}  // namespace
