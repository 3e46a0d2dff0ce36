// The eviction suite on the device, over the first half of the policies that it has.
#include "policies.cuh"

namespace {

TEMPLATE_LIST_TEST_CASE("eviction policies keep their laws on Cuda", "", conformance::First) {
  conformance::check_policy<TestType, cuda_test::MirrorCuda>();
}

}  // namespace
