#pragma once
// What a hot call may allocate: nothing but its workspace, and that once.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include "catch_compat.hpp"
#include "problem.hpp"

namespace attention_test {

/// Calls of operator new in the whole test program; dense_laws.cpp counts them.
extern std::atomic<long> allocations;

/// call(cpu) writes `r`. The second one allocates nothing, caller memory of the high water mark suffices and gives the
/// same bits, and with less memory nothing is written.
template <class Call>
void check_workspace(Result& r, const Call& call) {
  using decant::Cpu;
  Cpu cpu;
  long before = allocations;
  call(cpu);
  CHECK(allocations > before);  // the counter counts
  before = allocations;
  call(cpu);
  CHECK(allocations == before);
  const Result expected = r;

  const std::size_t bytes = cpu.workspace().high_water() + 64;
  std::vector<std::byte> memory(bytes);
  Cpu fixed(decant::ParallelFor{}, memory.data(), bytes);
  before = allocations;
  call(fixed);
  CHECK(allocations == before);
  CHECK(r.same_bits(expected));

  Cpu tight(decant::ParallelFor{}, memory.data(), 1000);
  std::fill(r.o.begin(), r.o.end(), 7.0f);
  const Result untouched = r;
  CHECK_THROWS_AS(call(tight), decant::WorkspaceError);
  CHECK(r.same_bits(untouched));
}

}  // namespace attention_test
