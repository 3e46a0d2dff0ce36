// BatchedLlama: one forward of a Llama model for several sequences at once, over a pool of KV pages that they share:
// prompt chunks and single tokens in one batch, as a Scheduler plans them. Which page belongs to whom is the caller's
// business; attention is exact. On the processor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <decant/attention/dense.hpp>
#include <decant/core/cpu.hpp>
#include <decant/kv/paged_kv.hpp>
#include <decant/kv/write.hpp>

#include "backend.hpp"
#include "config.hpp"
#include "feed_forward.hpp"
#include "ops.hpp"
#include "tokenizer.hpp"
#include "weights.hpp"

namespace runtime {

class BatchedLlama {
 public:
  /// The next tokens of one sequence.
  struct Part {
    View<const Token, 1> tokens;         // at least one
    index_t context = 0;                 // tokens before them, whose rows are in the pages
    View<const std::int32_t, 1> pages;   // of the sequence in order, room for these tokens included
  };

  /// `config` and `weights` must outlive this. Memory: pages * page_size rows in every layer.
  BatchedLlama(decant::Cpu& cpu, const Config& config, const Weights& weights, index_t pages, index_t page_size)
      : cpu_(cpu), c_(config), w_(weights), pages_(pages), page_size_(page_size), rope_(config.rope(), config.head_dim) {
    constexpr const char* where = "runtime::BatchedLlama";
    decant::require(pages >= 1 && pages <= 0x7fffffff, where, "pages", "1 to 2^31 - 1", pages);
    decant::require(page_size >= 1, where, "page_size", "at least 1", page_size);
    const auto rows = static_cast<std::size_t>(pages * page_size * c_.kv_heads * c_.head_dim);
    keys_.assign(static_cast<std::size_t>(c_.layers), std::vector<float>(rows));
    values_ = keys_;
  }

  index_t page_size() const { return page_size_; }

  /// Runs all parts; logits [parts, vocab] of the last token of each, valid until the next call. ArgumentError before
  /// anything is computed: no tokens, ids beyond the vocabulary, beyond the model's context, or without room.
  View<const float, 2> run(const std::vector<Part>& parts) {
    plan(parts);
    decant::Workspace::Scope scope(cpu_.workspace());
    View<float, 2> x = take(tokens_, c_.hidden);
    embed(cpu_, w_.embedding, ids_, x);
    for (index_t l = 0; l < c_.layers; ++l) run_layer(l, x, parts);
    x = keep_rows(cpu_, x, last_);
    rms_norm(cpu_, x, w_.norm, c_.norm_eps, x);
    logits_.resize(static_cast<std::size_t>(x.extent(0) * c_.vocab));
    const View<float, 2> logits(logits_.data(), x.extent(0), c_.vocab);
    linear(cpu_, w_.head, x, logits);
    return logits;
  }

 private:
  /// The batch's lists: ids and positions of its tokens, the parts' last ones, and the page table.
  void plan(const std::vector<Part>& parts) {
    constexpr const char* where = "runtime::BatchedLlama::run";
    ids_.clear();
    positions_.clear();
    last_.clear();
    pages_of_.clear();
    last_page_len_.clear();
    offsets_.assign(1, 0);
    page_offsets_.assign(1, 0);
    decant::require(!parts.empty(), where, "parts", "at least one", "none");
    for (const Part& part : parts) {
      const index_t n = part.tokens.extent(0), end = part.context + n;
      decant::require(n >= 1, where, "parts", "tokens", "none");
      decant::require(part.context >= 0 && end <= c_.context, where, "parts",
                      "at most the model's context of " + std::to_string(c_.context) + " tokens", end);
      const index_t used = (end + page_size_ - 1) / page_size_;
      decant::require(used <= part.pages.extent(0), where, "parts", "pages for all tokens", part.pages.extent(0));
      for (index_t i = 0; i < n; ++i) {
        decant::require(part.tokens[i] >= 0 && part.tokens[i] < c_.vocab, where, "parts",
                        "ids below " + std::to_string(c_.vocab), part.tokens[i]);
        ids_.push_back(part.tokens[i]);
        positions_.push_back(static_cast<std::int32_t>(part.context + i));
      }
      for (index_t i = 0; i < used; ++i) {
        decant::require(part.pages[i] >= 0 && part.pages[i] < pages_, where, "parts", "pages of the pool",
                        part.pages[i]);
        pages_of_.push_back(part.pages[i]);
      }
      offsets_.push_back(static_cast<std::int32_t>(ids_.size()));
      page_offsets_.push_back(static_cast<std::int32_t>(pages_of_.size()));
      last_page_len_.push_back(static_cast<std::int32_t>(end - (used - 1) * page_size_));
      last_.push_back(offsets_.back() - 1);
    }
    tokens_ = static_cast<index_t>(ids_.size());
    rope_.reserve(1 + *std::max_element(positions_.begin(), positions_.end()));
  }

  void run_layer(index_t layer, View<float, 2> x, const std::vector<Part>& parts) {
    const LayerWeights& w = w_.layers[static_cast<std::size_t>(layer)];
    decant::Workspace::Scope scope(cpu_.workspace());
    auto normed = take(tokens_, c_.hidden);
    auto q = take(tokens_, c_.heads * c_.head_dim);
    auto k = take(tokens_, c_.kv_heads * c_.head_dim);
    auto v = take(tokens_, c_.kv_heads * c_.head_dim);
    rms_norm(cpu_, x, w.attention_norm, c_.norm_eps, normed);
    linear(cpu_, w.q, normed, q);
    linear(cpu_, w.k, normed, k);
    linear(cpu_, w.v, normed, v);
    rope_.rotate(cpu_, heads_of(q), positions_);
    rope_.rotate(cpu_, heads_of(k), positions_);
    const auto cache = view(layer);
    for (std::size_t s = 0; s < parts.size(); ++s) {
      const index_t first = offsets_[s], n = parts[s].tokens.extent(0);
      decant::kv::write(cpu_, cache, static_cast<index_t>(s), parts[s].context, heads_of(k.slice(0, first, n)),
                        heads_of(v.slice(0, first, n)));
    }
    auto attended = take(tokens_, c_.heads * c_.head_dim);
    attend(cpu_, decant::attention::Dense{}, decant::attention::Queries<float>{heads_of(q), offsets_}, cache,
           heads_of(attended));
    linear(cpu_, w.o, attended, normed);
    add(cpu_, x, normed);
    feed_forward(cpu_, c_, w, x);
  }

  decant::kv::PagedKV<float> view(index_t layer) {
    const auto pool = [&](std::vector<float>& rows) {
      return View<float, 4>(rows.data(), pages_, c_.kv_heads, page_size_, c_.head_dim);
    };
    return {pool(keys_[static_cast<std::size_t>(layer)]), pool(values_[static_cast<std::size_t>(layer)]), page_offsets_,
            pages_of_, last_page_len_};
  }
  View<float, 2> take(index_t rows, index_t columns) {
    decant::Workspace& workspace = cpu_.workspace();
    return workspace.take_view<float>(rows, columns);
  }
  View<float, 3> heads_of(View<float, 2> rows) const {
    return View<float, 3>(rows.data(), rows.extent(0), rows.extent(1) / c_.head_dim, c_.head_dim);
  }

  decant::Cpu& cpu_;
  const Config& c_;
  const Weights& w_;
  index_t pages_, page_size_;
  RopeTable rope_;
  std::vector<std::vector<float>> keys_, values_;  // per layer, [pages, kv_heads, page_size, head_dim]
  std::vector<Token> ids_;
  std::vector<std::int32_t> positions_, last_, offsets_, page_offsets_, pages_of_, last_page_len_;
  std::vector<float> logits_;
  index_t tokens_ = 0;
};

}  // namespace runtime
