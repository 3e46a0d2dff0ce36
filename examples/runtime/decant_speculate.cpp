// decant-speculate: measures speculative decoding with a checkpoint and its drafters: accepted lengths of all verifiers
// on drafts below the same contexts, tokens per second of all drafters, and of draft-length controllers.
//   decant-speculate --model examples/model --text examples/model/evaluation.txt
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "options.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "speculate.hpp"
#include "tokenizer.hpp"

namespace {

using namespace runtime;

struct Options {
  CommonOptions common;
  std::string text;
  std::string table = "lengths";
  std::string tree = "2,2,2,2,2";
  int steps = 2000;
  int runs = 5;
  index_t prompt = 512;
  index_t max_tokens = 256;
  double temperature = 1;
  std::uint64_t seed = 0;
};

/// A mean and its standard error.
struct Estimate {
  double mean = 0, error = 0;
};
Estimate estimate(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) squares += (v - sum / n) * (v - sum / n);
  return {sum / n, std::sqrt(squares / (n * std::max(1.0, n - 1)))};
}

/// Of mean(a) / mean(b), values taken in pairs (delta method).
Estimate ratio(const std::vector<double>& a, const std::vector<double>& b) {
  const double r = estimate(a).mean / estimate(b).mean;
  std::vector<double> residuals;
  for (std::size_t i = 0; i < a.size(); ++i) residuals.push_back((a[i] - r * b[i]) / estimate(b).mean);
  return {r, estimate(residuals).error};
}

class Measurement {
 public:
  explicit Measurement(const Options& o)
      : o_(o),
        cpu_(parallel_for_threads(o.common.threads)),
        model_(o.common.model, read_packed),
        engine_(make_engine(cpu_, model_.config, model_.weights, AnyStack{},
                            parse_cache(o.common.cache, o.common.kv_dtype))),
        text_(read_text_file(o.text)),
        progress_(o.common.progress) {
    require_byte_vocabulary(model_.config);
    decant::require(o.steps >= 2, "runtime", "--steps", "at least 2", o.steps);
    decant::require(o.runs >= 1, "runtime", "--runs", "at least 1", o.runs);
    decant::require(o.max_tokens >= 2, "runtime", "--max-tokens", "at least 2", o.max_tokens);
    decant::require(
        o.prompt >= 2 && o.prompt + o.max_tokens <= model_.config.context, "runtime", "--prompt and --max-tokens",
        "at least 2 tokens, with the prompt at most " + std::to_string(model_.config.context), o.prompt + o.max_tokens);
    decant::require(static_cast<index_t>(text_.size()) > 2 * o.prompt, "runtime", "--text", "more text than a prompt",
                    text_.size());
  }

  /// Every verifier on a draft of its law below the same contexts: the model's own text, one context per token.
  Json lengths() {
    struct Row {
      const char* verifier;
      std::string tree;
    };
    const std::size_t depth = parse_branching(o_.tree).size();
    std::string chain = "1";
    for (std::size_t i = 1; i < depth; ++i) chain += ",1";
    const std::vector<Row> rows = {{"rrsw", o_.tree},   {"traversal", o_.tree},    {"greedy", o_.tree},
                                   {"univer", o_.tree}, {"univer-paper", o_.tree}, {"multi-round", o_.tree},
                                   {"chain", chain},    {"block", chain}};
    const sampling::Processing processing{.temperature = static_cast<float>(o_.temperature)};
    std::vector<Composed> composed;
    for (const Row& r : rows) {
      const SpeculationNames names{.verify = r.verifier, .tree = r.tree};
      composed.push_back(compose(cpu_, *engine_, model_, names, processing, o_.prompt));
    }
    SpeculationNames none{.verify = "univer", .gamma = "0"};
    const Composed plain = compose(cpu_, *engine_, model_, none, processing, o_.prompt);

    std::vector<std::vector<double>> lengths(rows.size());
    SpeculativeLoop loop(cpu_, *engine_, model_.config, processing, o_.seed);
    for (int step = 0, piece = 0; step < o_.steps; ++piece) {
      loop.begin(prompt(piece), std::min<index_t>(o_.max_tokens + 1100, model_.config.context - o_.prompt));
      for (index_t i = 0; i < o_.max_tokens && step < o_.steps; ++i, ++step) {
        for (std::size_t v = 0; v < rows.size(); ++v) {
          loop.draft(composed[v].speculation,
                     {static_cast<std::int32_t>(depth), static_cast<std::int32_t>(composed[v].nodes)});
          lengths[v].push_back(1 + loop.verify(composed[v].speculation, loop.run()));
          engine_->keep({});
        }
        loop.step(plain.speculation, 2);
        progress_("accepted lengths, step", static_cast<std::size_t>(step + 1), static_cast<std::size_t>(o_.steps));
      }
    }
    progress_.clear();

    std::vector<std::vector<std::string>> table = {
        {"verifier", "draft", "tokens per step", "std. error", "ratio to rrsw", "std. error"}};
    Json json = Json::array();
    for (std::size_t v = 0; v < rows.size(); ++v) {
      const Estimate length = estimate(lengths[v]);
      const Estimate against = ratio(lengths[v], lengths[0]);
      table.push_back({rows[v].verifier, rows[v].tree, fixed(length.mean, 3), fixed(length.error, 3),
                       fixed(against.mean, 4), fixed(v == 0 ? 0 : against.error, 4)});
      json.push_back({{"verifier", rows[v].verifier},
                      {"tree", rows[v].tree},
                      {"steps", o_.steps},
                      {"tokens_per_step", length.mean},
                      {"tokens_per_step_stderr", length.error},
                      {"ratio_to_rrsw", against.mean},
                      {"ratio_to_rrsw_stderr", v == 0 ? 0 : against.error}});
    }
    std::cout << markdown_table(table, 2);
    const auto print = [&](const char* text, std::size_t a, std::size_t b) {
      const Estimate r = ratio(lengths[a], lengths[b]);
      std::printf("%s: %.4f, standard error %.4f\n", text, r.mean, r.error);
      json.push_back({{"ratio", text}, {"mean", r.mean}, {"stderr", r.error}});
    };
    std::printf("\n");
    std::fflush(stdout);
    print("univer / rrsw", 3, 0);
    print("univer / traversal", 3, 1);
    print("univer / greedy", 3, 2);
    print("block / chain", 7, 6);
    std::printf("%d steps, temperature %g, a context of %lld to %lld tokens\n", o_.steps, o_.temperature,
                static_cast<long long>(o_.prompt), static_cast<long long>(o_.prompt + o_.max_tokens));
    return json;
  }

  /// Plain decoding and speculations, interleaved.
  Json speeds(const std::vector<SpeculationNames>& all) {
    const sampling::Processing processing{.temperature = static_cast<float>(o_.temperature)};
    std::vector<Composed> composed;
    for (const SpeculationNames& names : all) {
      progress_("preparing", composed.size() + 1, all.size());
      composed.push_back(compose(cpu_, *engine_, model_, names, processing, o_.prompt));
    }
    const std::size_t count = all.size() + 1;  // the first is plain decoding
    std::vector<std::vector<double>> ms(count), tokens_per_step(count);
    std::vector<Tokens> texts(count);
    for (int run = 0; run < o_.runs; ++run) {
      const Tokens tokens = prompt(run);
      for (std::size_t i = 0; i < count; ++i) {
        progress_("run", static_cast<std::size_t>(run) * count + i + 1, static_cast<std::size_t>(o_.runs) * count);
        const Generation g =
            i == 0 ? generate(*engine_, tokens, o_.max_tokens, Sampler(o_.temperature, o_.seed), [](const Tokens&) {})
                   : generate_speculatively(cpu_, *engine_, model_.config, tokens, o_.max_tokens,
                                            composed[i - 1].speculation, composed[i - 1].nodes, processing, o_.seed,
                                            [](const Tokens&) {});
        ms[i].push_back(g.tpot_ms);
        tokens_per_step[i].push_back(i == 0 ? 1 : g.acceptance_length);
        if (o_.temperature > 0) continue;
        if (i == 0) texts[0] = g.tokens;
        decant::require(g.tokens == texts[0], "runtime", "text", "that of plain decoding", composed[i - 1].text);
      }
    }
    progress_.clear();
    std::vector<std::vector<std::string>> table = {{"policies", "tokens/s", "ratio to plain", "tokens per step"}};
    Json json = Json::array();
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<double> speedups;
      for (std::size_t run = 0; run < ms[i].size(); ++run) speedups.push_back(ms[0][run] / ms[i][run]);
      const double mean_ms = estimate(ms[i]).mean;
      const double length = estimate(tokens_per_step[i]).mean;
      const std::string text = i == 0 ? "plain" : composed[i - 1].text;
      table.push_back({text, fixed(1000 / mean_ms, 0), fixed(median(speedups), 2), fixed(length, 2)});
      json.push_back({{"policies", text},
                      {"tokens_per_second", 1000 / mean_ms},
                      {"ratio_to_plain", median(speedups)},
                      {"acceptance_length", length}});
    }
    std::cout << markdown_table(table) << "\n"
              << o_.runs << " prompts of " << o_.prompt << " tokens, " << o_.max_tokens
              << " new ones each, temperature " << fixed(o_.temperature, 1)
              << "; ratios are medians over prompts, times interleaved.\n";
    return json;
  }

 private:
  Tokens prompt(int piece) const {
    const auto n = static_cast<std::size_t>(o_.prompt - 1);
    const std::size_t at = static_cast<std::size_t>(piece) * 2503 % (text_.size() - n);
    return prompt_tokens(model_.config, std::string_view(text_).substr(at, n));
  }

  const Options& o_;
  decant::Cpu cpu_;
  Model model_;
  std::unique_ptr<Engine> engine_;
  std::string text_;
  Progress progress_;
};

void run(const Options& o) {
  if (!o.common.json.empty()) require_writable(o.common.json, "--json");
  Measurement m(o);
  Json json;
  const std::string verify = o.temperature > 0 ? "block" : "membership";
  if (o.table == "lengths") {
    json = m.lengths();
  } else if (o.table == "drafters") {
    std::vector<SpeculationNames> all = {{.draft = "ngram", .gamma = "4"}, {.draft = "suffix", .gamma = "8"}};
    for (const char* gamma : {"2", "3", "4", "5", "6"}) all.push_back({.verify = verify, .gamma = gamma});
    all.push_back({.draft = "early-exit:2", .verify = verify, .gamma = "2"});
    const bool masks = std::filesystem::exists(o.common.model + "/mask_draft.safetensors");
    for (const char* gamma : {"2", "3", "4", "6"})
      if (masks) all.push_back({.draft = "pard", .verify = verify, .gamma = gamma});
    all.push_back({.tree = "2,1,1,1"});
    all.push_back({.tree = "2,2,1,1"});
    json = m.speeds(all);
  } else if (o.table == "controllers") {
    std::vector<SpeculationNames> all;
    for (const char* gamma : {"1", "2", "3", "4", "5", "6", "7", "8", "throughput", "speckv", "edc"})
      all.push_back({.verify = verify, .gamma = gamma});
    json = m.speeds(all);
  } else {
    decant::require(false, "runtime", "--table", "lengths, drafters or controllers", o.table);
  }
  if (!o.common.json.empty()) write_json(o.common.json, json);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Measures speculative decoding with a Llama checkpoint and its drafter.", "decant-speculate");
  o.common.add_to(app);
  app.add_option("--text", o.text, "File with text; prompts are pieces of it")->required();
  app.add_option("--table", o.table,
                 "lengths: accepted lengths of all verifiers on drafts below the same contexts; drafters, controllers: "
                 "tokens per second, against plain decoding")
      ->capture_default_str();
  app.add_option("--tree", o.tree, "Of lengths: children per node and level")->capture_default_str();
  app.add_option("--steps", o.steps, "Of lengths: how many contexts")->capture_default_str();
  app.add_option("--runs", o.runs, "Of speeds: how many prompts")->capture_default_str();
  app.add_option("--prompt", o.prompt, "Tokens of a prompt")->capture_default_str();
  app.add_option("--max-tokens", o.max_tokens, "Tokens after each prompt")->capture_default_str();
  app.add_option("--temperature", o.temperature, "0: greedy")->capture_default_str();
  app.add_option("--seed", o.seed, "Of everything that is drawn")->capture_default_str();
  return run_program(app, argc, argv, [&] { run(o); });
}
