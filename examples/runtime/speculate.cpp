#include "speculate.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <decant/speculative/entropy_history.hpp>
#include <decant/speculative/fixed_length.hpp>
#include <decant/speculative/model_drafter.hpp>
#include <decant/speculative/ngram.hpp>
#include <decant/speculative/speckv.hpp>
#include <decant/speculative/speckv_fit.hpp>
#include <decant/speculative/suffix.hpp>
#include <decant/speculative/throughput_optimal.hpp>

#include "output.hpp"
#include "tokenizer.hpp"

namespace runtime {
namespace {

using speculative::DraftBudget;
using speculative::Law;

/// A verifier, and the law by which a sampled tree is drawn for it.
struct NamedVerifier {
  std::string name;
  Law tree;
  bool (*accepts)(Law);
  void (*use)(Speculation&);
};

template <class V>
NamedVerifier named(const std::string& name, Law tree) {
  return {name, tree, [](Law law) { return V::accepts(law); }, [](Speculation& s) { verify_with(s, V{}); }};
}

const std::vector<NamedVerifier>& verifiers() {
  using namespace speculative;
  static const std::vector<NamedVerifier> all = {
      named<ChainRejection>("chain", Law::chain),
      named<BlockVerification>("block", Law::chain),
      named<MultiRound>("multi-round", Law::iid),
      named<KSeq>("kseq", Law::iid),
      named<RRSw>("rrsw", Law::without_replacement),
      named<GreedyMultiDraft>("greedy", Law::greedy_plus_one),
      named<Traversal>("traversal", Law::without_replacement),
      named<UniVer>("univer", Law::greedy_plus_one),
      {"univer-paper", Law::greedy_plus_one, [](Law law) { return UniVer::accepts(law); },
       [](Speculation& s) { verify_with(s, UniVer{.order = UniVer::Order::paper}); }},
      named<Membership>("membership", Law::deterministic),
      named<GumbelCoupled>("gumbel", Law::deterministic),
      named<TypicalAcceptance>("typical", Law::deterministic),
      named<TopKAcceptance>("top-k", Law::deterministic)};
  return all;
}

const NamedVerifier& find_verifier(const std::string& name) {
  for (const NamedVerifier& v : verifiers()) {
    if (v.name == name) return v;
  }
  detail::refuse("verify", "one of: " + verifier_names(), name);
}

template <Law L>
void draft_from(Speculation& s, index_t vocab, const std::vector<std::int32_t>& branching, const EarlyExit& forward) {
  draft_with(s, std::make_shared<speculative::ModelDrafter<L, EarlyExit>>(vocab, branching, forward));
}

void draft_by(Law law, Speculation& s, index_t vocab, const std::vector<std::int32_t>& branching,
              const EarlyExit& forward) {
  switch (law) {
    case Law::chain:
      return draft_from<Law::chain>(s, vocab, branching, forward);
    case Law::iid:
      return draft_from<Law::iid>(s, vocab, branching, forward);
    case Law::without_replacement:
      return draft_from<Law::without_replacement>(s, vocab, branching, forward);
    case Law::greedy_plus_one:
      return draft_from<Law::greedy_plus_one>(s, vocab, branching, forward);
    default:
      return draft_from<Law::deterministic>(s, vocab, branching, forward);
  }
}

template <Law L>
void draft_masked(Speculation& s, const Model& model, const std::shared_ptr<const MaskHead>& head,
                  const MaskForward& forward) {
  const auto vocab = static_cast<std::int32_t>(model.config.vocab);
  // The masks are none of the vocabulary's tokens.
  const speculative::ParallelMaskOptions options{
      .k = static_cast<std::int32_t>(head->drafts()), .mask_token = vocab, .keeps_rows = false};
  draft_with(s, std::make_shared<speculative::ParallelMaskDrafter<L, MaskForward>>(vocab, options, forward));
}

/// Lengths in turn; keeps what happened.
class Recorder {
 public:
  explicit Recorder(std::vector<std::int32_t> lengths) : lengths_(std::move(lengths)) {}

  DraftBudget next(const speculative::StepSignals& signals) {
    if (!log_.empty() && !signals.entropy.empty())
      log_.back().features = speculative::SpecKvFeatures::of(signals.entropy, signals.confidence);
    gamma_ = lengths_[log_.size() % lengths_.size()];
    return clipped(DraftBudget::chain(gamma_), signals.tokens_left);
  }
  void observe(const speculative::StepOutcome& o) {
    log_.push_back({{}, gamma_, o.drafted, o.accepted, sequence});
    seconds_.push_back(o.seconds);
  }

  const std::vector<speculative::SpecKvStep>& log() const { return log_; }
  /// The median time of the steps that drafted what they were asked to.
  speculative::CostTable costs() const {
    std::map<std::int32_t, std::vector<double>> times;
    for (std::size_t i = 0; i < log_.size(); ++i) {
      if (log_[i].drafted == log_[i].gamma) times[log_[i].gamma].push_back(seconds_[i]);
    }
    std::vector<std::int32_t> lengths;
    std::vector<double> medians;
    for (auto& [length, seconds] : times) {
      lengths.push_back(length);
      medians.push_back(median(std::move(seconds)));
    }
    return {lengths, medians};
  }

  std::int32_t sequence = 0;

 private:
  std::vector<std::int32_t> lengths_;
  std::int32_t gamma_ = 0;
  std::vector<speculative::SpecKvStep> log_;
  std::vector<double> seconds_;
};

/// Runs the calibration text's continuations under drafts of these lengths in turn.
std::shared_ptr<Recorder> record(decant::Cpu& cpu, Engine& engine, const Model& model, Speculation s,
                                 sampling::Processing processing, index_t prompt, std::vector<std::int32_t> lengths,
                                 std::size_t steps) {
  const std::string text = read_text_file(model.folder + "/calibration.txt");
  const index_t n = std::min<index_t>({prompt, model.config.context - 64, static_cast<index_t>(text.size()) / 2});
  const auto recorder = std::make_shared<Recorder>(std::move(lengths));
  control_with(s, recorder);
  for (; recorder->log().size() < steps; ++recorder->sequence) {
    const auto at = static_cast<std::size_t>(recorder->sequence) * 1013 % (text.size() - static_cast<std::size_t>(n));
    const Tokens tokens = prompt_tokens(model.config, text.substr(at, static_cast<std::size_t>(n - 1)));
    const index_t room = model.config.context - static_cast<index_t>(tokens.size());
    const index_t count = std::min<index_t>(room - 16, 400);
    generate_speculatively(cpu, engine, model.config, tokens, count, s, 16, processing, 1, [](const Tokens&) {});
  }
  return recorder;
}

void control_by(const std::string& gamma, Speculation& s, index_t& nodes, decant::Cpu& cpu, Engine& engine,
                const Model& model, sampling::Processing processing, index_t prompt) {
  nodes = 8;
  if (gamma == "throughput") {
    const auto run = record(cpu, engine, model, s, processing, prompt, {0, 1, 2, 3, 4, 5, 6, 7, 8}, 90);
    return control_with(s, std::make_shared<speculative::ThroughputOptimal<>>(run->costs()));
  }
  if (gamma == "speckv") {
    const auto run = record(cpu, engine, model, s, processing, prompt, {2, 8, 4, 6}, 600);
    const auto weights =
        speculative::fit(View<const speculative::SpecKvStep, 1>(run->log()), speculative::SpecKvFit{.gain = 1e-6});
    return control_with(s, std::make_shared<speculative::SpecKv<>>(weights, run->costs()));
  }
  if (gamma == "edc") {
    nodes = 4;
    return control_with(s, std::make_shared<speculative::EntropyHistoryController<>>(4));
  }
  const char* expected = "a number from 0 to 64, throughput, speckv or edc";
  const double length = detail::parse_number(gamma, "gamma", expected);
  if (length > 64 || length != std::floor(length)) detail::refuse("gamma", expected, gamma);
  nodes = static_cast<index_t>(length);
  control_with(s, std::make_shared<speculative::FixedLength>(
                      speculative::FixedLength{DraftBudget::chain(static_cast<std::int32_t>(length))}));
}

}  // namespace

std::string verifier_names() {
  std::string names;
  for (const NamedVerifier& v : verifiers()) names += (names.empty() ? "" : ", ") + v.name;
  return names;
}

std::vector<std::int32_t> parse_branching(const std::string& text) {
  const char* expected = "children per node and level, as 2,2,1, of at most 1023 nodes in all";
  std::vector<std::int32_t> branching;
  double level = 1, nodes = 0;
  for (const std::string& part : detail::split(text, ",")) {
    const double k = detail::parse_number(part, "tree", expected);
    level *= k;
    nodes += level;
    if (k < 1 || k != std::floor(k) || nodes > 1023) detail::refuse("tree", expected, text);
    branching.push_back(static_cast<std::int32_t>(k));
  }
  if (branching.empty()) detail::refuse("tree", expected, text);
  return branching;
}

Composed compose(decant::Cpu& cpu, Engine& engine, const Model& model, const SpeculationNames& names,
                 sampling::Processing processing, index_t prompt) {
  Composed c;
  Speculation& s = c.speculation;
  const std::vector<std::string> parts = detail::split(names.draft, ":");
  const bool parallel = names.draft == "pard";
  const bool model_drafts = parallel || (!parts.empty() && parts[0] == "early-exit" && parts.size() <= 2);
  const NamedVerifier& verifier = find_verifier(!names.verify.empty()                        ? names.verify
                                                : model_drafts && processing.temperature > 0 ? "univer"
                                                                                             : "membership");
  const std::vector<std::int32_t> branching =
      names.tree.empty() ? std::vector<std::int32_t>{} : parse_branching(names.tree);
  const bool chain = std::all_of(branching.begin(), branching.end(), [](std::int32_t k) { return k == 1; });

  if (parallel || names.draft == "ngram" || names.draft == "suffix")
    decant::require(names.tree.empty(), "runtime", "--tree", "a drafter of trees: early-exit", names.draft);
  if (model_drafts) {
    Law law = chain && verifier.tree != Law::deterministic ? Law::chain : verifier.tree;
    // Greedy text: the likeliest tokens are drafted, for drawing them would change nothing.
    if (processing.temperature <= 0 && verifier.accepts(Law::deterministic)) law = Law::deterministic;
    if (parallel) {
      const auto head = std::make_shared<const MaskHead>(model, model.folder + "/mask_draft.safetensors");
      const MaskForward forward(cpu, engine, head, processing);
      if (law == Law::deterministic)
        draft_masked<Law::deterministic>(s, model, head, forward);
      else
        draft_masked<Law::chain>(s, model, head, forward);
    } else {
      std::shared_ptr<const DraftHead> head;
      if (parts.size() == 2) {
        const double layers = detail::parse_number(parts[1], "draft", "early-exit:LAYERS, as early-exit:3");
        head = std::make_shared<DraftHead>(model, static_cast<index_t>(std::min(layers, 1e6)));
      } else {
        head = std::make_shared<DraftHead>(model, model.folder + "/draft.safetensors");
      }
      draft_by(law, s, model.config.vocab, branching, EarlyExit(cpu, engine, head, processing));
    }
  } else if (names.draft == "ngram" || names.draft == "suffix") {
    if (names.draft == "ngram")
      draft_with(s, std::make_shared<speculative::Ngram>(speculative::Ngram::Options{.n_max = 8}));
    else
      draft_with(s, std::make_shared<speculative::Suffix>());
  } else {
    detail::refuse("draft", "ngram, suffix, early-exit, early-exit:LAYERS or pard", names.draft);
  }
  decant::require(verifier.accepts(s.law), "runtime", "--verify",
                  std::string("a verifier of drafts whose law is ") + name(s.law), verifier.name);
  verifier.use(s);

  if (branching.empty()) {
    const bool signals = names.gamma != "speckv" || model_drafts;
    decant::require(signals, "runtime", "--gamma", "a drafter with distributions for speckv: early-exit or pard",
                    names.draft);
    control_by(names.gamma, s, c.nodes, cpu, engine, model, processing, prompt);
  } else {
    DraftBudget budget{static_cast<std::int32_t>(branching.size()), 0};
    std::int32_t level = 1;
    for (const std::int32_t k : branching) budget.nodes += level *= k;
    c.nodes = budget.nodes;
    control_with(s, std::make_shared<speculative::FixedLength>(speculative::FixedLength{budget}));
  }
  c.text = "draft=" + names.draft + " verify=" + verifier.name +
           (branching.empty() ? " gamma=" + names.gamma : " tree=" + names.tree);
  return c;
}

}  // namespace runtime
