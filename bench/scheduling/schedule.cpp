// What a scheduler costs per step: everything that runs gets its token, and requests come and go as they do in a full
// engine. Items are requests scheduled. 256 running requests are the default of engines, 4,096 a large device; where
// memory is what admission looks at, as many wait. Error 0: the step is full.
#include <cstdint>
#include <string>
#include <vector>

#include "decant/scheduling/fair_share.hpp"
#include "decant/scheduling/memory_safe.hpp"
#include "decant/scheduling/stop_rules.hpp"
#include "decant/scheduling/workload.hpp"
#include "harness.hpp"

namespace {

using namespace decant::scheduling;

/// A full engine: as many run as may; each has a while to go, and one that ends is followed by another.
template <class Policy>
class Engine {
 public:
  Engine(std::uint32_t running, std::uint32_t waiting, Policy policy)
      : batch_(TokenMemory(std::uint64_t{running} * 1600), {1u << 20, running}), policy_(std::move(policy)) {
    for (std::uint32_t i = 0; i < running + waiting; ++i) arrive();
    for (int i = 0; i < 20; ++i) step();
  }

  void step() {
    batch_.begin_step(++now_);
    policy_.schedule(batch_);
    const auto sampled = batch_.complete_step(now_);
    ended_ = 0;
    for (decant::index_t i = 0; i < sampled.extent(0); ++i) {
      const RequestId id = sampled[i];
      if (batch_[id].generated < batch_[id].info.max_output) continue;
      policy_.on_finish(batch_, id);
      batch_.finish(id);
      ++ended_;
    }
    policy_.on_step_done(batch_, {now_, 1000, static_cast<std::uint32_t>(batch_.items().extent(0)), 0, 0});
    for (; ended_ > 0; --ended_) arrive();
  }
  std::uint32_t running() const { return batch_.running_count(); }

 private:
  void arrive() {
    RequestInfo info;
    info.tag = tag_++;
    info.arrival = now_;
    info.prompt = static_cast<std::uint32_t>(64 + next_() % 1024);
    info.max_output = static_cast<std::uint32_t>(64 + next_() % 256);
    info.output = LengthEstimate::exactly(info.max_output);
    info.tenant = static_cast<std::uint32_t>(next_() % 8);
    // A prefix of one of sixteen groups, in chunks of 64 tokens. More chains than there are requests at a time.
    auto& chain = chains_[tag_ % chains_.size()];
    const std::uint64_t group = next_() % 16;
    chain.clear();
    for (std::uint64_t c = 0; c < info.prompt / 64; ++c) chain.push_back(c < 6 ? group << 8 | c : ~(info.tag << 8 | c));
    info.chain = chain;
    policy_.on_arrival(batch_, batch_.arrive(info));
  }
  Batch<> batch_;
  Policy policy_;
  SplitMix64 next_{1};
  std::vector<std::vector<std::uint64_t>> chains_ = std::vector<std::vector<std::uint64_t>>(16384);
  std::uint64_t tag_ = 0;
  Nanoseconds now_ = 0;
  std::uint32_t ended_ = 0;
};

template <class Policy>
void add(bench::Suite& suite, const char* name, long running, const Policy& policy) {
  suite.add({.primitive = "schedule", .policy = name, .shape = bench::shape("running", running, "waiting", running)},
            [running, policy](bench::Row& row) {
              Engine<Policy> engine(static_cast<std::uint32_t>(running), static_cast<std::uint32_t>(running), policy);
              row.measure({.ours = [&] { engine.step(); },
                           .items = static_cast<double>(running),
                           .error = engine.running() >= static_cast<std::uint32_t>(running) * 9 / 10 ? 0.0 : 1.0});
            });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("scheduling", argc, argv);
  for (const long running : suite.sizes({256, 4096})) {
    add(suite, "Fcfs", running, Fcfs{});
    add(suite, "Sjf", running, Sjf{});
    add(suite, "FairShare", running, FairShare{});
    add(suite, "McSf", running, McSf{});
    add(suite, "PrefixHomogeneous rule=loss", running, PrefixHomogeneous<ChunkLossRule>{});
  }
  return suite.run();
}
