// SANTA in the engine: prompts are exact, decoding draws; with many samples the text is dense attention's, with fewer
// the distance grows; random numbers are the seed's.
#include <filesystem>

#include "catch_compat.hpp"
#include "generate.hpp"
#include "../runtime/loaded_model.hpp"

namespace runtime_test {
namespace {

using runtime::Tokens;

struct Engine {
  const Loaded& model;
  decant::Cpu cpu = {};

  std::unique_ptr<runtime::Engine> make(const std::string& composition, std::uint64_t seed = 0) {
    const auto stack = runtime::parse_composition(composition, model.config, seed).stack;
    return runtime::make_engine(cpu, model.config, model.weights, stack, runtime::parse_cache("ragged", "f32"));
  }
  Tokens greedy(const std::string& composition, const Tokens& prompt, index_t count, std::uint64_t seed = 0) {
    return runtime::generate(*make(composition, seed), prompt, count, runtime::Sampler(), [](const Tokens&) {}).tokens;
  }
  std::vector<float> forced(const std::string& composition, const Tokens& prompt, const Tokens& tokens,
                            std::uint64_t seed = 0) {
    return runtime::forced_logits(*make(composition, seed), prompt, tokens);
  }
};

TEST_CASE("santa: prompts are computed exactly, bit for bit, under any visibility and eviction", "[santa]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const Tokens prompt = random_prompt(150);
  Engine engine{model};
  for (const std::string others : {"full", "visibility=speed:0.5 evict=snapkv:0.5"}) {
    const auto dense = engine.make(others), sampled = engine.make(others + " attention=santa:2");
    const auto expected = copy(dense->prefill(prompt, 4, runtime::Logits::all));
    CHECK(copy(sampled->prefill(prompt, 4, runtime::Logits::all)) == expected);
    CHECK(copy(sampled->decode({7})) != copy(dense->decode({7})));
    CHECK(sampled->kv_bytes() == dense->kv_bytes());
  }
}

TEST_CASE("santa: the distance from dense falls with the samples; seeds differ, and the same seed is the same",
          "[santa]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const Tokens prompt = random_prompt(150);
  Engine engine{model};
  const Tokens text = engine.greedy("full", prompt, 30);
  const auto expected = engine.forced("full", prompt, text);
  for (const char* scheme : {"plain", "systematic", "threshold_systematic"}) {
    double before = HUGE_VAL;
    for (const char* samples : {"n/50", "n/5", "2n"}) {
      INFO(scheme << " " << samples);
      const std::string composition = "attention=santa:" + std::string(samples) + "," + scheme;
      const auto first = engine.forced(composition, prompt, text, 1);
      const auto d = runtime::compare_logits(expected, first, 256);
      CHECK(d.kl < 0.5 * before);
      CHECK((d.kl > 0 || std::string(samples) == "2n"));
      CHECK(d.kl_stderr <= d.kl);
      before = d.kl;
      CHECK(engine.forced(composition, prompt, text, 1) == first);
      if (std::string(samples) != "2n") CHECK(engine.forced(composition, prompt, text, 2) != first);
    }
  }
}

TEST_CASE("santa: a share of the keys is that many samples of the longest head, rounded up", "[santa]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const Tokens prompt = random_prompt(150);
  Engine engine{model};
  const auto decoded = [&](const std::string& attention) {
    const auto e = engine.make("attention=" + attention);
    e->prefill(prompt, 1);
    return copy(e->decode({7}));  // 151 keys
  };
  CHECK(decoded("santa:n/16") == decoded("santa:10"));
  CHECK(decoded("santa:n/151") == decoded("santa:1"));
  CHECK(decoded("santa:n/75.5") == decoded("santa:2"));
  CHECK(decoded("santa:n/75") == decoded("santa:3"));
  CHECK(decoded("santa:n") == decoded("santa:151"));
  CHECK(decoded("santa:0.5n,plain") == decoded("santa:76,plain"));
  CHECK_THAT(error_of<decant::ArgumentError>([&] { decoded("santa:8000n"); }),
             catch_compat::contains("`samples`: expected 0 to 2^20, got 1208000"));
}

TEST_CASE("santa: with 64 samples per key the greedy text is dense attention's", "[santa]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  Engine engine{model};
  const Tokens prompt = random_prompt(150);
  CHECK(engine.greedy("attention=santa:64n", prompt, 40) == engine.greedy("full", prompt, 40));
  CHECK(engine.greedy("attention=santa:n/50,plain", prompt, 40) != engine.greedy("full", prompt, 40));
}

TEST_CASE("santa: on the shipped checkpoint and prompt", "[santa]") {
  const std::string folder = std::string(DECANT_SOURCE_DIR) + "/examples/model";
  if (!std::filesystem::exists(folder + "/model.safetensors")) {
    decant_skip("examples/model/model.safetensors is not there");
    return;
  }
  const Loaded model(folder);
  const Tokens prompt = runtime::prompt_tokens(model.config, runtime::read_text_file(folder + "/prompt.txt"));
  Engine engine{model};
  CHECK(engine.greedy("attention=santa:64n", prompt, 30) == engine.greedy("full", prompt, 30));

  // The last 200 tokens of the prompt, one by one.
  const Tokens before(prompt.begin(), prompt.end() - 200), text(prompt.end() - 200, prompt.end());
  const auto expected = engine.forced("full", before, text);
  const auto d = runtime::compare_logits(expected, engine.forced("attention=santa:n/16", before, text), 256);
  CHECK(d.kl > 0);
  CHECK(d.kl < 1e-3);
  CHECK(d.kl_stderr < 0.2 * d.kl);
}

}  // namespace
}  // namespace runtime_test
