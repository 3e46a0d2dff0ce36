// A ragged batch keeps all threads busy. Time is counted in rows read: every thread waits until no other is behind it,
// so that the measurement is the same on any machine, whatever the number of its processors.

#include <atomic>
#include <thread>

#include "catch_compat.hpp"
#include "problem.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

/// The clocks of the threads of one parallel_for.
struct Clocks {
  static constexpr long stopped = 1L << 60;
  std::vector<std::atomic<long>> now;
  explicit Clocks(std::size_t threads) : now(threads) {}

  void tick(std::size_t own) {
    const long at = ++now[own];
    for (bool behind = true; behind;) {
      behind = false;
      for (const std::atomic<long>& other : now) behind = behind || other.load() + 64 < at;
      if (behind) std::this_thread::yield();
    }
  }
};

thread_local Clocks* clocks = nullptr;
thread_local std::size_t own_clock = 0;

/// A dense cache whose rows are asked for one by one, each a tick of the thread's clock.
struct SlowCache : kv::DenseKV<const float> {
  index_t run(index_t, index_t, index_t) const { return 1; }
  const float* value(index_t s, index_t h, index_t t) const {
    if (clocks != nullptr) clocks->tick(own_clock);
    return kv::DenseKV<const float>::value(s, h, t);
  }
};

/// Every task on a thread of its own; keeps how many rows each has read.
struct Recorder {
  std::vector<long> rows;

  static void run(void* state, index_t tasks, ParallelFor::Body body, void* data) {
    Clocks all(at(tasks));
    std::vector<long> read(at(tasks));
    std::vector<std::thread> threads;
    for (index_t i = 0; i < tasks; ++i)
      threads.emplace_back([&, i] {
        clocks = &all;
        own_clock = at(i);
        body(data, i);
        read[at(i)] = all.now[at(i)].load();
        all.now[at(i)] = Clocks::stopped;
      });
    for (std::thread& t : threads) t.join();
    Recorder& self = *static_cast<Recorder*>(state);
    if (std::accumulate(read.begin(), read.end(), 0L) > std::accumulate(self.rows.begin(), self.rows.end(), 0L))
      self.rows = read;
  }
};

TEST_CASE("Dense: a ragged batch splits evenly over threads, and not a bit changes", "[threads]") {
  const Dense a{.chunk = 64};
  for (const std::vector<index_t>& lengths :
       {std::vector<index_t>{3000}, {3000, 40, 50, 60, 70, 80, 90, 100, 20, 30, 10, 0}, {700, 900, 1, 800}}) {
    const Problem<float> p(2, 2, 8, 8, lengths);
    const DenseCache<float> dense(p);
    const SlowCache cache{dense.view};
    Cpu serial;
    const Result expected = run(serial, p, dense.view, a);
    const double total = 2.0 * static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), index_t{0}));
    for (const int threads : {2, 3}) {
      Recorder recorder;
      Cpu cpu(ParallelFor{&Recorder::run, &recorder, threads});
      CHECK(run(cpu, p, cache, a).same_bits(expected));
      REQUIRE(recorder.rows.size() == static_cast<std::size_t>(threads));
      const double most = static_cast<double>(*std::max_element(recorder.rows.begin(), recorder.rows.end()));
      INFO(lengths.size() << " sequences, " << threads << " threads: " << most << " of " << total);
      CHECK(most <= total / threads + 2.5 * 64);  // an even share, and at most a chunk or two
    }
  }
}

}  // namespace
}  // namespace attention_test
