// decant-generate: text from a Llama checkpoint under any composition of policies, and a table that compares several.
//   decant-generate --model examples/model --prompt-file examples/model/prompt.txt --evict capkv:0.25
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "generate.hpp"
#include "options.hpp"
#include "output.hpp"
#include "packer.hpp"
#include "progress.hpp"
#include "speculate.hpp"

namespace {

using namespace runtime;

struct Options {
  CommonOptions common;
  std::string prompt_file;
  std::string prompt;
  index_t max_tokens = 100;
  double temperature = 0;
  std::uint64_t seed = 0;
  std::string visibility = "full";
  std::string evict = "full";
  std::string attention = "dense";
  std::string weights = "stored";
  std::string calibration;
  std::string draft = "none";
  SpeculationNames speculation;
  std::vector<std::string> compare;
  int runs = 5;
  index_t kl_on_prompt = 0;
};

struct Result {
  Composition composition;
  const Weights* weights = nullptr;
  std::vector<Generation> generations;
  Distance distance;

  double median_of(double Generation::*field) const {
    std::vector<double> values;
    for (const Generation& g : generations) values.push_back(g.*field);
    return median(std::move(values));
  }
};

std::string read_prompt(const Options& o) {
  if (!o.prompt.empty()) return o.prompt;
  if (!o.prompt_file.empty() && o.prompt_file != "-") return read_text_file(o.prompt_file);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

/// While decoding, the prompt left out.
double tokens_per_second(double tpot_ms) {
  return tpot_ms > 0 ? 1000 / tpot_ms : 0;
}

/// Tokens per step of the model; null without a drafter.
Json acceptance_length(const Result& r) {
  const double length = r.median_of(&Generation::acceptance_length);
  return length > 0 ? Json(length) : Json(nullptr);
}

Json to_json(const Result& r) {
  return {{"policies", r.composition.text},
          {"ttft_ms", r.median_of(&Generation::ttft_ms)},
          {"tpot_ms", r.median_of(&Generation::tpot_ms)},
          {"kv_bytes", r.generations[0].kv_bytes},
          {"weight_bytes", r.weights->bytes},
          {"kl", r.distance.kl},
          {"kl_stderr", r.distance.kl_stderr},
          {"top1_agreement", r.distance.top1_agreement},
          {"tokens_per_second", tokens_per_second(r.median_of(&Generation::tpot_ms))},
          {"acceptance_length", acceptance_length(r)},
          {"text", tokens_to_bytes(r.generations[0].tokens)}};
}

void print_table(const std::vector<Result>& results) {
  std::vector<std::vector<std::string>> table = {
      {"policies", "TTFT ms", "TPOT ms", "KV KiB", "weights KiB", "KL (nats)", "std. error", "top-1 agreement"}};
  for (const Result& r : results) {
    table.push_back({r.composition.text, fixed(r.median_of(&Generation::ttft_ms), 1),
                     fixed(r.median_of(&Generation::tpot_ms), 3),
                     fixed(static_cast<double>(r.generations[0].kv_bytes) / 1024, 1),
                     fixed(static_cast<double>(r.weights->bytes) / 1024, 1), fixed(r.distance.kl, 6),
                     fixed(r.distance.kl_stderr, 6), fixed(100 * r.distance.top1_agreement, 1) + " %"});
  }
  std::cout << markdown_table(table);
}

void require_speculation(const Options& o, const Composition& c) {
  decant::require(std::holds_alternative<decant::attention::Dense>(c.stack.attention.policy), "runtime", "--attention",
                  "dense where tokens are drafted", o.attention);
}

void run(const Options& o) {
  const bool comparing = !o.compare.empty();
  decant::require(o.max_tokens >= 1, "runtime", "--max-tokens", "at least 1", o.max_tokens);
  decant::require(o.runs >= 1, "runtime", "--runs", "at least 1", o.runs);
  decant::require(o.temperature >= 0, "runtime", "--temperature", "at least 0", o.temperature);
  decant::Cpu cpu(parallel_for_threads(o.common.threads));
  const CacheChoice cache = parse_cache(o.common.cache, o.common.kv_dtype);
  if (!o.common.json.empty()) require_writable(o.common.json, "--json");

  const Model model(o.common.model, read_packed);
  require_byte_vocabulary(model.config);
  std::vector<Result> results;
  for (const std::string& text : o.compare)
    results.push_back({parse_composition(text, model.config, o.seed), {}, {}, {}});
  if (!comparing) {
    const std::string text = "visibility=" + o.visibility + " evict=" + o.evict + " attention=" + o.attention;
    results.push_back({parse_composition(text, model.config, o.seed), {}, {}, {}});
    results[0].composition.weights = o.weights;
    if (o.weights != "stored") results[0].composition.text += " weights=" + o.weights;
  }
  for (const Result& r : results) require_weights_name(r.composition.weights);
  if (o.draft != "none") require_speculation(o, results[0].composition);
  const Tokens prompt = prompt_tokens(model.config, read_prompt(o));
  const auto n = static_cast<index_t>(prompt.size());
  decant::require(n + o.max_tokens - 1 <= model.config.context, "runtime", "the prompt and --max-tokens",
                  "at most the model's context of " + std::to_string(model.config.context) + " tokens",
                  n + o.max_tokens - 1);
  decant::require(o.kl_on_prompt >= 0 && o.kl_on_prompt < n, "runtime", "--kl-on-prompt",
                  "0, or fewer than the " + std::to_string(n) + " tokens of the prompt", o.kl_on_prompt);

  Progress progress(o.common.progress);
  Packer packer(cpu, model, o.calibration, std::min<index_t>(1024, model.config.context), progress);
  std::map<std::string, Weights> packed;
  for (Result& r : results) {
    const std::string& name = r.composition.weights;
    if (packed.count(name) == 0) packed.emplace(name, with_packed(model.weights, packer(name)));
    r.weights = &packed.at(name);
  }

  const std::size_t runs = comparing || !o.common.json.empty() ? static_cast<std::size_t>(o.runs) : 1;
  const std::size_t total = runs * results.size();
  // Interleaved, so that what else the machine does falls on all alike.
  for (std::size_t i = 0; i < total; ++i) {
    Result& r = results[i % results.size()];
    const auto engine = make_engine(cpu, model.config, *r.weights, r.composition.stack, cache);
    const auto on_token = [&](const Tokens& t) {
      progress(r.composition.text + ", run " + std::to_string(i / results.size() + 1) + ", token", t.size(),
               static_cast<std::size_t>(o.max_tokens));
    };
    if (o.draft == "none") {
      r.generations.push_back(generate(*engine, prompt, o.max_tokens, Sampler(o.temperature, o.seed), on_token));
      continue;
    }
    const sampling::Processing processing{.temperature = static_cast<float>(o.temperature)};
    const Composed c = compose(cpu, *engine, model, o.speculation, processing, n);
    if (i == 0) r.composition.text += " " + c.text;
    r.generations.push_back(generate_speculatively(cpu, *engine, model.config, prompt, o.max_tokens, c.speculation,
                                                   c.nodes, processing, o.seed, on_token));
  }

  if (comparing || !o.common.json.empty()) {
    // All against the uncompressed model, on its own greedy continuation or on the end of the prompt.
    const auto reference_engine = make_engine(cpu, model.config, model.weights, AnyStack{}, cache);
    const Tokens before(prompt.begin(), prompt.end() - o.kl_on_prompt);
    const Tokens reference =
        o.kl_on_prompt > 0 ? Tokens(prompt.end() - o.kl_on_prompt, prompt.end())
                           : generate(*reference_engine, prompt, o.max_tokens, Sampler(), [](const Tokens&) {}).tokens;
    const std::vector<float> expected = forced_logits(*reference_engine, before, reference);
    std::size_t done = 0;
    for (Result& r : results) {
      progress("quality of " + r.composition.text, ++done, results.size());
      const auto engine = make_engine(cpu, model.config, *r.weights, r.composition.stack, cache);
      r.distance = compare_logits(expected, forced_logits(*engine, before, reference), model.config.vocab);
    }
  }
  progress.clear();

  for (const Result& r : results) {
    if (comparing) std::cout << "--- " << r.composition.text << "\n";
    std::cout << escaped(tokens_to_bytes(r.generations[0].tokens)) << (comparing ? "\n\n" : "\n") << std::flush;
  }
  if (comparing) {
    print_table(results);
    std::cout << "\n"
              << n << " prompt tokens, " << o.max_tokens << " new ones, " << o.common.cache << " cache in "
              << o.common.kv_dtype << ", medians of " << runs
              << " interleaved runs; KL (mean and standard error over tokens) and agreement against the full model on "
              << (o.kl_on_prompt > 0 ? "the last " + std::to_string(o.kl_on_prompt) + " tokens of the prompt"
                                     : std::string("its greedy text"))
              << ".\n";
  } else {
    const Result& r = results[0];
    std::fprintf(stderr, "%s: %lld prompt tokens, TTFT %.1f ms, TPOT %.3f ms, KV %lld bytes\n",
                 r.composition.text.c_str(), static_cast<long long>(n), r.median_of(&Generation::ttft_ms),
                 r.median_of(&Generation::tpot_ms), static_cast<long long>(r.generations[0].kv_bytes));
    if (o.draft != "none")
      std::fprintf(stderr, "%.1f tokens/s, %.3f tokens per step of the model\n",
                   tokens_per_second(r.median_of(&Generation::tpot_ms)), r.median_of(&Generation::acceptance_length));
  }
  if (!o.common.json.empty()) {
    Json json = Json::array();
    for (const Result& r : results) json.push_back(to_json(r));
    write_json(o.common.json, json);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Generates text with a Llama checkpoint under any composition of decant's policies.", "decant-generate");
  o.common.add_to(app);
  auto* file = app.add_option("--prompt-file", o.prompt_file, "File with the prompt; - or nothing: standard input");
  app.add_option("--prompt", o.prompt, "The prompt itself")->excludes(file);
  app.add_option("--max-tokens", o.max_tokens, "How many tokens to generate")->capture_default_str();
  app.add_option("--temperature", o.temperature, "0: greedy")->capture_default_str();
  app.add_option("--seed", o.seed, "Of tokens drawn at temperatures above 0, and of the keys that SANTA draws")
      ->capture_default_str();
  auto* visibility = app.add_option("--visibility", o.visibility, visibility_help())->capture_default_str();
  auto* evict = app.add_option("--evict", o.evict, eviction_help())->capture_default_str();
  auto* attention = app.add_option("--attention", o.attention, attention_help())->capture_default_str();
  auto* weights =
      app.add_option("--weights", o.weights, "How weights are packed before anything else: " + weights_help())
          ->capture_default_str();
  app.add_option("--calibration", o.calibration,
                 "Text that weight quantizers look at; by default the model's calibration.txt");
  auto* draft = app.add_option("--draft", o.draft,
                               "Speculative decoding: ngram, suffix, early-exit (the model's lower layers and "
                               "draft.safetensors of its folder), early-exit:LAYERS (its lower layers alone) or pard "
                               "(all of a chain in one forward of them with mask tokens, by mask_draft.safetensors)")
                    ->capture_default_str();
  app.add_option(
         "--verify", o.speculation.verify,
         "Verifier: " + verifier_names() +
             " (typical and top-k change the text's law); by default univer, or membership at temperature 0 and for "
             "drafts that are not drawn")
      ->needs(draft);
  auto* gamma = app.add_option("--gamma", o.speculation.gamma,
                               "Drafted tokens per step: a number, or throughput, speckv or edc, which choose")
                    ->capture_default_str()
                    ->needs(draft);
  app.add_option("--tree", o.speculation.tree, "Draft a tree: children per node and level, as 2,2,1")
      ->needs(draft)
      ->excludes(gamma);
  app.add_option("--compare", o.compare,
                 "A composition for the table, as \"full\", \"visibility=speed:0.75 evict=capkv:0.25\", "
                 "\"attention=santa:n/16\" or \"weights=gptq4\"; repeat it")
      ->allow_extra_args(false)
      ->excludes(visibility)
      ->excludes(evict)
      ->excludes(attention)
      ->excludes(weights)
      ->excludes(draft);
  app.add_option("--runs", o.runs, "Runs of each composition; times are medians")->capture_default_str();
  app.add_option("--kl-on-prompt", o.kl_on_prompt,
                 "Measure KL and agreement on so many tokens at the end of the prompt, decoded one by one; 0: on the "
                 "full model's greedy text")
      ->capture_default_str();
  return run_program(app, argc, argv, [&] {
    o.speculation.draft = o.draft;
    run(o);
  });
}
