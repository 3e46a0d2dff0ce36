// Caches of 8-bit floats: the same bound, for what is stored, on CUDA cores and, as fp16, on tensor cores.

#include "catch_compat.hpp"
#include "device_problem.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class T>
void check(const Problem<T>& p, const Dense& a = {}, bool offsets = false) {
  INFO("group " << p.group << " dims " << p.key_dim << "/" << p.value_dim);
  cuda_test::Stream stream;
  Cuda cuda(stream);
  const Result r = run(cuda, p, DenseCache<T>(p), a, Causal{}, {}, offsets);
  const Exact expected = exact(p, a);
  CHECK(error(r, expected) <= (a.rounded ? Dense::rounded_error_bound(dtype_of<T>) : Dense::error_bound));
  CHECK(lse_error(r, expected) <= (a.rounded ? 1e-3 : 1e-5));
  CHECK(run(cuda, p, PagedCache<T>(p, 16), a, Causal{}, {}, offsets).same_bits(r));
}

template <class T>
void check_shapes() {
  check(Problem<T>(2, 4, 64, 64, {200, 1, 0, 67}), Dense{.chunk = 100});                // CUDA cores
  check(Problem<T>(1, 1, 20, 12, {90}));                                                // rows that are not aligned
  check(Problem<T>(2, 6, 32, 48, {70, 0, 100}));                                        // tensor cores
  check(Problem<T>(1, 5, 20, 136, {70, 33}), Dense{.chunk = 50});
  check(Problem<T>(1, 2, 32, 16, {70, 5, 0, 90}, {20, 3, 1, 60}), Dense{.chunk = 32});  // tiles of 64 rows
  check(Problem<T>(2, 8, 64, 64, {300}), Dense{.rounded = true});
}

TEST_CASE("Cuda Dense: caches of fp8_e4m3") { check_shapes<fp8_e4m3>(); }
TEST_CASE("Cuda Dense: caches of fp8_e5m2") { check_shapes<fp8_e5m2>(); }

/// One key whose value holds 16 of the 256 numbers at a time: o is that value.
template <class T>
void check_every_number(index_t group) {
  Problem<T> p(1, group, 16, 16, std::vector<index_t>(16, 1));
  for (index_t i = 0; i < 256; ++i) p.value(i / 16, 0, 0)[i % 16] = T::from_bits(static_cast<std::uint8_t>(i));
  cuda_test::Stream stream;
  Cuda cuda(stream);
  const Result r = run(cuda, p, DenseCache<T>(p), {}, Causal{}, {}, group > 4);
  for (index_t i = 0; i < 256; ++i) {
    const float expected = static_cast<float>(T::from_bits(static_cast<std::uint8_t>(i)));
    const float got = r.o[at((i / 16 * group + group - 1) * 16 + i % 16)];
    // The weight's lower term is 0, which makes NaN of infinity on tensor cores.
    CHECK((std::isfinite(expected) ? got == expected : !std::isfinite(got)));
  }
}

TEST_CASE("Cuda Dense: every number that 8 bits can hold arrives, on CUDA cores and on tensor cores") {
  for (const index_t group : {1, 5}) {
    check_every_number<fp8_e4m3>(group);
    check_every_number<fp8_e5m2>(group);
  }
}

}  // namespace
}  // namespace attention_test
