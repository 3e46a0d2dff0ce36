// Serving several requests over one pool of pages: whatever the scheduler does, each text is the one that the request
// would get alone.
#include "serve.hpp"

#include <string>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/fair_share.hpp"
#include "decant/scheduling/memory_safe.hpp"
#include "decant/scheduling/prefill_first.hpp"
#include "decant/scheduling/prefix_orders.hpp"
#include "decant/scheduling/sarathi.hpp"
#include "decant/scheduling/stop_rules.hpp"
#include "engine.hpp"
#include "model.hpp"

namespace serve_tests {

using namespace runtime;
using namespace decant::scheduling;

const Model& checkpoint() {
  static const Model model(std::string(DECANT_SOURCE_DIR) + "/examples/model");
  return model;
}

/// Two groups that begin alike, and requests of different lengths.
std::vector<ServedRequest> load() {
  const Config& c = checkpoint().config;
  const std::string text = read_text_file(checkpoint().folder + "/evaluation.txt");
  std::vector<ServedRequest> out;
  for (std::size_t i = 0; i < 10; ++i) {
    const std::string head = text.substr(i % 2 == 0 ? 0 : 400, 100);
    out.push_back({prompt_tokens(c, head + text.substr(600 + 37 * i, 3 + 7 * i)), static_cast<index_t>(4 + 5 * (i % 4)),
                   i < 6 ? 0u : 1'000'000u * i});
  }
  return out;
}

std::vector<Tokens> alone(const std::vector<ServedRequest>& requests) {
  decant::Cpu cpu;
  const Model& m = checkpoint();
  const auto engine = make_engine(cpu, m.config, m.weights, AnyStack{}, parse_cache("ragged", "f32"));
  std::vector<Tokens> out;
  for (const ServedRequest& r : requests) {
    out.push_back(generate(*engine, r.prompt, r.count, Sampler(0), [](const Tokens&) {}).tokens);
  }
  return out;
}

template <class Policy>
void same_texts(const char* name, const Policy& policy) {
  INFO(name);
  const auto requests = load();
  static const std::vector<Tokens> expected = alone(requests);
  decant::Cpu cpu;
  const Model& m = checkpoint();
  struct Case {
    ServingOptions options;
    bool preempts, hits;
  };
  const Case cases[] = {
      {{.limits = {64, 8}, .memory = {.blocks = 128, .block_tokens = 16}}, false, true},
      {{.limits = {7, 3}, .memory = {.blocks = 128, .block_tokens = 16}}, false, true},
      {{.limits = {512, 8}, .memory = {.blocks = 19, .block_tokens = 16}}, true, true},
      {{.limits = {64, 8}, .memory = {.blocks = 700, .block_tokens = 1, .reuse = false}}, false, false},
  };
  for (const Case& c : cases) {
    const ServingRun run = serve(cpu, m.config, m.weights, requests, policy, c.options);
    CHECK(run.texts == expected);
    CHECK((run.hit_tokens > 0) == c.hits);
    std::uint64_t stored = 0;
    for (const RequestRecord& r : run.records) {
      stored += r.prompt + r.output - 1;
      CHECK(r.arrival < r.first_token);
      CHECK(r.first_token <= r.end);
    }
    CHECK(run.computed_tokens + run.hit_tokens == stored + run.lost_tokens);
  }
}

TEST_CASE("serve: texts are those of each request alone, under every scheduler", "[engine][scheduling]") {
  same_texts("fcfs", Fcfs{});
  same_texts("sjf", Sjf{});
  same_texts("mc-sf", McSf{});
  same_texts("prefill-first", PrefillFirst{});
  same_texts("sarathi", Sarathi<CalibratedCost>(5'000'000, {model_shape(checkpoint().config), 500'000, 1u << 30, 1u << 28}));
  same_texts("fair-share", FairShare{});
  same_texts("lpm", Lpm{});
  same_texts("feather", PrefixHomogeneous<ChunkLossRule>({}, {.chunk = 16}));
}

TEST_CASE("serve: memory that runs out preempts, and texts stay", "[engine][scheduling]") {
  const auto requests = load();
  decant::Cpu cpu;
  const Model& m = checkpoint();
  const ServingOptions tight{.limits = {512, 8}, .memory = {.blocks = 14, .block_tokens = 16, .reuse = false}};
  const ServingRun run = serve(cpu, m.config, m.weights, requests, Fcfs{}, tight);
  CHECK(run.preemptions > 0);
  CHECK(run.texts == alone(requests));
  CHECK(serve(cpu, m.config, m.weights, requests, McSf{}, tight).preemptions == 0);
}

TEST_CASE("BatchedLlama: bad batches are refused", "[engine][scheduling]") {
  decant::Cpu cpu;
  const Model& m = checkpoint();
  BatchedLlama model(cpu, m.config, m.weights, 4, 16);
  const Tokens tokens{1, 2, 3}, beyond{999};
  const std::vector<std::int32_t> pages{0}, outside{4};
  const auto refused = [&](BatchedLlama::Part part) { CHECK_THROWS_AS(model.run({part}), decant::ArgumentError); };
  CHECK_THROWS_AS(model.run({}), decant::ArgumentError);
  refused({{}, 0, pages});
  refused({beyond, 0, pages});
  refused({tokens, 14, pages});
  refused({tokens, -1, pages});
  refused({tokens, 0, outside});
  refused({tokens, m.config.context, pages});
  CHECK(model.run({{tokens, 0, pages}}).extent(0) == 1);
  CHECK_THROWS_AS(BatchedLlama(cpu, m.config, m.weights, 0, 16), decant::ArgumentError);
}

}  // namespace serve_tests
