// decant: threads from OpenMP: Cpu cpu{decant::openmp(8)}. The only header that includes <omp.h>; needs -fopenmp.
#ifndef DECANT_INTEROP_OPENMP_HPP
#define DECANT_INTEROP_OPENMP_HPP

#ifndef _OPENMP
#error "decant/interop/openmp.hpp needs OpenMP: compile with -fopenmp, or use another ParallelFor"
#endif

#include <omp.h>

#include <cstdint>

#include "../core/cpu.hpp"

namespace decant {

namespace detail {
inline void run_openmp(void* state, index_t tasks, ParallelFor::Body body, void* data) {
  const int threads = static_cast<int>(reinterpret_cast<std::intptr_t>(state));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (index_t i = 0; i < tasks; ++i) body(data, i);
}
}  // namespace detail

/// Runs tasks on a team of `threads` OpenMP threads. ArgumentError (from Cpu) below 1.
inline ParallelFor openmp(int threads = omp_get_max_threads()) {
  return {detail::run_openmp, reinterpret_cast<void*>(static_cast<std::intptr_t>(threads)), threads};
}

}  // namespace decant

#endif
