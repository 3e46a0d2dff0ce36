// A server's loop with real tokens: requests come, a Scheduler plans steps of prompt chunks and single tokens over one
// pool of KV pages, BatchedLlama runs them, and shared prefixes are computed once. The simulator's loop with a model in
// it, so that what a policy does in simulation and here can be compared. Greedy: the text of a request does not depend
// on what runs beside it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include <decant/scheduling/block_memory.hpp>
#include <decant/scheduling/calibrate.hpp>
#include <decant/scheduling/scheduler.hpp>
#include <decant/scheduling/simulated_engine.hpp>

#include "batched_llama.hpp"
#include "generate.hpp"

namespace runtime {

namespace scheduling = decant::scheduling;

struct ServedRequest {
  Tokens prompt;
  index_t count = 1;                        // tokens to generate
  scheduling::Nanoseconds arrival = 0;      // since the start
};

struct ServingRun {
  std::vector<Tokens> texts;                             // generated, in the order of the requests
  std::vector<scheduling::RequestRecord> records;        // likewise; instants since the start, measured
  std::vector<scheduling::MeasuredStep> steps;           // what each step had to do, and its time
  std::uint64_t computed_tokens = 0, hit_tokens = 0, lost_tokens = 0, preemptions = 0;
  double seconds = 0;
};

struct ServingOptions {
  scheduling::BatchLimits limits{};
  scheduling::BlockMemoryOptions memory{};
};

/// As the cost models see it: rows are floats here.
inline scheduling::ModelShape model_shape(const Config& c) {
  const auto u = [](index_t n) { return static_cast<std::uint32_t>(n); };
  return {u(c.layers), u(c.hidden), u(c.ffn), u(c.heads), u(c.kv_heads), u(c.head_dim), u(c.vocab), 32, 32};
}

/// Serves all requests under `policy`; where nothing runs, time jumps to the next arrival, as in simulation. ArgumentError: a request larger than memory, or a policy that plans nothing.
template <class Policy>
ServingRun serve(decant::Cpu& cpu, const Config& config, const Weights& weights,
                 const std::vector<ServedRequest>& requests, Policy policy, const ServingOptions& options) {
  using Clock = std::chrono::steady_clock;
  using scheduling::Nanoseconds;
  using scheduling::RequestId;
  constexpr const char* where = "runtime::serve";
  scheduling::Batch<scheduling::BlockMemory> batch(scheduling::BlockMemory(options.memory), options.limits);
  BatchedLlama model(cpu, config, weights, options.memory.blocks, options.memory.block_tokens);
  const scheduling::ModelShape shape = model_shape(config);

  struct Live {
    std::size_t request = 0;
    Tokens tokens;  // prompt, then what was generated
    Nanoseconds last = 0;
    bool admitted = false;
  };
  ServingRun run;
  run.texts.resize(requests.size());
  run.records.resize(requests.size());
  std::vector<std::vector<std::uint64_t>> chains(requests.size());
  std::vector<std::size_t> order(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return requests[a].arrival < requests[b].arrival; });
  std::vector<Live> live;
  Sampler greedy;
  Nanoseconds now = 0;
  std::size_t next = 0, done = 0;
  std::uint64_t step = 0;
  while (done < requests.size()) {
    if (batch.running_count() + batch.waiting_count() == 0) now = std::max(now, requests[order[next]].arrival);
    for (; next < order.size() && requests[order[next]].arrival <= now; ++next) {
      const std::size_t i = order[next];
      const ServedRequest& r = requests[i];
      decant::require(r.count >= 1, where, "requests", "at least 1 token to generate", r.count);
      const std::vector<std::uint32_t> words(r.prompt.begin(), r.prompt.end());
      chains[i] = scheduling::chain_keys(words, options.memory.block_tokens);
      scheduling::RequestInfo info;
      info.tag = i;
      info.arrival = r.arrival;
      info.prompt = static_cast<std::uint32_t>(r.prompt.size());
      info.max_output = static_cast<std::uint32_t>(r.count);
      info.output = scheduling::LengthEstimate::exactly(info.max_output);
      info.chain = chains[i];
      const RequestId id = batch.arrive(info);
      if (id >= live.size()) live.resize(id + std::size_t{1});
      live[id] = {i, r.prompt, 0, false};
      run.records[i] = {.tag = i, .prompt = info.prompt, .output = info.max_output, .arrival = r.arrival};
      policy.on_arrival(batch, id);
    }
    batch.begin_step(now);
    policy.schedule(batch);
    const auto items = batch.items();
    decant::require(!items.empty(), where, "policy", "a plan while requests wait", "none");

    std::vector<BatchedLlama::Part> parts;
    std::vector<scheduling::StepShape> shapes;
    for (index_t i = 0; i < items.extent(0); ++i) {
      const RequestId id = items[i].id;
      const scheduling::RequestState& state = batch[id];
      if (!live[id].admitted) run.records[live[id].request].hit_tokens = state.computed;
      live[id].admitted = true;
      parts.push_back({View<const Token, 1>(live[id].tokens.data() + state.computed, items[i].tokens), state.computed,
                       batch.memory().blocks(id)});
      shapes.push_back({items[i].tokens, state.computed});
      run.computed_tokens += items[i].tokens;
    }
    const auto start = Clock::now();
    const View<const float, 2> logits = model.run(parts);
    const auto took = static_cast<Nanoseconds>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
    run.steps.push_back({scheduling::step_work(shape, shapes), took});
    now += took;

    const auto sampled = batch.complete_step(now);
    for (index_t i = 0, s = 0; i < items.extent(0) && s < sampled.extent(0); ++i) {
      if (items[i].id != sampled[s]) continue;
      const RequestId id = sampled[s++];
      Live& l = live[id];
      scheduling::RequestRecord& record = run.records[l.request];
      l.tokens.push_back(greedy(logits[i], 0));
      if (batch[id].generated == 1) record.first_token = now;
      else record.longest_gap = std::max(record.longest_gap, now - l.last);
      l.last = now;
      if (batch[id].generated < record.output) continue;
      record.end = now;
      record.preemptions = batch[id].preemptions;
      run.texts[l.request].assign(l.tokens.begin() + record.prompt, l.tokens.end());
      policy.on_finish(batch, id);
      batch.finish(id);
      ++done;
    }
    policy.on_step_done(batch, {step++, took, static_cast<std::uint32_t>(items.extent(0)), 0,
                                static_cast<std::uint32_t>(sampled.extent(0))});
  }
  run.hit_tokens = batch.hit_tokens();
  run.lost_tokens = batch.lost_tokens();
  run.preemptions = batch.preemptions();
  run.seconds = static_cast<double>(now) * 1e-9;
  return run;
}

}  // namespace runtime
