// decant: Cpu, the context that says "here, on this thread and the threads it may borrow". It holds the workspace and
// the caller's way to run in parallel; decant owns no thread. One Cpu per calling thread.
#ifndef DECANT_CORE_CPU_HPP
#define DECANT_CORE_CPU_HPP

#include <type_traits>
#include <utility>

#include "error.hpp"
#include "simd.hpp"
#include "workspace.hpp"

namespace decant {

/// How to run tasks in parallel. run(state, tasks, body, data) calls body(data, i) for every i in [0, tasks), in any
/// order, on any threads, and returns when all are done. `threads` is how many run at once: a hint for splitting work;
/// results never depend on which thread runs what. The default is serial.
struct ParallelFor {
  using Body = void (*)(void* data, index_t task);
  void (*run)(void* state, index_t tasks, Body body, void* data) = nullptr;
  void* state = nullptr;
  int threads = 1;
};

class Cpu {
 public:
  /// Serial, with a growing workspace.
  Cpu() = default;

  /// Parallel through the caller's runtime: Cpu{decant::openmp(8)}.
  explicit Cpu(ParallelFor parallel) : parallel_(parallel) {
    require(parallel.threads >= 1, "Cpu", "parallel.threads", "at least 1", parallel.threads);
  }

  /// Scratch from the caller's allocator.
  Cpu(ParallelFor parallel, Allocator allocator) : parallel_(parallel), workspace_(allocator) {}

  /// Scratch in the caller's memory, never more.
  Cpu(ParallelFor parallel, void* memory, std::size_t bytes) : parallel_(parallel), workspace_(memory, bytes) {}

  Workspace& workspace() { return workspace_; }
  int threads() const { return parallel_.threads; }

  Isa isa() const { return isa_; }
  /// Uses a lesser path than the best one; ArgumentError if the processor lacks it.
  void set_isa(Isa isa) {
    require(isa <= best_isa(), "Cpu::set_isa", "isa", std::string("at most ") + name(best_isa()), name(isa));
    isa_ = isa;
  }

  /// body(i) for every i in [0, tasks). The body must not throw and must not use the workspace: take scratch before,
  /// one piece per task.
  template <class F>
  void parallel_for(index_t tasks, F&& body) {
    if (tasks <= 1 || parallel_.threads == 1 || !parallel_.run) {
      for (index_t i = 0; i < tasks; ++i) body(i);
      return;
    }
    using Fn = std::remove_reference_t<F>;
    parallel_.run(
        parallel_.state, tasks, [](void* data, index_t i) { (*static_cast<Fn*>(data))(i); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  /// body(first, last, part) over at most threads() contiguous parts of [0, n), each at least `grain` long unless
  /// n is less.
  /// part is in [0, parts(n, grain)): an index for per-part scratch.
  template <class F>
  void parallel_ranges(index_t n, index_t grain, F&& body) {
    const index_t p = parts(n, grain);
    parallel_for(p, [&](index_t i) { body(n * i / p, n * (i + 1) / p, i); });
  }

  index_t parts(index_t n, index_t grain) const {
    if (n <= 0) return 0;
    const index_t by_grain = grain > 1 ? n / grain : n;
    if (by_grain < 1) return 1;
    return by_grain < parallel_.threads ? by_grain : parallel_.threads;
  }

 private:
  ParallelFor parallel_;
  Workspace workspace_;
  Isa isa_ = best_isa();
};

}  // namespace decant

#endif
