// Speculative decoding: the loop of a drafter, a verifier and a draft-length controller over an engine. Read
// SpeculativeLoop::step() first. speculation() puts three of decant's policies together, checked when it is compiled;
// compose() (speculate.cpp) does so from names.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <decant/sampling/process.hpp>
#include <decant/speculative/control.hpp>
#include <decant/speculative/draft_tree.hpp>
#include <decant/speculative/drafter.hpp>
#include <decant/speculative/parallel_mask.hpp>
#include <decant/speculative/policy.hpp>
#include <decant/speculative/verify.hpp>

#include "draft_head.hpp"
#include "engine.hpp"
#include "generate.hpp"
#include "mask_head.hpp"

namespace runtime {

namespace speculative = decant::speculative;
namespace sampling = decant::sampling;

/// What is drafted, how it is verified, and how much is drafted: three policies whose types are no longer known.
struct Speculation {
  speculative::Law law = speculative::Law::deterministic;
  bool lossless = true;
  std::function<void(const speculative::DraftContext&, const speculative::DraftBudget&, speculative::DraftTree&,
                     speculative::Proposals&, const speculative::DrawKey&)>
      draft;
  std::function<void(View<const std::int32_t, 1>)> commit;
  /// What the last draft's rows say; empty views: this drafter has none.
  std::function<speculative::StepSignals()> signals;
  std::function<void(decant::Cpu&, const speculative::ForestView&, const speculative::ProbabilityRows& p,
                     const speculative::ProbabilityRows& q, const speculative::DrawKeys&, const speculative::Accepted&)>
      verify;
  std::function<speculative::DraftBudget(const speculative::StepSignals&)> next;
  std::function<void(const speculative::StepOutcome&)> observe;
};

template <speculative::Drafter D>
void draft_with(Speculation& s, std::shared_ptr<D> drafter) {
  s.law = D::law;
  s.draft = [drafter](const speculative::DraftContext& context, const speculative::DraftBudget& budget,
                      speculative::DraftTree& tree, speculative::Proposals& proposals,
                      const speculative::DrawKey& key) { drafter->draft(context, budget, tree, proposals, key); };
  s.commit = [drafter](View<const std::int32_t, 1> tokens) { drafter->commit(tokens); };
  s.signals = [drafter] {
    speculative::StepSignals x;
    if constexpr (requires { drafter->entropy(), drafter->confidence(); }) {
      x.entropy = drafter->entropy();
      x.confidence = drafter->confidence();
    }
    return x;
  };
}

template <speculative::Verifier<decant::Cpu> V>
void verify_with(Speculation& s, const V& verifier) {
  s.lossless = V::lossless;
  s.verify = [verifier](decant::Cpu& cpu, const speculative::ForestView& trees, const speculative::ProbabilityRows& p,
                        const speculative::ProbabilityRows& q, const speculative::DrawKeys& keys,
                        const speculative::Accepted& out) { verify(cpu, verifier, trees, p, q, keys, out); };
}

template <speculative::DraftLengthController C>
void control_with(Speculation& s, std::shared_ptr<C> controller) {
  s.next = [controller](const speculative::StepSignals& signals) { return controller->next(signals); };
  s.observe = [controller](const speculative::StepOutcome& outcome) { controller->observe(outcome); };
}

/// Does not compile where the text would not have the model's law, unless Tag is speculative::Lossy.
template <class Tag = void, speculative::Drafter D, speculative::Verifier<decant::Cpu> V,
          speculative::DraftLengthController C>
Speculation speculation(std::shared_ptr<D> drafter, const V& verifier, std::shared_ptr<C> controller) {
  speculative::require_lossless<D, V, Tag>();
  Speculation s;
  draft_with(s, std::move(drafter));
  verify_with(s, verifier);
  control_with(s, std::move(controller));
  return s;
}

/// The distributions that drafts are drawn from. sampling: of the model's own tokens; at temperature
/// 0 drafts are ranked at temperature 1.
class DraftProcessing {
 public:
  explicit DraftProcessing(sampling::Processing processing) : processing_(processing) {
    if (processing_.temperature <= 0) processing_ = {};
  }

  /// What `head` makes of states above a lower layer. False: not numbers.
  template <class Head>
  bool operator()(decant::Cpu& cpu, const Head& head, View<const float, 2> states, View<float, 2> q) {
    decant::Workspace::Scope scope(cpu.workspace());
    const View<float, 2> logits = cpu.workspace().take_view<float>(q.extent(0), q.extent(1));
    head(cpu, states, logits);
    status_.assign(static_cast<std::size_t>(q.extent(0)), sampling::RowStatus::ok);
    process(cpu, processing_, logits, {}, q, View<sampling::RowStatus, 1>(status_));
    for (const auto s : status_) {
      if (s != sampling::RowStatus::ok) return false;
    }
    return true;
  }

 private:
  sampling::Processing processing_;
  std::vector<sampling::RowStatus> status_;
};

/// For speculative::ModelDrafter: the engine's lower layers and a head. The nodes that it runs stay in the engine's
/// draft, so that verification goes on above those layers.
class EarlyExit {
 public:
  EarlyExit(decant::Cpu& cpu, Engine& engine, std::shared_ptr<const DraftHead> head, sampling::Processing processing)
      : cpu_(&cpu), engine_(&engine), head_(std::move(head)), process_(processing) {}

  bool operator()(const speculative::DraftTree& tree, std::int32_t first, std::int32_t last, View<float, 2> q) {
    tokens_.clear();
    parents_.clear();
    for (std::int32_t i = first; i < last; ++i) {
      tokens_.push_back(tree.token(i));
      parents_.push_back(tree.parent(i));
    }
    const View<const float, 2> states = engine_->extend(tokens_, parents_, head_->layers());
    return process_(*cpu_, *head_, states, q);
  }

 private:
  decant::Cpu* cpu_;
  Engine* engine_;
  std::shared_ptr<const DraftHead> head_;
  DraftProcessing process_;
  Tokens tokens_;
  std::vector<std::int32_t> parents_;
};

/// For speculative::ParallelMaskDrafter: the engine's lower layers over the last token and masks in one forward, and a
/// head. The text's KV rows are the engine's own, so that of the text only the last token is run; it stays in the
/// engine's draft, the masks do not.
class MaskForward {
 public:
  MaskForward(decant::Cpu& cpu, Engine& engine, std::shared_ptr<const MaskHead> head, sampling::Processing processing)
      : cpu_(&cpu), engine_(&engine), head_(std::move(head)), process_(processing) {}

  bool operator()(View<const std::int32_t, 1> ids, index_t, const speculative::ParallelMaskLayout*, std::int32_t read,
                  View<float, 2> q) {
    const View<const float, 2> masks = head_->masks().slice(0, 0, q.extent(0) - 1);
    const View<const float, 2> states = engine_->extend({ids[read]}, {-1}, head_->layers(), masks);
    return process_(*cpu_, *head_, states, q);
  }

 private:
  decant::Cpu* cpu_;
  Engine* engine_;
  std::shared_ptr<const MaskHead> head_;
  DraftProcessing process_;
};

/// One sequence, step by step. The last token is not in the engine's cache until the next step has run.
class SpeculativeLoop {
 public:
  SpeculativeLoop(decant::Cpu& cpu, Engine& engine, const Config& config, sampling::Processing processing,
                  std::uint64_t seed)
      : cpu_(cpu), engine_(engine), vocab_(config.vocab), processing_(processing), random_{seed}, proposals_(vocab_) {
    validate(processing_);
    decant::require(!processing_.penalises(), "runtime::SpeculativeLoop", "processing", "no penalties", "penalties");
  }

  /// Runs the prompt, draws the first token. room: for further tokens and the nodes of a draft.
  void begin(const Tokens& prompt, index_t room) {
    resume(prompt, room);
    prompt_ = static_cast<index_t>(prompt.size());
    const View<const float, 2> p = probabilities(engine_.prefill(prompt, room));
    const std::int32_t token = draw_next(cpu_, p[0], key());
    decant::require(token >= 0, "runtime::SpeculativeLoop", "logits", "finite numbers", "others");
    tokens_.push_back(token);
  }

  /// For an engine that holds all of these tokens but the last.
  void resume(const Tokens& tokens, index_t room) {
    tokens_ = tokens;
    prompt_ = static_cast<index_t>(tokens.size()) - 1;
    room_ = room;
    drafted_ = false;
  }

  /// Drafts, runs the draft, verifies it; at most `left` tokens join tokens(). Returns what became of the draft.
  speculative::StepOutcome step(const Speculation& s, index_t left) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    speculative::DraftBudget budget = s.next(signals(s, left));
    // Rows of the cache for nodes of the draft, its root included.
    const index_t spare = room_ - (static_cast<index_t>(tokens_.size()) - prompt_);
    budget.nodes = static_cast<std::int32_t>(std::min<index_t>(budget.nodes, std::max<index_t>(spare, 0)));
    budget.depth = static_cast<std::int32_t>(std::min<index_t>({budget.depth, budget.nodes, left - 1}));
    draft(s, budget);
    verify(s, run());

    const std::int32_t accepted = length_;
    std::vector<std::int32_t> path = {0};
    path.insert(path.end(), path_.begin(), path_.begin() + accepted);
    engine_.keep(path);
    tokens_.insert(tokens_.end(), emitted_.begin(), emitted_.begin() + accepted + 1);
    s.commit(View<const std::int32_t, 1>(emitted_.data(), accepted + 1));
    const std::int32_t drafted = tree_.depth();
    const speculative::StepOutcome outcome{drafted, accepted,
                                           std::chrono::duration<double>(Clock::now() - start).count()};
    s.observe(outcome);
    return outcome;
  }

  /// Prompt and text.
  const Tokens& tokens() const { return tokens_; }

  // --- the parts of a step, for those who compare policies on the same draft ----------------------------------------

  /// A new draft below the last token. The engine's draft must be empty.
  const speculative::DraftTree& draft(const Speculation& s, const speculative::DraftBudget& budget) {
    tree_.clear(tokens_.back());
    proposals_.clear();
    drafted_ = budget.depth > 0;
    if (drafted_) s.draft({View<const std::int32_t, 1>(tokens_)}, budget, tree_, proposals_, key());
    tree_.finalize();
    return tree_;
  }

  /// The model's distribution at each node of the draft, [nodes, vocab].
  View<const float, 2> run() {
    const auto first = static_cast<std::int32_t>(engine_.draft_nodes());
    Tokens tokens;
    std::vector<std::int32_t> parents;
    for (std::int32_t i = first; i < tree_.nodes(); ++i) {
      tokens.push_back(tree_.token(i));
      parents.push_back(tree_.parent(i));
    }
    if (!tokens.empty()) engine_.extend(tokens, parents, first > 0 ? engine_.draft_layers() : 0);
    return probabilities(engine_.finish());
  }

  /// Verifies the draft; the number of accepted nodes. key of the random numbers: the place of the next token.
  std::int32_t verify(const Speculation& s, View<const float, 2> p) {
    const auto levels = static_cast<index_t>(tree_.depth());
    const std::int32_t offsets[] = {0, tree_.nodes()};
    emitted_.assign(static_cast<std::size_t>(levels + 1), -1);
    path_.assign(static_cast<std::size_t>(levels + 1), -1);
    auto status = speculative::Status::ok;
    const std::uint32_t step = key().step;
    const speculative::Accepted out{View<std::int32_t, 2>(emitted_.data(), 1, levels + 1),
                                    View<std::int32_t, 2>(path_.data(), 1, levels), View<std::int32_t, 1>(&length_, 1),
                                    View<speculative::Status, 1>(&status, 1)};
    s.verify(cpu_, {tree_.view(), View<const std::int32_t, 1>(offsets, 2)}, p, proposals_.view(),
             {random_, {}, View<const std::uint32_t, 1>(&step, 1)}, out);
    decant::require(status == speculative::Status::ok, "runtime::SpeculativeLoop", "draft", "one that can be verified",
                    name(status));
    return length_;
  }
  /// What verify() would let the text go on with: that many tokens and one.
  View<const std::int32_t, 1> emitted() const { return View<const std::int32_t, 1>(emitted_.data(), length_ + 1); }

 private:
  /// Number `step`: the place of the next token in the text.
  speculative::DrawKey key() const {
    return {random_, 0, static_cast<std::uint32_t>(static_cast<index_t>(tokens_.size()) - prompt_)};
  }

  speculative::StepSignals signals(const Speculation& s, index_t left) const {
    speculative::StepSignals x;
    if (drafted_) x = s.signals();
    x.tokens_left = static_cast<std::int32_t>(left);
    x.context = static_cast<index_t>(tokens_.size()) - 1;
    return x;
  }

  View<const float, 2> probabilities(View<const float, 2> logits) {
    const auto rows = static_cast<std::size_t>(logits.extent(0));
    p_.resize(rows * static_cast<std::size_t>(vocab_));
    status_.assign(rows, sampling::RowStatus::ok);
    const View<float, 2> p(p_.data(), logits.extent(0), vocab_);
    process(cpu_, processing_, logits, {}, p, View<sampling::RowStatus, 1>(status_));
    for (const auto s : status_)
      decant::require(s == sampling::RowStatus::ok, "runtime::SpeculativeLoop", "logits", "finite numbers", "others");
    return p;
  }

  decant::Cpu& cpu_;
  Engine& engine_;
  index_t vocab_;
  sampling::Processing processing_;
  decant::Philox random_;
  Tokens tokens_;
  index_t prompt_ = 0, room_ = 0;
  speculative::DraftTree tree_;
  speculative::Proposals proposals_;
  bool drafted_ = false;  // in the last step of this text
  std::vector<float> p_;
  std::vector<sampling::RowStatus> status_;
  std::vector<std::int32_t> emitted_, path_;
  std::int32_t length_ = 0;
};

/// `count` tokens after the prompt, drafts of at most `nodes` nodes. As generate() otherwise; times include drafting.
template <class OnToken>
Generation generate_speculatively(decant::Cpu& cpu, Engine& engine, const Config& config, const Tokens& prompt,
                                  index_t count, const Speculation& s, index_t nodes, sampling::Processing processing,
                                  std::uint64_t seed, OnToken&& on_token) {
  using Clock = std::chrono::steady_clock;
  const auto milliseconds = [](Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); };
  const auto n = static_cast<index_t>(prompt.size());
  SpeculativeLoop loop(cpu, engine, config, processing, seed);
  Generation g;
  const auto start = Clock::now();
  loop.begin(prompt, std::min(count - 1 + nodes, config.context - n));
  const auto first = Clock::now();
  const auto emitted = [&] { return static_cast<index_t>(loop.tokens().size()) - n; };
  const auto take = [&] {
    g.tokens.insert(g.tokens.end(), loop.tokens().begin() + n + static_cast<index_t>(g.tokens.size()),
                    loop.tokens().end());
    on_token(std::as_const(g.tokens));
  };
  index_t steps = 0;
  for (; emitted() < count; ++steps) {
    take();
    loop.step(s, count - emitted());
  }
  take();
  g.ttft_ms = milliseconds(first - start);
  if (count > 1) {
    g.tpot_ms = milliseconds(Clock::now() - first) / static_cast<double>(count - 1);
    g.acceptance_length = static_cast<double>(count - 1) / static_cast<double>(steps);
  }
  g.kv_bytes = engine.kv_bytes();
  return g;
}

/// Names for compose(), as command lines give them.
struct SpeculationNames {
  std::string draft = "early-exit";  // ngram, suffix, early-exit, early-exit:LAYERS, pard
  std::string verify = "";           // see verifier_names(); empty: univer, or membership where nothing is drawn
  std::string gamma = "4";           // a number, throughput, speckv or edc
  std::string tree = "";             // children per node and level, as "2,2,1"; empty: a chain of gamma tokens
};

std::string verifier_names();

/// The children per node and level; ArgumentError unless numbers of at least 1, and at most 1,023 nodes in all.
std::vector<std::int32_t> parse_branching(const std::string& text);

/// A speculation by names, and how many nodes its drafts have at most. It refers to cpu, engine and model. prompt: how
/// long the context will be, for controllers that first measure what a step costs, on calibration text of that length.
struct Composed {
  Speculation speculation;
  index_t nodes = 0;
  std::string text;
};
Composed compose(decant::Cpu& cpu, Engine& engine, const Model& model, const SpeculationNames& names,
                 sampling::Processing processing, index_t prompt);

}  // namespace runtime
