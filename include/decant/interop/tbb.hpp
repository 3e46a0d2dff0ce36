// decant: threads from oneTBB: Cpu cpu{decant::tbb()} runs in the arena that the calling thread is in,
// Cpu cpu{decant::tbb(arena)} in one of the caller's, which must outlive the context. Link with -ltbb.
#ifndef DECANT_INTEROP_TBB_HPP
#define DECANT_INTEROP_TBB_HPP

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "../core/cpu.hpp"

namespace decant {

namespace detail {
inline void run_tbb(void*, index_t tasks, ParallelFor::Body body, void* data) {
  ::tbb::parallel_for(index_t{0}, tasks, [=](index_t i) { body(data, i); });
}
inline void run_tbb_arena(void* state, index_t tasks, ParallelFor::Body body, void* data) {
  static_cast<::tbb::task_arena*>(state)->execute([=] { run_tbb(nullptr, tasks, body, data); });
}
}  // namespace detail

/// Runs tasks in the arena of the calling thread.
inline ParallelFor tbb() { return {detail::run_tbb, nullptr, ::tbb::this_task_arena::max_concurrency()}; }

/// Runs tasks in this arena.
inline ParallelFor tbb(::tbb::task_arena& arena) { return {detail::run_tbb_arena, &arena, arena.max_concurrency()}; }

}  // namespace decant

#endif
