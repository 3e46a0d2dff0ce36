// Llama<Stack, Cache, Ctx>: one sequence of a Llama model, computed with decant alone. The stack says which technique
// of each family is used, the cache how KV rows are stored, the context where it all happens; everything else is the
// plain transformer. Read prefill() first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <decant/attention/dense.hpp>
#include <decant/attention/policy.hpp>
#include <decant/attention/santa_types.hpp>
#include <decant/attention/tree_mask.hpp>
#include <decant/core/cpu.hpp>
#include <decant/kv/eviction.hpp>
#include <decant/kv/visibility.hpp>

#include "backend.hpp"
#include "config.hpp"
#include "feed_forward.hpp"
#include "kv_cache.hpp"
#include "tokenizer.hpp"
#include "weights.hpp"

namespace runtime {

namespace kv = decant::kv;

/// Which rows the output matrix is applied to: a large one costs more than a layer.
enum class Logits { last, all };

/// Whether a prompt's KV rows are evicted while it runs, or by a later call of evict().
enum class Evict { now, later };

/// What a query sees of the cached rows: all but the last behind[i], or, of the last `nodes`, which are a draft tree,
/// what row i of `words` says (tree_mask.hpp), and all before them.
struct Seen {
  View<const std::int32_t, 1> behind{};
  View<const std::uint64_t, 1> words{};
  index_t nodes = 0;

  DECANT_HD bool allowed(index_t, index_t query, index_t key, index_t, index_t keys) const {
    if (nodes == 0) return key < keys - behind[query];
    const index_t node = key - (keys - nodes);
    return node < 0 || ((words[query * ((nodes + 63) / 64) + node / 64] >> (node % 64)) & 1) != 0;
  }
  DECANT_HD std::uint64_t word(index_t, index_t query, index_t first, index_t count, index_t, index_t keys) const {
    std::uint64_t bits = 0;
    if (nodes == 0 || first + count <= keys - nodes) return ~bits >> (64 - count);  // range() has cut the rest off
    for (index_t j = 0; j < count; ++j) bits |= std::uint64_t{allowed(0, query, first + j, 0, keys)} << j;
    return bits;
  }
  DECANT_HD decant::attention::KeyRange range(index_t, index_t query, index_t, index_t keys) const {
    return {0, nodes == 0 ? keys - behind[query] : keys};
  }
};

/// Whether an eviction policy must have seen all layers before it can choose in any.
template <class Policy>
constexpr bool needs_whole_model(const Policy&) {
  return kv::scope_of<Policy> == kv::Scope::model;
}

/// What prompts are computed with: the attention policy itself, or exact attention where it is made for decoding alone.
/// A policy of that kind overloads this.
template <class A>
const A& for_prompts(const A& a) {
  return a;
}
inline decant::attention::Dense for_prompts(const decant::attention::Santa& a) {
  return {.scale = a.scale, .soft_cap = a.soft_cap};
}

/// An attention policy as one layer uses it: one that draws random numbers draws others in every layer. (Santa's differ
/// from token to token by themselves.)
template <class A>
A in_layer(A a, index_t layer) {
  if constexpr (requires { a.layer; }) a.layer = static_cast<decltype(a.layer)>(layer);
  return a;
}

template <class Stack, class Cache, class Ctx = decant::Cpu>
class Llama {
  static_assert(decant::attention::AttentionPolicy<decltype(Stack::attention), Ctx>,
                "runtime::Llama: the stack's attention policy does not run on this context; include its .cuh for Cuda");

 public:
  /// `config` and `weights` must outlive this; `ctx` may serve several models, one call at a time.
  /// ArgumentError when the stack does not suit the model.
  Llama(Ctx& ctx, const Config& config, const Weights& weights, Stack stack, CacheOptions options = {})
      : ctx_(ctx),
        c_(config),
        w_(weights),
        stack_(std::move(stack)),
        options_(options),
        rope_(config.rope(), config.head_dim) {
    validate(stack_, config.layers);
  }

  /// Starts anew with this prompt, and makes room for `room` further tokens. Returns logits [1, vocab] of the last
  /// prompt token, or [rows, vocab] of every prompt token that runs at full depth; they are valid until the next call.
  View<const float, 2> prefill(const Tokens& prompt, index_t room, Logits which = Logits::last,
                               Evict when = Evict::now) {
    const auto n = static_cast<index_t>(prompt.size());
    decant::require(n >= 1, "runtime::Llama::prefill", "prompt", "at least 1 token", n);
    decant::require(room >= 0 && n + room <= c_.context, "runtime::Llama::prefill", "prompt and room",
                    "at most the model's context of " + std::to_string(c_.context) + " tokens", n + room);
    require_vocabulary(prompt);
    ready_ = false;  // until the last layer has run, in case that one throws
    tree_ = {};
    prompt_ = n;
    length_ = n;
    rope_.reserve(n + room);
    caches_.clear();
    // Scoring reads the prompt's queries: of one layer at a time, or of all when a budget is shared by the whole model.
    const bool streaming = when == Evict::now && !needs_whole_model(stack_.eviction);
    queries_.resize(static_cast<std::size_t>(streaming ? 1 : c_.layers));

    decant::Workspace::Scope scope(ctx_.workspace());
    std::vector<std::int32_t> rows = computed_rows(0);
    View<float, 2> x = embed(prompt, rows);
    for (index_t l = 0; l < c_.layers; ++l) {
      caches_.emplace_back(c_, static_cast<index_t>(rows.size()) + room, options_);
      // What the next layer does not compute, and no logits are wanted of, need not leave this layer.
      std::vector<std::int32_t> next = l + 1 < c_.layers ? computed_rows(l + 1) : rows;
      if (l + 1 == c_.layers && which == Logits::last) next = {static_cast<std::int32_t>(n - 1)};
      const bool evictable = holds_whole_prompt(l);
      x = run_layer(l, x, rows, places(next, rows), evictable ? &queries_of(l) : nullptr);
      drop_invisible(l, rows);
      if (evictable && streaming) evict_layer(l);
      if (on_layer_ && (streaming || when == Evict::later)) on_layer_(l);
      rows = std::move(next);
    }
    ready_ = true;
    if (when == Evict::now && !streaming) {
      evict(stack_.eviction, stack_.budget);
      for (index_t l = 0; on_layer_ && l < c_.layers; ++l) on_layer_(l);
    }
    if (when == Evict::now) queries_.clear();
    return project(x);
  }

  /// Appends decoded tokens, at full depth. Returns the logits [1, vocab] of the last of them or [tokens, vocab] of
  /// all; they are valid until the next call.
  View<const float, 2> decode(const Tokens& tokens, Logits which = Logits::last) {
    const auto m = static_cast<index_t>(tokens.size());
    decant::require(ready_, "runtime::Llama::decode", "this", "a prompt first", "none");
    decant::require(tree_.parents.empty(), "runtime::Llama::decode", "this", "keep() after a draft", "a draft");
    decant::require(m >= 1, "runtime::Llama::decode", "tokens", "at least 1 token", m);
    decant::require(length_ + m <= c_.context, "runtime::Llama::decode", "tokens",
                    "at most the model's context of " + std::to_string(c_.context) + " tokens in all", length_ + m);
    require_vocabulary(tokens);
    std::vector<std::int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(length_));
    rope_.reserve(length_ + m);

    decant::Workspace::Scope scope(ctx_.workspace());
    std::vector<std::int32_t> every(tokens.size());
    std::iota(every.begin(), every.end(), 0);
    View<float, 2> x = embed(tokens, every);
    for (index_t l = 0; l < c_.layers; ++l) {
      const bool last_only = l + 1 == c_.layers && which == Logits::last;
      x = run_layer(l, x, positions, last_only ? std::vector<std::int32_t>{every.back()} : every, nullptr);
    }
    length_ += m;
    return project(x);
  }

  /// --- a draft tree: extend() once or several times, finish(), keep(). On the processor only.

  /// Adds nodes to the draft tree that follows the sequence: parents[i] is a node, of this call or an earlier one, -1
  /// for node 0 alone. Runs them through the lowest `layers` layers, the same number for the whole tree, and returns
  /// their states there, [tokens, hidden], valid until the next call. Their KV rows follow the sequence's: until
  /// keep(), each node takes a row of the room for further tokens. masks [n, hidden]: rows in the place of embeddings
  /// that run with the tokens, a chain below the last of them, and leave nothing but their states, [tokens + n, hidden]
  /// then; meanwhile they take rows of that room, too.
  View<const float, 2> extend(const Tokens& tokens, const std::vector<std::int32_t>& parents, index_t layers,
                              View<const float, 2> masks = {}) {
    constexpr const char* where = "runtime::Llama::extend";
    const index_t masked = masks.extent(0);
    const auto m = static_cast<index_t>(tokens.size());
    const auto before = static_cast<index_t>(tree_.parents.size());
    decant::require(ready_ && !tree_.finished, where, "this", "a prompt, and no finished draft", "another state");
    decant::require(m >= 1, where, "tokens", "at least 1 token", m);
    decant::require_equal(static_cast<index_t>(parents.size()), m, where, "parents");
    decant::require(layers >= 0 && layers <= c_.layers, where, "layers", "0 to " + std::to_string(c_.layers), layers);
    decant::require(before == 0 || layers == tree_.layers, where, "layers",
                    "the draft's " + std::to_string(tree_.layers), layers);
    if (masked > 0) decant::require_equal(masks.extent(1), c_.hidden, where, "masks");
    require_vocabulary(tokens);
    std::vector<std::int32_t> positions = tree_.positions;
    for (const std::int32_t parent : parents) {
      const auto node = static_cast<std::int32_t>(positions.size());
      decant::require(node == 0 ? parent == -1 : parent >= 0 && parent < node, where, "parents",
                      "a node before each, -1 for node 0", parent);
      positions.push_back(node == 0 ? static_cast<std::int32_t>(length_)
                                    : positions[static_cast<std::size_t>(parent)] + 1);
    }
    for (index_t i = 0; i < masked; ++i) positions.push_back(positions.back() + 1);
    const index_t end = 1 + *std::max_element(positions.begin(), positions.end());
    decant::require(end <= c_.context, where, "tokens",
                    "at most the model's context of " + std::to_string(c_.context) + " tokens on a path", end);
    tree_.positions = std::move(positions);
    tree_.parents.insert(tree_.parents.end(), parents.begin(), parents.end());
    for (index_t i = 0; i < masked; ++i) tree_.parents.push_back(static_cast<std::int32_t>(before + m + i) - 1);
    tree_.layers = layers;
    rope_.reserve(end);

    decant::Workspace::Scope scope(ctx_.workspace());
    const View<float, 2> x = take(m + masked, c_.hidden);
    runtime::embed(ctx_, w_.embedding, tokens, x.slice(0, 0, m));
    for (index_t i = 0; i < masked; ++i) std::copy_n(&masks(i, 0), c_.hidden, &x(m + i, 0));
    run_tree(x, before, 0, layers);
    if (masked > 0) drop_masks(masked);
    tree_.states.resize(static_cast<std::size_t>(before * c_.hidden));  // the states of earlier masks go
    tree_.states.insert(tree_.states.end(), x.data(), x.data() + x.size());
    return View<const float, 2>(tree_.states.data() + before * c_.hidden, m + masked, c_.hidden);
  }

  /// Runs the whole tree through the layers above; logits [nodes, vocab], valid until the next call.
  View<const float, 2> finish() {
    const auto nodes = static_cast<index_t>(tree_.parents.size());
    decant::require(nodes > 0 && !tree_.finished, "runtime::Llama::finish", "this", "a draft", "none");
    decant::Workspace::Scope scope(ctx_.workspace());
    const View<float, 2> x(tree_.states.data(), nodes, c_.hidden);
    run_tree(x, 0, tree_.layers, c_.layers);
    tree_.finished = true;
    return project(x);
  }

  /// Ends the draft: the nodes of `path`, from node 0 downwards, become the sequence's next tokens, the others go. Of
  /// an unfinished draft nothing can stay.
  void keep(const std::vector<std::int32_t>& path) {
    constexpr const char* where = "runtime::Llama::keep";
    const auto nodes = static_cast<std::int32_t>(tree_.parents.size());
    decant::require(path.empty() || tree_.finished, where, "path", "nothing of an unfinished draft",
                    static_cast<index_t>(path.size()));
    std::int32_t above = -1;
    for (const std::int32_t node : path) {
      decant::require(node >= 0 && node < nodes && tree_.parents[static_cast<std::size_t>(node)] == above, where,
                      "path", "each node below the one before it", node);
      above = node;
    }
    const std::int32_t offsets[] = {0, nodes};
    const auto length = static_cast<std::int32_t>(path.size()) - 1;
    const index_t below = length > 0 ? length : 0;
    const decant::speculative::AcceptedPaths paths{
        View<const std::int32_t, 1>(offsets, 2),
        View<const std::int32_t, 2>(below > 0 ? path.data() + 1 : nullptr, 1, below),
        View<const std::int32_t, 1>(&length, 1)};
    for (index_t l = 0; l < (tree_.finished ? c_.layers : tree_.layers); ++l) cache(l).keep_path(ctx_, paths);
    length_ += static_cast<index_t>(path.size());
    tree_ = {};
  }

  /// Of the draft: its nodes so far, and how many layers extend() has run them through.
  index_t draft_nodes() const { return static_cast<index_t>(tree_.parents.size()); }
  index_t draft_layers() const { return tree_.layers; }

  /// Evicts from every layer that holds the whole prompt, after prefill(..., Evict::later) and before decode(). A copy
  /// of this object evicts from a copy of the cache.
  template <class Policy>
  void evict(const Policy& policy, const kv::Budget& budget) {
    const bool ready =
        ready_ && static_cast<index_t>(queries_.size()) == c_.layers && length_ == prompt_ && tree_.parents.empty();
    decant::require(ready, "runtime::Llama::evict", "this", "a prompt whose eviction was left for later", "none");
    using Layer = decltype(layer_view(0));
    std::vector<Layer> layers;
    for (index_t l = 0; l < evictable_layers(); ++l) layers.push_back(layer_view(l));
    std::vector<typename Backend<Ctx>::Kept> kept(layers.size());
    std::vector<kv::KeptView> views;
    for (auto& k : kept) {
      k.resize(c_.kv_heads, prompt_);
      views.push_back(k.view());
    }
    select(ctx_, policy, View<const Layer, 1>(layers), budget, View<kv::KeptView, 1>(views));
    for (std::size_t l = 0; l < layers.size(); ++l) cache(static_cast<index_t>(l)).compact(ctx_, views[l]);
    queries_.clear();
  }

  /// prefill() calls f(layer) for each layer, upwards, as soon as cache(layer) holds what prefill() leaves in it: while
  /// later layers are still to run, unless eviction needs them all first. An exception of f's ends the prefill.
  void on_layer(std::function<void(index_t layer)> f) { on_layer_ = std::move(f); }

  /// Starts anew after a prompt of `prompt` tokens that ran elsewhere. caches: its KV rows, one cache per layer, with
  /// room for the tokens to come.
  void adopt(index_t prompt, std::vector<Cache> caches) {
    constexpr const char* where = "runtime::Llama::adopt";
    decant::require(prompt >= 1 && prompt <= c_.context, where, "prompt",
                    "1 to the model's context of " + std::to_string(c_.context) + " tokens", prompt);
    decant::require_equal(static_cast<index_t>(caches.size()), c_.layers, where, "caches");
    queries_.clear();
    tree_ = {};
    caches_ = std::move(caches);
    prompt_ = prompt;
    length_ = prompt;
    ready_ = true;
  }

  index_t prompt_length() const { return prompt_; }
  /// Tokens of the sequence so far, whatever the cache has kept of them.
  index_t length() const { return length_; }
  Cache& cache(index_t layer) { return caches_[static_cast<std::size_t>(layer)]; }

  /// Bytes of the KV rows in use, over all layers and heads.
  index_t kv_bytes() {
    index_t bytes = 0;
    for (Cache& cache : caches_) bytes += cache.bytes_in_use();
    return bytes;
  }

 private:
  using Vector = typename Backend<Ctx>::template Vector<float>;

  /// A layer's queries of the whole prompt, [tokens, heads * head_dim], before and after RoPE.
  struct PromptQueries {
    Vector plain;
    Vector rotated;
  };

  /// Drafted tokens behind the sequence.
  struct Tree {
    std::vector<std::int32_t> parents, positions;  // of every node
    index_t layers = 0;                            // that have run
    bool finished = false;                         // whether the others have, too
    std::vector<float> states;                     // [nodes, hidden], above those layers
  };

  /// The prompt tokens that a layer computes.
  std::vector<std::int32_t> computed_rows(index_t layer) const {
    std::vector<std::int32_t> rows;
    for (index_t t = 0; t < prompt_; ++t) {
      if (computed(stack_.visibility, layer, c_.layers, t, prompt_)) rows.push_back(static_cast<std::int32_t>(t));
    }
    return rows;
  }

  /// Where each of `some` stands in `all`; both ascending.
  static std::vector<std::int32_t> places(const std::vector<std::int32_t>& some, const std::vector<std::int32_t>& all) {
    std::vector<std::int32_t> at;
    for (const std::int32_t token : some) {
      at.push_back(static_cast<std::int32_t>(std::lower_bound(all.begin(), all.end(), token) - all.begin()));
    }
    return at;
  }

  View<float, 2> embed(const Tokens& tokens, const std::vector<std::int32_t>& rows) {
    const auto x = take(static_cast<index_t>(rows.size()), c_.hidden);
    std::vector<std::int32_t> ids;
    for (const std::int32_t row : rows) ids.push_back(tokens[static_cast<std::size_t>(row)]);
    runtime::embed(ctx_, w_.embedding, ids, x);
    return x;
  }

  /// One transformer layer over rows x [tokens, hidden] at these positions. KV rows of all of them are cached, but only
  /// the rows `leaving` go on: their new states come back, in x's memory. `queries`, if any, receives all queries.
  /// While a prompt runs, ready_ is false.
  View<float, 2> run_layer(index_t layer, View<float, 2> x, const std::vector<std::int32_t>& positions,
                           const std::vector<std::int32_t>& leaving, PromptQueries* queries) {
    decant::Workspace::Scope scope(ctx_.workspace());
    std::vector<std::int32_t> behind;
    for (const std::int32_t row : leaving) behind.push_back(static_cast<std::int32_t>(x.extent(0)) - 1 - row);
    return run_layer(layer, x, positions, leaving, queries, Seen{stage(ctx_, behind)});
  }

  /// The same, and the rows that leave see what `seen` says.
  View<float, 2> run_layer(index_t layer, View<float, 2> x, const std::vector<std::int32_t>& positions,
                           const std::vector<std::int32_t>& leaving, PromptQueries* queries, const Seen& seen) {
    const LayerWeights& w = w_.layers[static_cast<std::size_t>(layer)];
    Cache& cache = caches_[static_cast<std::size_t>(layer)];
    const index_t tokens = x.extent(0);
    const auto outputs = static_cast<index_t>(leaving.size());
    decant::Workspace::Scope scope(ctx_.workspace());

    auto normed = take(tokens, c_.hidden);
    auto q = take(tokens, c_.heads * c_.head_dim);
    auto k = take(tokens, c_.kv_heads * c_.head_dim);
    auto v = take(tokens, c_.kv_heads * c_.head_dim);
    rms_norm(ctx_, x, w.attention_norm, c_.norm_eps, normed);
    linear(ctx_, w.q, normed, q);
    linear(ctx_, w.k, normed, k);
    linear(ctx_, w.v, normed, v);
    if (queries) store(ctx_, q, queries->plain);
    const auto at = stage(ctx_, positions);
    rope_.rotate(ctx_, heads_of(q), at);
    rope_.rotate(ctx_, heads_of(k), at);
    if (queries) store(ctx_, q, queries->rotated);
    cache.append(ctx_, heads_of(k), heads_of(v));

    x = keep_rows(ctx_, x, leaving);
    q = keep_rows(ctx_, q, leaving);
    auto attended = take(outputs, c_.heads * c_.head_dim);
    const std::vector<std::int32_t> indptr = {0, static_cast<std::int32_t>(outputs)};
    const auto attend_by = [&](const auto& policy) {
      attend(ctx_, policy, decant::attention::Queries<float>{heads_of(q), stage(ctx_, indptr)}, cache.view(),
             heads_of(attended), View<float, 2>{}, seen);
    };
    if (ready_)
      attend_by(in_layer(stack_.attention, layer));
    else
      attend_by(for_prompts(stack_.attention));
    auto update = normed.slice(0, 0, outputs);
    linear(ctx_, w.o, attended, update);
    add(ctx_, x, update);

    feed_forward(ctx_, c_, w, x);
    return x;
  }

  /// Layers [first, last) over rows x, the draft tree's nodes from `from` on, in place.
  View<float, 2> run_tree(View<float, 2> x, index_t from, index_t first, index_t last) {
    const auto nodes = static_cast<index_t>(tree_.parents.size());
    std::vector<std::uint64_t> words(static_cast<std::size_t>(decant::attention::tree_words(nodes)));
    decant::attention::tree_mask_from_parents(View<const std::int32_t, 1>(tree_.parents),
                                              View<std::uint64_t, 1>(words));
    const index_t skipped = from * ((nodes + 63) / 64);
    const Seen seen{
        {}, View<const std::uint64_t, 1>(words.data() + skipped, static_cast<index_t>(words.size()) - skipped), nodes};
    const std::vector<std::int32_t> positions(tree_.positions.begin() + from, tree_.positions.end());
    std::vector<std::int32_t> every(positions.size());
    std::iota(every.begin(), every.end(), 0);
    for (index_t l = first; l < last; ++l) run_layer(l, x, positions, every, nullptr, seen);
    return x;
  }

  /// Takes the last nodes out of an unfinished draft, and their KV rows.
  void drop_masks(index_t count) {
    const std::int32_t offsets[] = {0, static_cast<std::int32_t>(count)};
    const std::int32_t none = -1;
    const decant::speculative::AcceptedPaths paths{View<const std::int32_t, 1>(offsets, 2),
                                                   View<const std::int32_t, 2>(nullptr, 1, 0),
                                                   View<const std::int32_t, 1>(&none, 1)};
    for (index_t l = 0; l < tree_.layers; ++l) cache(l).keep_path(ctx_, paths);
    tree_.parents.resize(tree_.parents.size() - static_cast<std::size_t>(count));
    tree_.positions.resize(tree_.parents.size());
  }

  /// Final norm and output matrix.
  View<const float, 2> project(View<float, 2> x) {
    rms_norm(ctx_, x, w_.norm, c_.norm_eps, x);
    const auto logits = take(x.extent(0), c_.vocab);
    linear(ctx_, w_.head, x, logits);
    fetch(ctx_, logits, logits_);
    return View<const float, 2>(logits_.data(), logits.extent(0), logits.extent(1));
  }

  View<float, 2> take(index_t rows, index_t columns) {
    decant::Workspace& workspace = ctx_.workspace();
    return workspace.take_view<float>(rows, columns);
  }

  View<float, 3> heads_of(View<float, 2> rows) const {
    return View<float, 3>(rows.data(), rows.extent(0), rows.extent(1) / c_.head_dim, c_.head_dim);
  }

  void require_vocabulary(const Tokens& tokens) const {
    for (const Token t : tokens) {
      decant::require(t >= 0 && t < c_.vocab, "runtime::Llama", "tokens", "ids below " + std::to_string(c_.vocab), t);
    }
  }

  // --- eviction ------------------------------------------------------------------------------------------------------

  /// Takes away the rows of tokens that the layer had to compute but does not show to later ones (SPEED's pivot).
  void drop_invisible(index_t layer, const std::vector<std::int32_t>& rows) {
    std::vector<std::int32_t> shown;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (visible(stack_.visibility, layer, c_.layers, rows[i], prompt_)) shown.push_back(static_cast<std::int32_t>(i));
    }
    if (shown.size() == rows.size()) return;
    // The same rows for every head: a list that is repeated by a stride of 0.
    const auto count = static_cast<index_t>(shown.size());
    std::vector<std::int32_t> counts(static_cast<std::size_t>(c_.kv_heads), static_cast<std::int32_t>(count));
    decant::Workspace::Scope scope(ctx_.workspace());
    const View<std::int32_t, 2> repeated(stage(ctx_, shown).data(), {c_.kv_heads, count}, {0, 1});
    cache(layer).compact(ctx_, {repeated, stage(ctx_, counts)});
  }

  PromptQueries& queries_of(index_t layer) {
    return queries_[queries_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }

  /// Layers that visibility leaves less than the prompt are none of eviction's business.
  bool holds_whole_prompt(index_t layer) const {
    return kv_length(stack_.visibility, layer, c_.layers, prompt_, 0) == prompt_;
  }
  index_t evictable_layers() const {
    index_t count = 0;
    while (count < c_.layers && holds_whole_prompt(count)) ++count;
    return count;
  }

  /// What an eviction policy is shown of a layer. Positions are left out: before eviction, token t stands at position
  /// t.
  auto layer_view(index_t layer) {
    const PromptQueries& queries = queries_of(layer);
    const auto by_head = [&](const Vector& rows) {
      return View<const float, 3>(rows.data(), {c_.heads, prompt_, c_.head_dim},
                                  {c_.head_dim, c_.heads * c_.head_dim, 1});
    };
    kv::LayerView x{cache(layer).view()};
    x.layer = layer;
    x.layers = evictable_layers();
    x.queries = by_head(queries.rotated);
    x.queries_pre_rope = by_head(queries.plain);
    x.rope = c_.rope();
    return x;
  }

  /// Score, select and compact one layer, as soon as it has run.
  void evict_layer(index_t layer) {
    kept_.resize(c_.kv_heads, prompt_);
    select(ctx_, stack_.eviction, layer_view(layer), stack_.budget, kept_.view());
    cache(layer).compact(ctx_, kept_.view());
  }

  Ctx& ctx_;
  const Config& c_;
  const Weights& w_;
  Stack stack_;
  CacheOptions options_;
  typename Backend<Ctx>::Rope rope_;

  bool ready_ = false;
  index_t prompt_ = 0;
  index_t length_ = 0;
  std::vector<Cache> caches_;  // one per layer
  std::vector<PromptQueries> queries_;
  Tree tree_;
  typename Backend<Ctx>::Kept kept_;
  std::vector<float> logits_;
  std::function<void(index_t)> on_layer_;
};

}  // namespace runtime
