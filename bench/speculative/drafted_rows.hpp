// Draft trees with rows for benchmarks: targets and drafts mix nearly certain rows with open ones, as models' do
// (identical open rows flatter the better verifiers three- to fourfold); and what a step must read of them: p and q of
// a node for each sampled rejection there, p where a step ends without one, and the cache lines of drafted tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "decant/core/softmax.hpp"
#include "decant/speculative/draft_tree.hpp"
#include "decant/speculative/model_drafter.hpp"
#include "decant/speculative/verify.hpp"
#include "harness.hpp"

namespace drafted_rows {

using namespace decant;
using namespace decant::speculative;
using Shape = std::vector<std::int32_t>;

/// Turns normal numbers into a target and a draft row: easy with probability 0.6 (logits of deviation 12, the draft's
/// apart by 1), else hard (4 and 4).
inline void make_rows(float* p, float* q, index_t vocab, float u) {
  const bool easy = u < 0.6f;
  for (index_t y = 0; y < vocab; ++y) {
    p[y] *= easy ? 12.0f : 4.0f;
    q[y] = p[y] + q[y] * (easy ? 1.0f : 4.0f);
  }
  softmax(best_isa(), p, vocab, p);
  softmax(best_isa(), q, vocab, q);
}

/// How many nodes a tree of this branching has, and so how many rows it wants: no more than `budget` below the root.
inline index_t rows_of(const Shape& shape, std::int32_t budget) {
  index_t nodes = 1, level = 1;
  for (const std::int32_t k : shape) nodes += level *= k;
  return std::min<index_t>(nodes, budget + 1);
}

struct Rows {
  index_t vocab, count;
  bench::Buffer<float> p, q;

  Rows(index_t v, index_t n)
      : vocab(v), count(n), p(static_cast<std::size_t>(v * n)), q(static_cast<std::size_t>(v * n)) {
    bench::fill(p, 1);
    bench::fill(q, 2);
    for (index_t r = 0; r < n; ++r) {
      make_rows(p.data() + r * v, q.data() + r * v, v, Philox{3}.uniform(static_cast<std::uint32_t>(r)));
    }
  }
  ProbabilityRows target() const { return {p.data(), count, vocab}; }
  ProbabilityRows draft() const { return {q.data(), count, vocab}; }
};

/// A tree drawn by law L from the rows from `first` on; node i's row is first + i.
template <Law L>
DraftTree draw_tree(const float* q, index_t vocab, const Shape& shape, std::int32_t nodes, std::uint32_t request,
                    std::uint32_t step) {
  const auto forward = [&](const DraftTree&, std::int32_t begin, std::int32_t end, View<float, 2> out) {
    std::copy_n(q + begin * vocab, (end - begin) * vocab, out.data());
    return true;
  };
  ModelDrafter<L, decltype(forward)> drafter(vocab, shape, forward);
  DraftTree tree;
  Proposals copies(vocab);
  drafter.draft({}, DraftBudget{64, nodes}, tree, copies, DrawKey{Philox{7}, request, step});
  tree.finalize();
  return tree;
}

struct Results {
  index_t trees, levels;
  std::vector<std::int32_t> tokens, nodes, length;
  std::vector<Status> status;
  std::vector<float> logs;

  Results(index_t b, index_t d)
      : trees(b), levels(d), tokens(static_cast<std::size_t>(b * (d + 1))), nodes(static_cast<std::size_t>(b * d)),
        length(static_cast<std::size_t>(b)), status(length.size()), logs(tokens.size()) {}
  Accepted view() {
    return {View<std::int32_t, 2>(tokens.data(), trees, levels + 1), View<std::int32_t, 2>(nodes.data(), trees, levels),
            View<std::int32_t, 1>(length), View<Status, 1>(status), View<float, 2>(logs.data(), trees, levels + 1), {}};
  }
};

/// A piece of memory that a step reads: a row, or the cache line of one number.
struct Piece {
  const char* begin;
  std::size_t bytes;
};

/// FloatRows that note what they have to read, in order.
struct NotingRows {
  speculative::detail::FloatRows<speculative::detail::ProbabilitySource> rows;
  const float* p;
  const float* q;
  index_t vocab;
  std::vector<Piece>& pieces;
  std::int32_t passed = -1;  // the node whose totals a draw may use

  double target(std::int32_t node, std::int32_t token) {
    line(p + node * vocab + token);
    return rows.target(node, token);
  }
  double draft(std::int32_t row, std::int32_t token) {
    line(q + row * vocab + token);
    return rows.draft(row, token);
  }
  bool bad() const { return rows.bad(); }
  auto pass(const speculative::detail::Residual<double>& r, double step, std::int32_t skip) {
    read(r.node, r.q_row);
    passed = r.node;
    return rows.pass(r, step, skip);
  }
  double overlap(std::int32_t node, std::int32_t row, double rho) {
    read(node, row);
    return rows.overlap(node, row, rho);
  }
  std::int32_t draw(const speculative::detail::Residual<double>& r, double u) {
    if (r.node != passed) read(r.node, r.cut > 0 ? r.q_row : -1);
    return rows.draw(r, u);
  }

 private:
  void line(const float* number) {
    pieces.push_back({reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(number) / 64 * 64), 64});
  }
  void read(std::int32_t node, std::int32_t q_row) {
    const std::size_t bytes = static_cast<std::size_t>(vocab) * sizeof(float);
    pieces.push_back({reinterpret_cast<const char*>(p + node * vocab), bytes});
    if (q_row >= 0) pieces.push_back({reinterpret_cast<const char*>(q + q_row * vocab), bytes});
  }
};

/// What step `key` of a verifier reads on a tree whose rows are at p and, by its q_row, in q.
template <class V>
void note_step(const V& verifier, const TreeView& t, const float* p, const ProbabilityRows& q, const DrawKey& key,
               std::vector<Piece>& pieces) {
  const index_t vocab = q.extent(1);
  const auto n = static_cast<std::size_t>(t.nodes);
  std::vector<float> totals(static_cast<std::size_t>(row_tiles(vocab)));
  std::vector<double> scales(n), cuts(n);
  std::vector<speculative::detail::Exception<double>> exceptions(n);
  NotingRows noting{{best_isa(), speculative::detail::ProbabilitySource{p, vocab}, q, static_cast<std::int32_t>(vocab),
                     totals.data()},
                    p, q.data(), vocab, pieces};
  speculative::detail::PhiloxChoices choices{key};
  const auto note_with = [&](auto plans) {
    speculative::detail::walk(verifier, t, noting, choices,
                              speculative::detail::RequestScratch<typename decltype(plans)::value_type>{
                                  plans.data(), scales.data(), cuts.data(), exceptions.data()});
  };
  if constexpr (std::is_same_v<V, UniVer>) {
    if (verifier.order == UniVer::Order::paper) {
      note_with(std::vector<speculative::detail::JointPlan<double>>(n));
      return;
    }
  }
  note_with(std::vector<typename speculative::detail::PlanOf<V, double>::type>(n));
}

}  // namespace drafted_rows
