// AAAC on several threads: the same bytes, and no allocation the second time.
#include <cstdlib>

#include "catch_compat.hpp"
#include "threads.hpp"
#include "unit/quant/aaac_problem.hpp"

namespace aaac_threads_test {

using namespace aaac_test;

template <class Q>
void check(const Q& q, const Problem& p) {
  Cpu serial;
  const auto expected = p.quantized(q, serial).bytes;
  Cpu real(real_threads(3));
  CHECK(p.quantized(q, real).bytes == expected);
  Cpu reversed(reversed_threads(7));
  CHECK(p.quantized(q, reversed).bytes == expected);
}

TEST_CASE("Aaac does not depend on threads", "[quant][aaac][threads]") {
  const Problem p(Matrix(18, 512, [](index_t i) { return student(i, 151); }));
  check(paper<fp16>(2, 3), p);
  Aaac<> q;
  q.passes = 2;
  q.starts = {.paper = false, .density_tail = true, .signed_extreme = true, .if4 = false};
  q.select = 16;
  check(q, p);
  Aaac<fp8_e4m3> small;
  small.passes = 2;
  small.starts = only(3);
  check(small, p);
}

TEST_CASE("Aaac allocates nothing the second time", "[quant][aaac][threads]") {
  static int allocations;
  const decant::Allocator counting{[](void*, std::size_t bytes) {
                                     ++allocations;
                                     return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
                                   },
                                   [](void*, void* memory, std::size_t) { std::free(memory); }, nullptr};
  const Problem p(Matrix(8, 256));
  Cpu cpu(reversed_threads(3), counting);
  Aaac<> q;
  q.passes = 2;
  p.quantized(q, cpu);
  CHECK(allocations > 0);
  allocations = 0;
  p.quantized(q, cpu);
  CHECK(allocations == 0);
}

}  // namespace aaac_threads_test
