#pragma once
// A ParallelFor that claims threads and runs the tasks backwards on this one: whatever depends on order shows.
#include "decant/core/cpu.hpp"

inline decant::ParallelFor reversed_threads(int threads) {
  return {[](void*, decant::index_t tasks, decant::ParallelFor::Body body, void* data) {
            for (decant::index_t i = tasks - 1; i >= 0; --i) body(data, i);
          },
          nullptr, threads};
}
