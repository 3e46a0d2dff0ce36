// Trees drawn by each law from synthetic models, with their rows, and the memory of a batch of results.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "decant/core/random.hpp"
#include "decant/core/softmax.hpp"
#include "decant/speculative/accepted.hpp"
#include "decant/speculative/draft_tree.hpp"
#include "decant/speculative/drafter.hpp"
#include "decant/speculative/verifiers.hpp"

namespace drafted_trees {

using namespace decant;
using namespace decant::speculative;

/// Rows of random logits' softmax: an easy row is nearly deterministic in both, a hard one is not.
struct Models {
  index_t vocab;
  Philox random{};
  double easy_rows = 0.6;

  void fill(float* p, float* q, std::uint32_t row, std::uint32_t step) const {
    std::vector<float> a(static_cast<std::size_t>(vocab)), b(a);
    const bool easy = random.uniform_double(0, step, row, 99) < easy_rows;
    for (index_t y = 0; y < vocab; ++y) {
      // Two normals of one counter.
      const Philox4 bits = random(static_cast<std::uint32_t>(y + 1), step, row, 99);
      const double r = std::sqrt(-2 * std::log(static_cast<double>(Philox::to_unit(bits.word[0]))));
      const double angle = 6.283185307179586 * static_cast<double>(Philox::to_unit(bits.word[1]));
      const double logit = r * std::cos(angle) * (easy ? 12 : 4);
      a[static_cast<std::size_t>(y)] = static_cast<float>(logit);
      b[static_cast<std::size_t>(y)] = static_cast<float>(logit + r * std::sin(angle) * (easy ? 1 : 4));
    }
    softmax(Isa::portable, a.data(), vocab, p);
    softmax(Isa::portable, b.data(), vocab, q);
  }
};

/// One drafted tree with its rows.
struct Problem {
  DraftTree tree;
  Proposals q;
  std::vector<float> p;
  index_t vocab = 0;

  View<const float, 2> target() const { return View<const float, 2>(p.data(), tree.nodes(), vocab); }
};

inline std::int32_t draw(const std::vector<double>& w, double u) {
  double total = 0;
  for (const double x : w) total += x;
  double sum = 0;
  std::int32_t last = -1;
  for (std::size_t i = 0; i < w.size(); ++i) {
    if (w[i] <= 0) continue;
    last = static_cast<std::int32_t>(i);
    sum += w[i];
    if (sum > u * total) break;
  }
  return last;
}

/// Draws a tree of this branching by a law. fill(p, q, node, token): the rows of a node, which that token leads to.
template <class Fill>
Problem drafted_from(index_t vocab, const Fill& fill, const std::vector<std::int32_t>& branching, Law law,
                     std::uint32_t step) {
  Problem x;
  x.vocab = vocab;
  x.q = Proposals(vocab);
  const DrawKey key{Philox{4711}, 3, step};
  for (std::int32_t node = 0; node < x.tree.nodes(); ++node) {
    std::vector<float> p(static_cast<std::size_t>(vocab));
    const std::int32_t row = x.q.add();
    fill(p.data(), x.q.row(row).data(), node, x.tree.token(node));
    x.p.insert(x.p.end(), p.begin(), p.end());
    const auto level = static_cast<std::size_t>(x.tree.depth(node));
    if (level == branching.size()) continue;
    std::vector<double> left(x.q.row(row).data(), x.q.row(row).data() + vocab);
    std::vector<std::int32_t> top, tokens;
    std::int32_t k = branching[level];
    double rest = 0;
    if (law == Law::greedy_plus_one || law == Law::deterministic) {
      for (std::int32_t i = 0; i < k - (law == Law::greedy_plus_one ? 1 : 0); ++i) {
        std::size_t best = 0;
        for (std::size_t y = 1; y < left.size(); ++y) best = left[y] > left[best] ? y : best;
        top.push_back(static_cast<std::int32_t>(best));
        left[best] = 0;
      }
      for (const double w : left) rest += w;
      k = law == Law::greedy_plus_one ? 1 : 0;
    }
    for (std::int32_t i = 0; i < k; ++i) {
      tokens.push_back(draw(left, key.uniform(static_cast<std::uint32_t>(node * 8 + i), Stream::draft)));
      if (law == Law::without_replacement) left[static_cast<std::size_t>(tokens.back())] = 0;
    }
    tokens.insert(tokens.end(), top.begin(), top.end());
    x.tree.set_law(node, law, law == Law::deterministic ? -1 : row, static_cast<float>(rest));
    for (const std::int32_t token : tokens) x.tree.push_child(node, token, 0);
  }
  x.tree.finalize();
  return x;
}

/// From synthetic models, or with the same rows everywhere: p and then q.
inline Problem drafted(const Models& models, const std::vector<std::int32_t>& branching, Law law, std::uint32_t step,
                       const std::vector<float>& rows = {}) {
  const auto fill = [&](float* p, float* q, std::int32_t node, std::int32_t) {
    if (rows.empty()) {
      models.fill(p, q, static_cast<std::uint32_t>(node), step);
    } else {
      std::copy_n(rows.begin(), models.vocab, p);
      std::copy_n(rows.begin() + models.vocab, models.vocab, q);
    }
  };
  return drafted_from(models.vocab, fill, branching, law, step);
}

/// Results of a batch, with the memory.
struct Results {
  index_t trees, levels;
  std::vector<std::int32_t> tokens, nodes, length, independent;
  std::vector<Status> status;
  std::vector<float> log_probability;

  Results(index_t b, index_t d)
      : trees(b), levels(d), tokens(count(b * (d + 1)), -7), nodes(count(b * d), -7), length(count(b), -7),
        independent(count(b), -7), status(count(b), Status::bad_tree), log_probability(count(b * (d + 1)), -7.0f) {}
  static std::size_t count(index_t n) { return static_cast<std::size_t>(n); }
  Accepted view() {
    return {View<std::int32_t, 2>(tokens.data(), trees, levels + 1),
            View<std::int32_t, 2>(nodes.data(), trees, levels),
            View<std::int32_t, 1>(length),
            View<Status, 1>(status),
            View<float, 2>(log_probability.data(), trees, levels + 1),
            View<std::int32_t, 1>(independent)};
  }
  bool operator==(const Results& o) const {
    return tokens == o.tokens && nodes == o.nodes && length == o.length && independent == o.independent &&
           status == o.status &&
           std::memcmp(log_probability.data(), o.log_probability.data(), 4 * log_probability.size()) == 0;
  }
};

/// Each verifier with a tree and a law that it is for.
template <class F>
void each_verifier(F&& f) {
  f(ChainRejection{}, std::vector<std::int32_t>{1, 1, 1, 1}, Law::chain);
  f(BlockVerification{}, std::vector<std::int32_t>{1, 1, 1, 1}, Law::chain);
  f(MultiRound{}, std::vector<std::int32_t>{3, 2}, Law::iid);
  f(KSeq{}, std::vector<std::int32_t>{3, 2}, Law::iid);
  f(RRSw{}, std::vector<std::int32_t>{3, 2}, Law::without_replacement);
  f(GreedyMultiDraft{}, std::vector<std::int32_t>{3, 2}, Law::greedy_plus_one);
  f(Traversal{}, std::vector<std::int32_t>{3, 2}, Law::without_replacement);
  f(UniVer{}, std::vector<std::int32_t>{3, 2}, Law::greedy_plus_one);
  f(UniVer{UniVer::Order::paper}, std::vector<std::int32_t>{3, 2}, Law::greedy_plus_one);
  f(UniVer{}, std::vector<std::int32_t>{2, 2}, Law::iid);
  f(UniVer{}, std::vector<std::int32_t>{3, 2}, Law::deterministic);
  f(Membership{}, std::vector<std::int32_t>{3, 2}, Law::deterministic);
  f(Membership{}, std::vector<std::int32_t>{1, 1, 1, 1}, Law::deterministic);
}

/// Those that are lossy, or draw by a race.
template <class F>
void each_other_verifier(F&& f) {
  f(GumbelCoupled{}, std::vector<std::int32_t>{3, 2}, Law::without_replacement);
  f(TypicalAcceptance{}, std::vector<std::int32_t>{3, 2}, Law::greedy_plus_one);
  f(TopKAcceptance{}, std::vector<std::int32_t>{3, 2}, Law::iid);
}

}  // namespace drafted_trees
