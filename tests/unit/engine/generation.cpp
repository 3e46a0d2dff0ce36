// Whole generations: layouts, threads and full budgets change nothing; the checkpoint says what Hugging Face's code
// says.
#include "engine.hpp"

#include <filesystem>

#include "catch_compat.hpp"
#include "generate.hpp"
#include "../runtime/loaded_model.hpp"
#include "threads.hpp"

namespace runtime_test {
namespace {

using runtime::AnyStack;
using runtime::Evict;
using runtime::Logits;
using runtime::parse_cache;
using runtime::Tokens;

AnyStack stack_of(const std::string& composition, const Loaded& model) {
  return runtime::parse_composition(composition, model.config).stack;
}

runtime::Generation greedy(const Loaded& model, const AnyStack& stack, const Tokens& prompt, index_t count,
                           const std::string& cache = "ragged", const std::string& dtype = "f32",
                           decant::ParallelFor parallel = {}) {
  decant::Cpu cpu(parallel);
  const auto engine = runtime::make_engine(cpu, model.config, model.weights, stack, parse_cache(cache, dtype));
  return runtime::generate(*engine, prompt, count, runtime::Sampler(), [](const Tokens&) {});
}

const char* const layouts[] = {"dense", "paged:1", "paged:16", "paged:64", "ragged"};

TEST_CASE("engine: greedy text is the same in every cache layout and with 1 or 2 threads", "[engine]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const Tokens prompt = random_prompt(150);
  for (const char* composition : {"full", "visibility=speed:0.5", "evict=capkv:0.5", "evict=snapkv:0.5",
                                  "visibility=speed:0.75 evict=streaming:0.3", "attention=santa:n/8"}) {
    const AnyStack stack = stack_of(composition, model);
    for (const char* dtype : {"f32", "f16", "bf16"}) {
      const auto expected = greedy(model, stack, prompt, 40, "dense", dtype);
      for (const char* layout : layouts) {
        for (const int threads : {1, 2}) {
          INFO(composition << ", " << layout << ", " << dtype << ", " << threads << " threads");
          const auto got =
              greedy(model, stack, prompt, 40, layout, dtype, threads == 2 ? real_threads(2) : decant::ParallelFor{});
          CHECK(got.tokens == expected.tokens);
          CHECK(got.kv_bytes == expected.kv_bytes);
        }
      }
    }
  }
}

TEST_CASE("engine: every policy at a whole budget is the full model", "[engine]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const Tokens prompt = random_prompt(150);
  const auto expected = greedy(model, AnyStack{}, prompt, 30);
  for (const auto& [name, policy] : runtime::known_evictions()) {
    INFO(name);
    for (const char* budget : {":1", ":150t", ":100000t"}) {
      if (name == "full") continue;
      const auto got = greedy(model, stack_of("evict=" + name + budget, model), prompt, 30);
      CHECK(got.tokens == expected.tokens);
      CHECK(got.kv_bytes == expected.kv_bytes);
    }
  }
}

TEST_CASE("engine: every policy keeps its budget, now or later, and the result can be decoded", "[engine]") {
  const TemporaryFolder folder;
  const Shape shape;
  write_model(folder, shape);
  const Loaded model(folder);
  const Tokens prompt = random_prompt(200);
  const Tokens next = random_prompt(6, 256, 9);
  const index_t row = 2 * shape.kv_heads * shape.head_dim * 4;
  decant::Cpu cpu;
  for (const char* visibility : {"full", "speed:0.5"}) {
    const bool speed = visibility[0] == 's';
    for (const auto& [name, policy] : runtime::known_evictions()) {
      INFO(visibility << ", " << name);
      const std::string eviction = name == "full" ? name : name + ":0.5";
      const AnyStack stack = stack_of("visibility=" + std::string(visibility) + " evict=" + eviction, model);
      const auto engine = runtime::make_engine(cpu, model.config, model.weights, stack, parse_cache("ragged", "f32"));
      const auto now = copy(engine->prefill(prompt, 6));
      const index_t kept = name == "full" ? 200 : 100;
      CHECK(engine->kv_bytes() == row * (speed ? 2 * kept + 2 : 4 * kept));
      const auto after = copy(engine->decode(next, Logits::all));
      CHECK(engine->kv_bytes() == row * ((speed ? 2 * kept + 2 : 4 * kept) + 6 * 4));
      for (const float x : after) REQUIRE(std::isfinite(x));

      // The same eviction of a copy of the whole cache, and the original untouched by it.
      CHECK(copy(engine->prefill(prompt, 6, Logits::last, Evict::later)) == now);
      const index_t whole = engine->kv_bytes();
      const auto other = engine->copy();
      other->evict(stack.eviction, stack.budget);
      CHECK(engine->kv_bytes() == whole);
      CHECK(copy(other->decode(next, Logits::all)) == after);
      CHECK(error_of<decant::ArgumentError>([&] { other->evict(stack.eviction, stack.budget); }) != "no error");
    }
  }
}

TEST_CASE("engine: heads that keep different numbers need a ragged cache, and are told so", "[engine]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const AnyStack stack = stack_of("evict=ada:0.4", model);
  const Tokens prompt = random_prompt(150);
  CHECK_THAT(error_of<decant::ArgumentError>([&] { greedy(model, stack, prompt, 2, "dense"); }),
             catch_compat::contains("RaggedKV"));
  CHECK(greedy(model, stack, prompt, 2, "ragged").tokens.size() == 2);
}

TEST_CASE("engine: feeding tokens at once or one by one gives the same distributions", "[engine]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const Tokens prompt = random_prompt(100);
  decant::Cpu cpu;
  const auto engine = runtime::make_engine(cpu, model.config, model.weights, {}, parse_cache("ragged", "f32"));
  const Tokens text = runtime::generate(*engine, prompt, 20, runtime::Sampler(), [](const Tokens&) {}).tokens;
  const auto one_by_one = runtime::forced_logits(*engine, prompt, text);
  REQUIRE(one_by_one.size() == 20 * 256);
  for (std::size_t t = 0; t < 20; ++t) {  // greedy text is what the forced logits are largest at
    CHECK(runtime::Sampler()(decant::View<const float, 1>(one_by_one.data() + t * 256, 256), 0) == text[t]);
  }
  engine->prefill(prompt, 20);
  const auto at_once = copy(engine->decode({text.begin(), text.end() - 1}, Logits::all));
  for (std::size_t t = 0; t < 19; ++t) {
    const Row expected(one_by_one.begin() + static_cast<std::ptrdiff_t>(t + 1) * 256,
                       one_by_one.begin() + static_cast<std::ptrdiff_t>(t + 2) * 256);
    CHECK(distance(decant::View<const float, 1>(at_once.data() + t * 256, 256), expected) < 2e-5);
  }
  const auto same = runtime::compare_logits(one_by_one, one_by_one, 256);
  CHECK(same.kl == 0);
  CHECK(same.kl_stderr == 0);
  CHECK(same.top1_agreement == 1);
  const auto one = runtime::compare_logits({0, std::log(3.0f), 0, 0}, {0, 0, std::log(3.0f), 0}, 2);
  // p = (1/4, 3/4) against (1/2, 1/2), and the other way round.
  const double first = 0.25 * std::log(0.5) + 0.75 * std::log(1.5);
  const double second = 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25);
  CHECK(one.kl == Approx((first + second) / 2).epsilon(1e-6));
  CHECK(one.kl_stderr == Approx(std::abs(first - second) / 2).epsilon(1e-5));
  CHECK(one.top1_agreement == 0.5);
}

TEST_CASE("engine: sampling is reproducible and follows the distribution", "[engine]") {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f)};  // 1/8, 2/8, 5/8
  const decant::View<const float, 1> view(logits);
  runtime::Sampler a(1.0, 42), b(1.0, 42), cold(1e-3, 42);
  int counts[3] = {};
  for (index_t step = 0; step < 8000; ++step) {
    const auto token = a(view, step);
    REQUIRE(b(view, step) == token);
    REQUIRE(cold(view, step) == 2);
    ++counts[token];
  }
  // Chi-square with 2 degrees of freedom; the seed is fixed, 13.8 is passed by chance in 1 of 1,000.
  double chi = 0;
  const double expected[3] = {1000, 2000, 5000};
  for (int i = 0; i < 3; ++i) chi += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
  CHECK(chi < 13.8);
  CHECK(runtime::Sampler()(decant::View<const float, 1>(std::vector<float>{1, 3, 3}), 0) == 1);
}

TEST_CASE("engine: the shipped checkpoint computes what Hugging Face's code computes", "[engine]") {
  const std::string folder = std::string(DECANT_SOURCE_DIR) + "/examples/model";
  if (!std::filesystem::exists(folder + "/witness.json")) {
    decant_skip("examples/model/witness.json is not there");
    return;
  }
  const Loaded model(folder);
  const Json witness = Json::parse(runtime::read_text_file(folder + "/witness.json"));
  const Tokens prompt = runtime::prompt_tokens(model.config, runtime::read_text_file(folder + "/prompt.txt"));
  REQUIRE(prompt.size() == witness["tokens"].get<std::size_t>());

  decant::Cpu cpu;
  const auto worst = [&](const char* dtype, const Json& expected) {
    const auto engine = runtime::make_engine(cpu, model.config, model.weights, {}, parse_cache("ragged", dtype));
    const auto logits = engine->prefill(prompt, 0, Logits::all);
    double most = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto position = witness["positions"][i].get<index_t>();
      for (index_t v = 0; v < 256; ++v) {
        const double difference =
            std::abs(static_cast<double>(logits(position, v)) - expected[i][static_cast<std::size_t>(v)].get<double>());
        most = difference >= 0 ? std::fmax(most, difference) : HUGE_VAL;
      }
    }
    return most;
  };
  CHECK(worst("f32", witness["logits_fp32"]) < 1e-3);

  // Hugging Face's bf16 run rounds every intermediate result to 8 bits, ours the KV rows only: ours must lie within the
  // distance that its bf16 run has from its fp32 run.
  double theirs = 0;
  for (std::size_t i = 0; i < witness["logits_bf16"].size(); ++i) {
    for (std::size_t v = 0; v < 256; ++v) {
      theirs = std::fmax(
          theirs, std::abs(witness["logits_bf16"][i][v].get<double>() - witness["logits_fp32"][i][v].get<double>()));
    }
  }
  CHECK(worst("bf16", witness["logits_fp32"]) < theirs);
  CHECK(worst("bf16", witness["logits_bf16"]) < 2 * theirs);

  const Tokens expected = witness["greedy_fp32"].get<Tokens>();
  CHECK(greedy(model, {}, prompt, static_cast<index_t>(expected.size())).tokens == expected);
}

}  // namespace
}  // namespace runtime_test
