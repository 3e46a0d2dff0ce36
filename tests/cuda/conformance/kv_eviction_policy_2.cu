// The eviction suite on the device, over the second half of the policies that it has.
#include "policies.cuh"

namespace {

TEMPLATE_LIST_TEST_CASE("eviction policies keep their laws on Cuda (2)", "", conformance::Second) {
  conformance::check_policy<TestType, cuda_test::MirrorCuda>();
}

}  // namespace
