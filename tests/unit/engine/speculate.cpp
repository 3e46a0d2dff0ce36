// Speculative decoding with real drafts: greedy text is that of plain decoding whatever drafts and verifies, sampled
// text has the model's law, and what is composed wrongly is refused.
#include "speculate.hpp"

#include <algorithm>
#include <cmath>

#include <decant/speculative/fixed_length.hpp>
#include <decant/speculative/model_drafter.hpp>
#include <decant/speculative/ngram.hpp>

#include "../runtime/loaded_model.hpp"
#include "catch_compat.hpp"
#include "tokenizer.hpp"

namespace runtime_test {
namespace {

namespace sampling = decant::sampling;
namespace speculative = decant::speculative;
using decant::View;
using runtime::SpeculationNames;
using runtime::Tokens;

const runtime::Model& checkpoint() {
  static const runtime::Model model(std::string(DECANT_SOURCE_DIR) + "/examples/model");
  return model;
}

Tokens prompt_of(std::size_t bytes) {
  const auto text = runtime::read_text_file(checkpoint().folder + "/evaluation.txt");
  return runtime::prompt_tokens(checkpoint().config, std::string_view(text).substr(4000, bytes));
}

runtime::Generation generate(const SpeculationNames& names, const Tokens& prompt, index_t count, float temperature,
                             const char* composition = "full", const char* cache = "ragged", std::uint64_t seed = 5) {
  decant::Cpu cpu;
  const runtime::Model& m = checkpoint();
  const auto engine =
      runtime::make_engine(cpu, m.config, m.weights, runtime::parse_composition(composition, m.config).stack,
                           runtime::parse_cache(cache, "f32"));
  const sampling::Processing processing{.temperature = temperature};
  const runtime::Composed c = runtime::compose(cpu, *engine, m, names, processing, static_cast<index_t>(prompt.size()));
  return runtime::generate_speculatively(cpu, *engine, m.config, prompt, count, c.speculation, c.nodes, processing,
                                         seed, [](const Tokens&) {});
}

Tokens plain(const Tokens& prompt, index_t count, const char* composition = "full", const char* cache = "ragged") {
  decant::Cpu cpu;
  const runtime::Model& m = checkpoint();
  const auto engine =
      runtime::make_engine(cpu, m.config, m.weights, runtime::parse_composition(composition, m.config).stack,
                           runtime::parse_cache(cache, "f32"));
  return runtime::generate(*engine, prompt, count, runtime::Sampler(), [](const Tokens&) {}).tokens;
}

TEST_CASE("speculate: greedy text is that of plain decoding, for every drafter, verifier and controller",
          "[engine][speculative]") {
  const Tokens prompt = prompt_of(150);
  const index_t count = 24;
  const Tokens expected = plain(prompt, count);
  std::vector<SpeculationNames> all = {{.draft = "ngram"},
                                       {.draft = "suffix", .gamma = "6"},
                                       {.draft = "early-exit:2"},
                                       {.draft = "pard", .gamma = "0"},
                                       {.draft = "pard", .gamma = "1"},
                                       {.draft = "pard", .gamma = "64"},
                                       {.draft = "pard", .gamma = "edc"},
                                       {.gamma = "0"},
                                       {.gamma = "1"},
                                       {.gamma = "7"},
                                       {.gamma = "edc"},
                                       {.tree = "1,1,1"},
                                       {.tree = "3,2,2"}};
  for (const char* verifier : {"chain", "block", "multi-round", "rrsw", "greedy", "traversal", "univer", "univer-paper",
                               "membership", "gumbel", "typical"}) {
    all.push_back({.verify = verifier});
    all.push_back({.draft = "ngram", .verify = verifier});
    all.push_back({.draft = "pard", .verify = verifier});
    all.push_back({.verify = verifier, .tree = "2,2,1"});
  }
  all.push_back({.verify = "kseq"});
  all.push_back({.draft = "pard", .verify = "kseq"});
  all.push_back({.verify = "kseq", .tree = "2,2"});
  for (const SpeculationNames& names : all) {
    INFO(names.draft << " " << names.verify << " " << names.gamma << " " << names.tree);
    const auto got = generate(names, prompt, count, 0);
    CHECK(got.tokens == expected);
    CHECK((names.gamma == "0" ? got.acceptance_length == 1 : got.acceptance_length > 1));
  }
  CHECK(generate({.gamma = "throughput"}, prompt, 20, 0).tokens == Tokens(expected.begin(), expected.begin() + 20));
}

TEST_CASE("speculate: so it is with SPEED, eviction and every cache layout, and the cache holds the same rows",
          "[engine][speculative]") {
  const Tokens prompt = prompt_of(150);
  for (const char* composition : {"visibility=speed", "evict=snapkv:0.6", "visibility=speed evict=capkv:0.6"}) {
    const Tokens expected = plain(prompt, 30, composition);
    for (const char* cache : {"dense", "paged:16", "ragged"}) {
      INFO(composition << ", " << cache);
      const auto got = generate({.tree = "2,2,1"}, prompt, 30, 0, composition, cache);
      CHECK(got.tokens == expected);
      const auto masked = generate({.draft = "pard", .gamma = "3"}, prompt, 30, 0, composition, cache);
      CHECK(masked.tokens == expected);
      const index_t kv_bytes = generate({.gamma = "0"}, prompt, 30, 0, composition, cache).kv_bytes;
      CHECK(got.kv_bytes == kv_bytes);
      CHECK(masked.kv_bytes == kv_bytes);
    }
  }
}

TEST_CASE("speculate: verifiers that follow the target sample the same text whatever is drafted",
          "[engine][speculative]") {
  const Tokens prompt = prompt_of(100);
  for (const char* verifier : {"membership", "gumbel"}) {
    INFO(verifier);
    const Tokens expected = generate({.verify = verifier, .gamma = "0"}, prompt, 40, 1).tokens;
    CHECK(generate({.verify = verifier, .gamma = "5"}, prompt, 40, 1).tokens == expected);
    CHECK(generate({.verify = verifier, .tree = "3,2,1"}, prompt, 40, 1).tokens == expected);
    CHECK(generate({.draft = "ngram", .verify = verifier}, prompt, 40, 1).tokens == expected);
    CHECK(generate({.draft = "pard", .verify = verifier}, prompt, 40, 1).tokens == expected);
  }
}

TEST_CASE("speculate: drafts fit the end of the text and of the context", "[engine][speculative]") {
  const Tokens prompt = prompt_of(40);
  for (const index_t count : {index_t{1}, index_t{2}, index_t{3}, index_t{5}})
    for (const char* draft : {"early-exit", "pard"})
      CHECK(generate({.draft = draft, .gamma = "6"}, prompt, count, 0).tokens == plain(prompt, count));
  const Tokens longest = prompt_of(2028);
  REQUIRE(longest.size() == 2029);
  const auto count = static_cast<index_t>(2048 - longest.size() + 1);
  const Tokens expected = plain(longest, count);
  CHECK(generate({.tree = "2,2,2"}, longest, count, 0).tokens == expected);
  CHECK(generate({.draft = "pard", .gamma = "6"}, longest, count, 0).tokens == expected);
}

/// Keeps the signals that it was shown; drafts of three.
struct SeenSignals {
  std::vector<std::vector<float>> entropy, confidence;

  speculative::DraftBudget next(const speculative::StepSignals& s) {
    entropy.emplace_back(s.entropy.data(), s.entropy.data() + s.entropy.size());
    confidence.emplace_back(s.confidence.data(), s.confidence.data() + s.confidence.size());
    return speculative::clipped(speculative::DraftBudget::chain(3), s.tokens_left);
  }
  void observe(const speculative::StepOutcome&) const {}
};

TEST_CASE("speculate: controllers see how sure the drafter was, of drawn and of greedy drafts", "[engine][speculative]") {
  decant::Cpu cpu;
  const runtime::Model& m = checkpoint();
  const auto engine =
      runtime::make_engine(cpu, m.config, m.weights, runtime::AnyStack{}, runtime::parse_cache("ragged", "f32"));
  const Tokens prompt = prompt_of(60);
  for (const auto& [draft, temperature] : {std::pair("early-exit", 0.0f), std::pair("early-exit", 1.0f),
                                           std::pair("pard", 0.0f), std::pair("pard", 1.0f)}) {
    INFO(draft << ", " << temperature);
    const sampling::Processing processing{.temperature = temperature};
    const SpeculationNames names{.draft = draft, .verify = temperature > 0 ? "block" : "membership"};
    auto s = runtime::compose(cpu, *engine, m, names, processing, 60).speculation;
    const auto seen = std::make_shared<SeenSignals>();
    runtime::control_with(s, seen);
    runtime::SpeculativeLoop loop(cpu, *engine, m.config, processing, 5);
    loop.begin(prompt, 60);
    REQUIRE(loop.step(s, 50).drafted == 3);
    REQUIRE(loop.step(s, 50).drafted == 3);
    loop.step(s, 1);  // no room for a draft, hence nothing to be seen after it
    loop.step(s, 50);
    REQUIRE(seen->entropy.size() == 4);
    CHECK(seen->entropy[0].empty());
    CHECK(seen->entropy[1].size() == 3);
    CHECK(seen->entropy[2].size() == 3);
    CHECK(seen->entropy[3].empty());
    for (std::size_t step = 0; step < 4; ++step) {
      REQUIRE(seen->confidence[step].size() == seen->entropy[step].size());
      for (std::size_t i = 0; i < seen->entropy[step].size(); ++i) {
        CHECK((seen->entropy[step][i] > 0 && seen->entropy[step][i] < 8));
        CHECK((seen->confidence[step][i] > 1.0f / 256 && seen->confidence[step][i] < 1));
      }
    }
    CHECK(seen->entropy[1] != seen->entropy[2]);
    loop.begin(prompt, 60);  // of another text
    loop.step(s, 50);
    CHECK(seen->entropy[4].empty());
  }
  const auto none = runtime::compose(cpu, *engine, m, {.draft = "ngram"}, {}, 60).speculation.signals();
  CHECK((none.entropy.empty() && none.confidence.empty()));
}

/// The p-value of a chi-square sum by Wilson and Hilferty's cube root.
double p_value(double chi_square, double degrees) {
  const double k = 2 / (9 * degrees);
  const double z = (std::cbrt(chi_square / degrees) - (1 - k)) / std::sqrt(k);
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

/// Where each token stands in the model's distribution, uniform on [0, 1] where the text has the model's law: the mass
/// of likelier tokens (of lower ids among equals) and a random share of its own. The p-value over 20 equal bins.
double law_of(const Tokens& prompt, const Tokens& text) {
  decant::Cpu cpu;
  const runtime::Model& m = checkpoint();
  const auto engine =
      runtime::make_engine(cpu, m.config, m.weights, runtime::AnyStack{}, runtime::parse_cache("ragged", "f32"));
  Tokens tokens = prompt;
  tokens.insert(tokens.end(), text.begin(), text.end());
  const auto logits = engine->prefill(tokens, 0, runtime::Logits::all);
  std::vector<double> bins(20);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto row = runtime::log_softmax(&logits(static_cast<index_t>(prompt.size() + i) - 1, 0), m.config.vocab);
    const auto own = static_cast<std::size_t>(text[i]);
    double below = 0;
    for (std::size_t t = 0; t < row.size(); ++t) {
      if (row[t] > row[own] || (row[t] == row[own] && t < own)) below += std::exp(row[t]);
    }
    below += decant::Philox{99}.uniform_double(static_cast<std::uint32_t>(i)) * std::exp(row[own]);
    bins[std::min<std::size_t>(19, static_cast<std::size_t>(below * 20))] += 1;
  }
  double sum = 0;
  const double expected = static_cast<double>(text.size()) / 20;
  for (const double n : bins) sum += (n - expected) * (n - expected) / expected;
  return p_value(sum, 19);
}

/// Takes the likeliest token but says that it drew it: the commonest mistake.
class GreedyThatSaysChain {
 public:
  static constexpr speculative::Law law = speculative::Law::chain;
  explicit GreedyThatSaysChain(runtime::EarlyExit forward) : forward_(std::move(forward)) {}

  void draft(const speculative::DraftContext&, const speculative::DraftBudget&, speculative::DraftTree& tree,
             speculative::Proposals& proposals, const speculative::DrawKey&) {
    const std::int32_t row = proposals.add();
    const auto q = proposals.row(row);
    forward_(tree, 0, 1, View<float, 2>(q.data(), 1, q.size()));
    const auto best = std::max_element(q.data(), q.data() + q.size()) - q.data();
    tree.set_law(0, law, row);
    tree.push_child(0, static_cast<std::int32_t>(best), 0);
  }
  void commit(View<const std::int32_t, 1>) {}

 private:
  runtime::EarlyExit forward_;
};

// p-values below 1e-6 of fixed seeds: four texts, so a false alarm once in 2.5e5 changes of the code.
TEST_CASE("speculate: sampled text has the model's law, and a drafter that misstates its own is found out",
          "[engine][speculative][statistics]") {
  const Tokens prompt = prompt_of(30);
  const index_t count = 600;
  CHECK(law_of(prompt, generate({.gamma = "0"}, prompt, count, 1).tokens) > 1e-6);
  CHECK(law_of(prompt, generate({.verify = "univer", .tree = "2,2,1"}, prompt, count, 1).tokens) > 1e-6);
  CHECK(law_of(prompt, generate({.verify = "rrsw", .tree = "2,2"}, prompt, count, 1).tokens) > 1e-6);
  CHECK(law_of(prompt, generate({.draft = "pard", .verify = "block"}, prompt, count, 1).tokens) > 1e-6);

  decant::Cpu cpu;
  const runtime::Model& m = checkpoint();
  const auto engine =
      runtime::make_engine(cpu, m.config, m.weights, runtime::AnyStack{}, runtime::parse_cache("ragged", "f32"));
  const auto head = std::make_shared<runtime::DraftHead>(m, m.folder + "/draft.safetensors");
  const auto wrong = runtime::speculation(
      std::make_shared<GreedyThatSaysChain>(runtime::EarlyExit(cpu, *engine, head, {})), speculative::ChainRejection{},
      std::make_shared<speculative::FixedLength>(speculative::FixedLength{speculative::DraftBudget::chain(1)}));
  const auto text =
      runtime::generate_speculatively(cpu, *engine, m.config, prompt, 1000, wrong, 1, {}, 5, [](const Tokens&) {});
  CHECK(law_of(prompt, text.tokens) < 1e-6);
}

// A p-value below 1e-6, fixed seeds.
TEST_CASE("speculate: the first token of a step has the model's law", "[engine][speculative][statistics]") {
  decant::Cpu cpu;
  const runtime::Model& m = checkpoint();
  const auto engine =
      runtime::make_engine(cpu, m.config, m.weights, runtime::AnyStack{}, runtime::parse_cache("ragged", "f32"));
  const Tokens prompt = prompt_of(24);
  const sampling::Processing flat{.temperature = 1.5f};
  const runtime::Composed c = runtime::compose(cpu, *engine, m, {.verify = "univer", .tree = "2,1"}, flat, 24);
  const int steps = 1000;
  std::vector<double> seen(256), expected;
  for (int seed = 0; seed < steps; ++seed) {
    if (seed == 0) engine->prefill(Tokens(prompt.begin(), prompt.end() - 1), 8);
    runtime::SpeculativeLoop loop(cpu, *engine, m.config, flat, static_cast<std::uint64_t>(seed));
    loop.resume(prompt, 8);
    loop.draft(c.speculation, {2, 4});
    const auto p = loop.run();
    if (seed == 0) expected.assign(p.data(), p.data() + 256);
    loop.verify(c.speculation, p);
    seen[static_cast<std::size_t>(loop.emitted()[0])] += 1;
    engine->keep({});
  }
  double sum = 0, rest = steps, rest_expected = steps;
  int bins = 0;
  for (std::size_t t = 0; t < 256; ++t) {
    const double e = expected[t] * steps;
    if (e < 10) continue;
    sum += (seen[t] - e) * (seen[t] - e) / e;
    rest -= seen[t];
    rest_expected -= e;
    ++bins;
  }
  if (rest_expected > 5) sum += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
  REQUIRE(bins >= 5);
  CHECK(p_value(sum, bins) > 1e-6);
}

TEST_CASE("speculate: names that do not go together are refused, with what would", "[engine][speculative]") {
  const Tokens prompt = prompt_of(20);
  const auto refused = [&](const SpeculationNames& names, float temperature, const char* text) {
    INFO(text);
    CHECK_THAT(error_of<decant::ArgumentError>([&] { generate(names, prompt, 3, temperature); }),
               catch_compat::contains(text));
  };
  refused({.draft = "eagle"}, 0, "ngram, suffix, early-exit, early-exit:LAYERS or pard");
  refused({.draft = "pard", .tree = "2,1"}, 0, "early-exit");
  refused({.draft = "early-exit:0"}, 0, "1 to 8");
  refused({.draft = "early-exit:9"}, 0, "1 to 8");
  refused({.draft = "early-exit:1:2"}, 0, "early-exit");
  refused({.verify = "nobody"}, 0, "univer");
  refused({.draft = "ngram", .verify = "kseq"}, 1, "deterministic");
  refused({.gamma = "-1"}, 0, "0 to 64");
  refused({.gamma = "65"}, 0, "0 to 64");
  refused({.gamma = "2.5"}, 0, "0 to 64");
  refused({.tree = "0"}, 0, "children per node");
  refused({.tree = "2,x"}, 0, "children per node");
  refused({.tree = "40,40"}, 0, "1023");
  refused({.draft = "ngram", .tree = "2"}, 0, "early-exit");
  refused({.draft = "ngram", .gamma = "speckv"}, 0, "early-exit");
}

TEST_CASE("speculate: a draft file that is none is refused", "[engine][speculative]") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<NamedTensor>& tensors, const char* text) {
    write_file(folder.file("draft.safetensors"), safetensors(tensors, decant::DType::f32));
    CHECK_THAT(
        error_of<decant::FormatError>([&] { runtime::DraftHead(checkpoint(), folder.file("draft.safetensors")); }),
        catch_compat::contains(text));
  };
  refused({}, "layers");
  CHECK(error_of<decant::FormatError>([&] { runtime::DraftHead(checkpoint(), folder.file("none")); }) != "no error");
}

/// A file of zeros; dtypes by tensor, of 1, 2 or 4 bytes.
struct DraftTensor {
  std::string name;
  std::vector<index_t> shape;
  std::string dtype = "BF16";
};
std::string draft_file(const std::vector<DraftTensor>& tensors, const char* layers = "1") {
  runtime::Json header = {{"__metadata__", {{"layers", layers}}}};
  std::size_t at = 0;
  for (const DraftTensor& t : tensors) {
    std::size_t bytes = t.dtype == "U8" ? 1 : t.dtype == "F32" || t.dtype == "I32" ? 4 : 2;
    for (const index_t n : t.shape) bytes *= static_cast<std::size_t>(n);
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  return safetensors(header.dump(), std::string(at, '\0'));
}

TEST_CASE("speculate: weights of a mask drafter that are missing, or of another shape or type, are named",
          "[engine][speculative]") {
  const TemporaryFolder folder;
  const std::string path = folder.file("mask_draft.safetensors");
  const std::vector<DraftTensor> good = {
      {"masks", {3, 128}},        {"norm.weight", {128}},        {"gate.weight", {64, 128}}, {"up.weight", {64, 128}},
      {"down.weight", {128, 64}}, {"linear.weight", {128, 128}}, {"head_norm.weight", {128}}};
  write_file(path, draft_file(good));
  CHECK(runtime::MaskHead(checkpoint(), path).drafts() == 4);
  const auto error = [&](const std::string& file) {
    write_file(path, file);
    return error_of<decant::FormatError>([&] { runtime::MaskHead(checkpoint(), path); });
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    INFO(good[i].name);
    const bool optional = good[i].name == "gate.weight";  // without it there is no MLP
    std::vector<DraftTensor> tensors = good;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    if (!optional) CHECK_THAT(error(draft_file(tensors)), catch_compat::contains(good[i].name.c_str()));
    for (const std::vector<index_t>& shape : {std::vector<index_t>{}, {0, 128}, {127}, {128, 127}, {1, 3, 128}}) {
      tensors = good;
      tensors[i].shape = shape;
      CHECK_THAT(error(draft_file(tensors)), catch_compat::contains(good[i].name.c_str()));
    }
    for (const char* dtype : {"U8", "I32"}) {
      tensors = good;
      tensors[i].dtype = dtype;
      CHECK_THAT(error(draft_file(tensors)), catch_compat::contains(good[i].name.c_str()));
    }
  }
  std::vector<DraftTensor> many = good;
  many[0].shape = {1023, 128};
  CHECK_THAT(error(draft_file(many)), catch_compat::contains("1022"));
  for (const char* layers : {"0", "9", "-1", "1e0", "", "99999999999"})
    CHECK_THAT(error(draft_file(good, layers)), catch_compat::contains("layers"));
  const std::string whole = draft_file(good);
  CHECK(error(whole.substr(0, whole.size() - 1)) != "no error");
  CHECK_THAT(error_of<decant::FormatError>([&] { runtime::MaskHead(checkpoint(), folder.file("none")); }),
             catch_compat::contains("none"));
}

TEST_CASE("speculate: a draft from masks is what the training script computes", "[engine][speculative]") {
  const runtime::Model& m = checkpoint();
  const auto witness = runtime::Json::parse(runtime::read_text_file(m.folder + "/mask_witness.json"));
  const Tokens text = runtime::prompt_tokens(m.config, witness["text"].get<std::string>());
  const runtime::MaskHead head(m, m.folder + "/mask_draft.safetensors");
  decant::Cpu cpu;
  const auto engine =
      runtime::make_engine(cpu, m.config, m.weights, runtime::AnyStack{}, runtime::parse_cache("ragged", "f32"));
  engine->prefill(Tokens(text.begin(), text.end() - 1), 16);
  const auto states = engine->extend({text.back()}, {-1}, head.layers(), head.masks());
  REQUIRE(static_cast<std::size_t>(head.drafts()) == witness["logits"].size());
  std::vector<float> logits(static_cast<std::size_t>(head.drafts()) * 256);
  head(cpu, states, View<float, 2>(logits.data(), head.drafts(), 256));
  double worst = 0;
  for (std::size_t i = 0; i < witness["logits"].size(); ++i) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(256 * i);
    CHECK(std::max_element(row, row + 256) - row == witness["likeliest"][i].get<std::ptrdiff_t>());
    for (std::size_t y = 0; y < 16; ++y) {
      const double expected = witness["logits"][i][y].get<double>();
      const double difference = std::abs(static_cast<double>(row[static_cast<std::ptrdiff_t>(16 * y)]) - expected);
      worst = difference >= 0 ? std::max(worst, difference) : HUGE_VAL;
    }
  }
  CHECK(worst < 1e-3);
}

}  // namespace
}  // namespace runtime_test
