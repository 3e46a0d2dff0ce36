// One query per sequence on CUDA cores: the declared bound, and the same bits from every cache.

#include "catch_compat.hpp"
#include "device_problem.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class T>
void check_decode(const Problem<T>& p, const Dense& a) {
  INFO("group " << p.group << " dims " << p.key_dim << "/" << p.value_dim);
  cuda_test::Stream stream;
  Cuda cuda(stream);
  const Result r = run(cuda, p, DenseCache<T>(p), a);
  const Exact expected = exact(p, a);
  CHECK(error(r, expected) <= Dense::error_bound);
  CHECK(lse_error(r, expected) <= 1e-5);
  CHECK(run(cuda, p, DenseCache<T>(p, Layout::nhd), a).same_bits(r));
  CHECK(run(cuda, p, RaggedCache<T>(p), a).same_bits(r));
  for (const index_t page_size : {1, 7, 16}) CHECK(run(cuda, p, PagedCache<T>(p, page_size), a).same_bits(r));
}

TEST_CASE("Cuda Dense: decode over float caches") {
  check_decode(Problem<float>(2, 7, 96, 80, {200, 1, 0, 67}), Dense{.chunk = 100});
  check_decode(Problem<float>(1, 4, 64, 48, {300, 64}), Dense{.chunk = 64});
  check_decode(Problem<float>(3, 1, 3, 1, {65, 270}), Dense{});
  check_decode(Problem<float>(1, 9, 576, 512, {40}), Dense{.chunk = 17});
}

TEST_CASE("Cuda Dense: decode over 16-bit caches") {
  check_decode(Problem<fp16>(2, 3, 128, 128, {200, 1, 0, 67}), Dense{.chunk = 100});
  check_decode(Problem<fp16>(2, 1, 80, 64, {100, 30}), Dense{});
  check_decode(Problem<bf16>(1, 2, 1, 3, {300, 64}), Dense{.chunk = 64});
  check_decode(Problem<bf16>(1, 4, 576, 576, {70}), Dense{});
  check_decode(Problem<bf16>(2, 2, 16, 24, {230}), Dense{});
}

}  // namespace
}  // namespace attention_test
