// The bridges to OpenMP and TBB run every task once and give the serial results.
#include <atomic>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "decant/core/topk.hpp"
#include "decant/interop/openmp.hpp"
#include "decant/interop/tbb.hpp"

namespace {

using decant::index_t;

void runs_every_task_once(decant::Cpu& cpu) {
  for (const index_t tasks : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> times(static_cast<std::size_t>(tasks));
    cpu.parallel_for(tasks, [&](index_t i) { ++times[static_cast<std::size_t>(i)]; });
    for (const auto& t : times) REQUIRE(t == 1);
  }
  for (const index_t n : {0, 1, 5, 1001}) {
    for (const index_t grain : {1, 3, 100, 5000}) {
      std::vector<std::atomic<int>> times(static_cast<std::size_t>(n));
      std::atomic<bool> in_bounds = true;
      const index_t parts = cpu.parts(n, grain);
      cpu.parallel_ranges(n, grain, [&](index_t first, index_t last, index_t part) {
        if (part < 0 || part >= parts || first >= last) in_bounds = false;
        for (index_t i = first; i < last; ++i) ++times[static_cast<std::size_t>(i)];
      });
      REQUIRE(in_bounds);
      REQUIRE(parts <= cpu.threads());
      for (const auto& t : times) REQUIRE(t == 1);
    }
  }
}

std::vector<std::int32_t> select(decant::Cpu& cpu) {
  std::vector<float> scores(300000);
  const decant::Philox rng{1};
  for (std::uint32_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(rng(i).word[0] % 1000);
  std::vector<std::int32_t> out(70000);
  decant::top_k(cpu, scores, 70000, out.data());
  return out;
}

TEST_CASE("serial, OpenMP and TBB run the same tasks and give the same results") {
  decant::Cpu serial;
  runs_every_task_once(serial);
  const auto expected = select(serial);
  for (const int threads : {1, 2, 4}) {
    decant::Cpu openmp(decant::openmp(threads));
    REQUIRE(openmp.threads() == threads);
    runs_every_task_once(openmp);
    REQUIRE(select(openmp) == expected);

    tbb::task_arena arena(threads);
    decant::Cpu cpu(decant::tbb(arena));
    REQUIRE(cpu.threads() == threads);
    runs_every_task_once(cpu);
    REQUIRE(select(cpu) == expected);
  }
  decant::Cpu current(decant::tbb());
  runs_every_task_once(current);
  REQUIRE(select(current) == expected);
  REQUIRE_THROWS_WITH(decant::Cpu(decant::openmp(0)),
                      "decant::Cpu: argument `parallel.threads`: expected at least 1, got 0");
}

}  // namespace
