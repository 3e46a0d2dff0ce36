#pragma once
// Ways to run in parallel for tests. real_threads: threads that the sanitizers can follow. reversed_threads: claims
// threads and runs the tasks backwards on this one, so that whatever depends on order shows; with ThreadSanitizer it
// has the threads, so that whatever tasks share shows.
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "decant/core/cpu.hpp"
#include "sanitizers.hpp"

inline decant::ParallelFor real_threads(int threads) {
  return {[](void* count, decant::index_t tasks, decant::ParallelFor::Body body, void* data) {
            std::atomic<decant::index_t> left{tasks};
            std::vector<std::thread> workers;
            for (auto i = reinterpret_cast<std::uintptr_t>(count); i > 0; --i) {
              workers.emplace_back([&] {
                for (decant::index_t task = --left; task >= 0; task = --left) body(data, task);
              });
            }
            for (std::thread& worker : workers) worker.join();
          },
          reinterpret_cast<void*>(static_cast<std::uintptr_t>(threads)), threads};
}

inline decant::ParallelFor reversed_threads(int threads) {
#if DECANT_TESTS_SANITIZE_THREADS
  return real_threads(threads);
#else
  return {[](void*, decant::index_t tasks, decant::ParallelFor::Body body, void* data) {
            for (decant::index_t i = tasks - 1; i >= 0; --i) body(data, i);
          },
          nullptr, threads};
#endif
}
