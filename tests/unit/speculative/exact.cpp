// Exact enumeration of the verification recursion: golden fractions, losslessness on random models, what must fail.
#include <decant/speculative/exact.hpp>
#include <decant/speculative/verifiers.hpp>

#include "catch_compat.hpp"

namespace exact_tests {

using namespace decant::speculative;
using Path = std::vector<std::int32_t>;
using Row = std::vector<Rational>;

const Row p = {Rational(1, 2), Rational(1, 3), Rational(1, 6)};
const Row q = {Rational(1, 6), Rational(1, 2), Rational(1, 3)};
const auto target = [](const Path&) { return p; };
const auto drafted = [](const Path&) { return q; };

template <class V>
Rational golden(const V& v, const Path& branching, Law law) {
  const auto proof = prove<Rational>(v, branching, law, target, drafted);
  CHECK(proof.lossless);
  Rational sum;
  for (std::size_t i = 1; i < proof.pass_mass.size(); ++i) sum += proof.pass_mass[i];
  CHECK(sum == proof.expected_length);
  CHECK(proof.pass_mass[0] == Rational(1));
  return proof.expected_length;
}

/// Bottom up on independent siblings: no verifier of its own but UniVer, which takes every law.
const UniVer sampled_first{};
const UniVer paper{UniVer::Order::paper};
const UniVer levels{UniVer::Order::sampled_first, UniVer::Eval::level_parallel};
const UniVer paper_levels{UniVer::Order::paper, UniVer::Eval::level_parallel};

TEST_CASE("verification: golden expected lengths, as fractions", "[speculative]") {
  CHECK(golden(ChainRejection{}, {1, 1, 1}, Law::chain) == Rational(38, 27));
  CHECK(golden(BlockVerification{}, {1, 1, 1}, Law::chain) == Rational(341, 216));
  CHECK(golden(MultiRound{}, {2, 2}, Law::iid) == Rational(403, 324));
  CHECK(golden(KSeq{2}, {2, 2}, Law::iid) == Rational(22705, 20736));
  CHECK(golden(sampled_first, {2, 2}, Law::iid) == Rational(869, 648));
  CHECK(golden(RRSw{}, {2, 2}, Law::without_replacement) == Rational(6985, 5184));
  CHECK(golden(Traversal{}, {2, 2}, Law::without_replacement) == Rational(7549, 5184));
  CHECK(golden(GreedyMultiDraft{}, {2, 2}, Law::greedy_plus_one) == Rational(55, 36));
  CHECK(golden(sampled_first, {2, 2}, Law::greedy_plus_one) == Rational(29, 18));
  CHECK(golden(paper, {2, 2}, Law::greedy_plus_one) == Rational(29, 18));
  CHECK(golden(GreedyMultiDraft{}, {3, 1}, Law::greedy_plus_one) == Rational(5, 3));
  CHECK(golden(paper, {3, 1}, Law::greedy_plus_one) == Rational(11, 6));
  CHECK(golden(sampled_first, {3, 1}, Law::greedy_plus_one) == Rational(16, 9));
  CHECK(golden(GreedyMultiDraft{}, {2, 1, 1}, Law::greedy_plus_one) == Rational(95, 54));
  CHECK(golden(paper, {2, 1, 1}, Law::greedy_plus_one) == Rational(2));
  CHECK(golden(sampled_first, {2, 1, 1}, Law::greedy_plus_one) == Rational(215, 108));
  CHECK(golden(RRSw{}, {3, 1}, Law::without_replacement) == Rational(5, 3));
  CHECK(golden(Traversal{}, {3, 1}, Law::without_replacement) == Rational(31, 18));
  // Deterministic trees: whoever is lossless accepts the same.
  CHECK(golden(Membership{}, {2, 2}, Law::deterministic) == Rational(3, 4));
  CHECK(golden(RRSw{}, {2, 2}, Law::deterministic) == Rational(3, 4));
  CHECK(golden(Traversal{}, {2, 2}, Law::deterministic) == Rational(3, 4));
  CHECK(golden(paper, {2, 2}, Law::deterministic) == Rational(3, 4));
}

TEST_CASE("verification: the binary example of block verification, outcome by outcome", "[speculative]") {
  const Row p2 = {Rational(1, 3), Rational(2, 3)};
  const Row q2 = {Rational(2, 3), Rational(1, 3)};
  const auto t = [&](const Path&) { return p2; };
  const auto d = [&](const Path&) { return q2; };
  CHECK(prove<Rational>(ChainRejection{}, {1, 1}, Law::chain, t, d).expected_length == Rational(10, 9));
  CHECK(prove<Rational>(BlockVerification{}, {1, 1}, Law::chain, t, d).expected_length == Rational(11, 9));
  std::map<Path, Rational> law;  // accepted tokens and the final one
  Enumerator<Rational> e;
  do {
    e.begin();
    detail::ExactRows<Rational> rows;
    const DraftTree tree = enumerate_draft(e, {1, 1}, Law::chain, t, d, rows);
    detail::EnumeratedChoices<Rational> choices{e};
    const detail::WalkEnd end = detail::exact_walk(BlockVerification{}, tree.view(), rows, choices);
    Path path;
    for (std::int32_t node = end.node; node > 0; node = tree.parent(node)) path.insert(path.begin(), tree.token(node));
    path.push_back(end.token);
    law[path] += e.weight();
  } while (e.next());
  const std::map<Path, Rational> expected = {
      {{0, 0, 0}, {1, 27}}, {{0, 0, 1}, {2, 27}}, {{1}, {1, 3}},        {{0, 1, 0}, {2, 27}}, {{0, 1, 1}, {4, 27}},
      {{1, 0, 0}, {1, 27}}, {{1, 0, 1}, {2, 27}}, {{1, 1}, {1, 9}}, {{1, 1, 0}, {1, 27}}, {{1, 1, 1}, {2, 27}}};
  CHECK(law == expected);
}

/// A model whose rows depend on the path: small integers over their sum, one of the special cases for some seeds.
struct Model {
  unsigned seed;
  int vocab = 3;

  Row operator()(const Path& path) const {
    unsigned state = seed * 2654435761u + 12345u;
    const auto draw = [&](unsigned bound) {
      state = state * 1664525u + 1013904223u;
      return static_cast<std::int64_t>((state >> 16) % bound);
    };
    for (const std::int32_t t : path) state = (state ^ static_cast<unsigned>(t + 7)) * 16777619u;
    std::vector<std::int64_t> w;
    std::int64_t total = 0;
    const bool zeros = seed % 3 == 0;
    for (int y = 0; y < vocab; ++y) {
      w.push_back(zeros ? draw(3) : 1 + draw(6));
      total += w.back();
    }
    if (total == 0) total = w[0] = 1;  // a point mass
    Row row;
    for (const std::int64_t x : w) row.push_back(Rational(x, total));
    return row;
  }
};

template <class V>
Rational lossless_length(const V& v, const Path& branching, Law law, const Model& t, const Model& d) {
  const auto proof = prove<Rational>(v, branching, law, t, d);
  INFO("law " << name(law) << ", seeds " << t.seed << " and " << d.seed);
  CHECK(proof.lossless);
  return proof.expected_length;
}

TEST_CASE("verification: lossless on random context-dependent models, in fractions", "[speculative]") {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const Model t{seed};
    const Model d{seed == 3 ? seed : seed + 100};  // for one of them p = q
    const Path chain = {1, 1};
    const Rational token = lossless_length(ChainRejection{}, chain, Law::chain, t, d);
    const Rational block = lossless_length(BlockVerification{}, chain, Law::chain, t, d);
    CHECK(!(block < token));
    CHECK(lossless_length(sampled_first, chain, Law::chain, t, d) == block);
    CHECK(lossless_length(Traversal{}, chain, Law::chain, t, d) == block);
    CHECK(lossless_length(RRSw{}, chain, Law::chain, t, d) == token);
    for (const Path& tree : {Path{2, 1}, Path{3}, Path{2}}) {
      lossless_length(MultiRound{}, tree, Law::iid, t, d);
      lossless_length(sampled_first, tree, Law::iid, t, d);
      const Rational rrsw = lossless_length(RRSw{}, tree, Law::without_replacement, t, d);
      const Rational traversal = lossless_length(Traversal{}, tree, Law::without_replacement, t, d);
      CHECK(!(traversal < rrsw));
      CHECK(lossless_length(levels, tree, Law::without_replacement, t, d) == traversal);
      const Rational greedy = lossless_length(GreedyMultiDraft{}, tree, Law::greedy_plus_one, t, d);
      const Rational univer = lossless_length(sampled_first, tree, Law::greedy_plus_one, t, d);
      const Rational by_paper = lossless_length(paper, tree, Law::greedy_plus_one, t, d);
      CHECK(!(univer < greedy));
      CHECK(!(by_paper < greedy));
      CHECK(lossless_length(levels, tree, Law::greedy_plus_one, t, d) == univer);
      CHECK(lossless_length(paper_levels, tree, Law::greedy_plus_one, t, d) == by_paper);
      const Rational membership = lossless_length(Membership{}, tree, Law::deterministic, t, d);
      CHECK(lossless_length(RRSw{}, tree, Law::deterministic, t, d) == membership);
      CHECK(lossless_length(sampled_first, tree, Law::deterministic, t, d) == membership);
    }
  }
}

TEST_CASE("verification: K-SEQ is lossless for every valid rho", "[speculative]") {
  for (const int rho : {1, 2, 3}) {
    // Valid where the chance of accepting any does not exceed rho times the overlap: rho = 1 is not, in general.
    const auto proof = prove<Rational>(KSeq{static_cast<float>(rho)}, {3}, Law::iid, target, drafted);
    if (rho > 1) CHECK(proof.lossless);
  }
  const auto proof = prove<double>(KSeq{}, {2}, Law::iid, [](const Path&) { return std::vector<double>{.5, 1 / 3., 1 / 6.}; },
                                   [](const Path&) { return std::vector<double>{1 / 6., .5, 1 / 3.}; });
  CHECK(proof.lossless);  // rho found by bisection: 3/2, and then 3/4 are accepted
  CHECK(proof.expected_length == Approx(0.75).margin(1e-9));
}

/// The chance that the subtree of `root`, asked at scale m, passes, and the law of the token that it emits at once.
template <class Plan>
void check_pass_chance(const Path& branching, Law law, const Model& t, const Model& d, const Rational& m) {
  // The root's children are subtrees; the first of them is asked, whatever its token.
  std::map<Path, Rational> passed;  // by the drafts outside the first subtree
  std::map<Path, Rational> drawn;
  Enumerator<Rational> e;
  do {
    e.begin();
    detail::ExactRows<Rational> rows;
    const DraftTree tree = enumerate_draft(e, branching, law, t, d, rows);
    const TreeView v = tree.view();
    detail::EnumeratedChoices<Rational> choices{e};
    std::vector<Rational> cuts(static_cast<std::size_t>(v.nodes));
    std::vector<detail::Exception<Rational>> exceptions(static_cast<std::size_t>(v.nodes));
    std::vector<Plan> plans(static_cast<std::size_t>(v.nodes));
    const detail::WalkEnd end = detail::bottom_up<Rational>(v, 1, m, plans.data(), rows, choices,
                                                            {cuts.data(), exceptions.data()});
    Path outside;
    for (std::int32_t i = 1; i < v.nodes; ++i) {
      bool below = false;
      for (std::int32_t a = v.parent[i]; a > 0; a = v.parent[a]) below = below || a == 1;
      if (!below) outside.push_back(v.token[i]);
    }
    drawn[outside] += e.weight();
    if (end.token >= 0) passed[outside] += e.weight();
  } while (e.next());
  for (const auto& [outside, weight] : drawn) CHECK(passed[outside] == m * weight);
}

TEST_CASE("verification: a subtree asked at scale m passes with chance m, whatever else was drafted", "[speculative]") {
  for (const Rational& m : {Rational(1, 5), Rational(2, 3), Rational(1)}) {
    for (unsigned seed : {5u, 6u}) {
      const Model t{seed};
      const Model d{seed + 50};
      check_pass_chance<detail::SequentialPlan<Rational>>({1, 2}, Law::without_replacement, t, d, m);
      check_pass_chance<detail::SequentialPlan<Rational>>({2, 2}, Law::greedy_plus_one, t, d, m);
      check_pass_chance<detail::JointPlan<Rational>>({2, 2}, Law::greedy_plus_one, t, d, m);
      check_pass_chance<detail::SequentialPlan<Rational>>({1, 2}, Law::iid, t, d, m);
    }
  }
}

/// A verifier that is wrong in one way.
template <class Verify>
Proof<Rational> refute(const Path& branching, Law law, const Verify& verify) {
  return enumerate<Rational>(
      [&](Enumerator<Rational>& e, detail::ExactRows<Rational>& rows) {
        return enumerate_draft(e, branching, law, target, drafted, rows);
      },
      verify, branching.size(), target);
}

/// Traversal with the scale that a public implementation uses: min(R / (1 - Q(x)), 1) instead of R / (R + 1 - m).
class BiasedPlan {
 public:
  BiasedPlan() = default;
  BiasedPlan(const TreeView&, std::int32_t node, const Rational& m) : node_(node), m_(m) {}
  std::int32_t node() const { return node_; }
  std::int32_t next(const TreeView& t) const { return tried_ == t.children[node_] ? -1 : t.first_child[node_] + tried_; }
  template <class Rows>
  Rational offer(const TreeView& t, Rows& rows, const detail::PlanScratch<Rational>&) {
    if (tried_ == 0) {
      w_ = rows.p[static_cast<std::size_t>(node_)];
      q_ = rows.q[static_cast<std::size_t>(node_)];
    }
    const auto x = static_cast<std::size_t>(t.token[t.first_child[node_] + tried_]);
    return detail::share_of<Rational>(m_ * w_[x], q_[x]);
  }
  template <class Rows>
  void reject(const TreeView& t, Rows&, const detail::PlanScratch<Rational>&) {
    const auto x = static_cast<std::size_t>(t.token[t.first_child[node_] + tried_++]);
    Rational r;
    for (std::size_t y = 0; y < w_.size(); ++y) {
      w_[y] = m_ * w_[y] < q_[y] ? Rational() : m_ * w_[y] - q_[y];
      r += w_[y];
    }
    const Rational rest = Rational(1) - q_[x];
    m_ = rest == Rational() ? Rational(1) : detail::share_of<Rational>(r, rest);
    q_[x] = Rational();
    for (std::size_t y = 0; y < w_.size(); ++y) {
      if (!(r == Rational())) w_[y] = w_[y] / r;
      if (!(rest == Rational())) q_[y] = q_[y] / rest;
    }
  }
  Rational own() const { return node_ == 0 ? Rational(1) : m_; }
  detail::Residual<Rational> residual(const TreeView&, const detail::PlanScratch<Rational>& scratch) const {
    if (tried_ == 0) return {node_, -1, Rational(1), {}, {}, nullptr, 0};
    // Every token is listed with its own mass over p.
    exceptions_.clear();
    for (std::size_t y = 0; y < w_.size(); ++y) {
      exceptions_.push_back({static_cast<std::int32_t>(y), w_[y] / p[y], Rational()});
    }
    (void)scratch;
    return {node_, -1, Rational(1), {}, {}, exceptions_.data(), static_cast<std::int32_t>(exceptions_.size())};
  }

 private:
  std::int32_t node_ = 0;
  std::int32_t tried_ = 0;
  Rational m_;
  Row w_, q_;
  mutable std::vector<detail::Exception<Rational>> exceptions_;
};

TEST_CASE("verification: what must not be lossless is not", "[speculative]") {
  using Rows = detail::ExactRows<Rational>;
  using Choices = detail::EnumeratedChoices<Rational>;
  SECTION("a biased scale after a rejection") {
    const auto biased = [](const TreeView& t, Rows& rows, Choices& choices) {
      std::vector<BiasedPlan> plans(static_cast<std::size_t>(t.nodes));
      return detail::bottom_up<Rational>(t, 0, Rational(1), plans.data(), rows, choices, {});
    };
    CHECK_FALSE(refute({2, 2}, Law::without_replacement, biased).lossless);
    CHECK_FALSE(refute({3, 1}, Law::without_replacement, biased).lossless);
  }
  SECTION("a drafted token judged before it is verified") {
    const auto wide = [](const Path&) { return Row{Rational(1, 2), Rational(1, 4), Rational(1, 4)}; };
    const auto narrow = [](const Path&) { return Row{Rational(1, 8), Rational(1, 8), Rational(3, 4)}; };
    const auto proof = [&](bool drop) {
      return enumerate<Rational>(
          [&](Enumerator<Rational>& e, Rows& rows) {
            DraftTree tree = enumerate_draft(e, {2}, Law::iid, wide, narrow, rows);
            if (!drop || tree.token(1) != tree.token(2)) return tree;
            DraftTree fewer;  // the duplicate is dropped, as if it had never been drawn
            fewer.set_law(0, Law::iid, 0);
            fewer.push_child(0, tree.token(1), 0);
            fewer.finalize();
            return fewer;
          },
          [](const TreeView& t, Rows& rows, Choices& choices) {
            return detail::exact_walk(MultiRound{}, t, rows, choices);
          },
          1, wide);
    };
    CHECK_FALSE(proof(true).lossless);
    CHECK(proof(false).lossless);
  }
  SECTION("a greedy drafter's softmax taken for its law") {
    const auto proof = enumerate<Rational>(
        [](Enumerator<Rational>& e, Rows& rows) {
          DraftTree tree = enumerate_draft(e, {1, 1}, Law::deterministic, target, drafted, rows);
          tree.set_law(0, Law::chain, 0);
          tree.set_law(1, Law::chain, 1);
          tree.finalize();
          return tree;
        },
        [](const TreeView& t, Rows& rows, Choices& choices) {
          return detail::exact_walk(ChainRejection{}, t, rows, choices);
        },
        2, target);
    CHECK_FALSE(proof.lossless);
  }
  SECTION("top-p on what verification is to emit") {
    const auto proof = refute({1}, Law::chain, [](const TreeView& t, Rows& rows, Choices& choices) {
      detail::WalkEnd end = detail::exact_walk(ChainRejection{}, t, rows, choices);
      if (end.node == 1 && end.token == 2) end.token = 0;  // the tail is cut after the fact
      return end;
    });
    CHECK_FALSE(proof.lossless);
  }
  SECTION("drawing order ignored: siblings without replacement visited backwards") {
    const auto proof = enumerate<Rational>(
        [](Enumerator<Rational>& e, Rows& rows) {
          const DraftTree tree = enumerate_draft(e, {2}, Law::without_replacement, target, drafted, rows);
          DraftTree backwards;
          backwards.set_law(0, Law::without_replacement, 0);
          for (std::int32_t i = tree.nodes() - 1; i > 0; --i) backwards.push_child(0, tree.token(i), 0);
          backwards.finalize();
          return backwards;
        },
        [](const TreeView& t, Rows& rows, Choices& choices) { return detail::exact_walk(RRSw{}, t, rows, choices); }, 1,
        target);
    CHECK_FALSE(proof.lossless);
  }
}

TEST_CASE("verification: the shape below a node may depend on tokens of other branches", "[speculative]") {
  // Only the root's child with the larger q is expanded; both were drawn before.
  const auto draft = [](Enumerator<Rational>& e, detail::ExactRows<Rational>& rows) {
    detail::ExactRows<Rational> first;
    const DraftTree two = enumerate_draft(e, {2}, Law::without_replacement, target, drafted, first);
    DraftTree tree;
    rows.p.assign(4, p);
    rows.q.assign(4, q);
    tree.set_law(0, Law::without_replacement, 0);
    tree.push_child(0, two.token(1), 0);
    tree.push_child(0, two.token(2), 0);
    const auto q_of = [&](std::int32_t node) { return q[static_cast<std::size_t>(two.token(node))]; };
    const std::int32_t larger = q_of(1) < q_of(2) ? 2 : 1;
    tree.set_law(larger, Law::chain, larger);
    tree.push_child(larger, e.pick(q), 0);
    tree.finalize();
    return tree;
  };
  const auto verify = [](const auto& v) {
    return [v](const TreeView& t, detail::ExactRows<Rational>& rows, detail::EnumeratedChoices<Rational>& choices) {
      return detail::exact_walk(v, t, rows, choices);
    };
  };
  CHECK(enumerate<Rational>(draft, verify(RRSw{}), 2, target).lossless);
  CHECK(enumerate<Rational>(draft, verify(Traversal{}), 2, target).lossless);
}

TEST_CASE("verification: doubles agree with fractions", "[speculative]") {
  const auto as_double = [](const Model& m) {
    return [m](const Path& path) {
      std::vector<double> row;
      for (const Rational& x : m(path)) row.push_back(static_cast<double>(x));
      return row;
    };
  };
  const Model t{8};
  const Model d{21};
  for (const Law law : {Law::without_replacement, Law::greedy_plus_one, Law::deterministic, Law::iid}) {
    const auto exact = prove<Rational>(sampled_first, {2, 1}, law, t, d);
    const auto rounded = prove<double>(sampled_first, {2, 1}, law, as_double(t), as_double(d));
    CHECK(rounded.lossless);
    CHECK(rounded.expected_length == Approx(static_cast<double>(exact.expected_length)).margin(1e-12));
  }
}

TEST_CASE("Rational: arithmetic, order, text, and what does not fit", "[speculative]") {
  CHECK(Rational(2, -4) == Rational(-1, 2));
  CHECK((Rational(1, 6) + Rational(1, 10)).text() == "4/15");
  CHECK((Rational(1, 2) - Rational(1, 2)).text() == "0");
  CHECK((Rational(2, 3) / Rational(-4, 9)).text() == "-3/2");
  CHECK(Rational(1, 3) < Rational(1, 2));
  CHECK(Rational::parse("-7/21", "p") == Rational(-1, 3));
  for (const char* bad : {"", "1/", "/2", "1/0", "a", "1/-2", "0.5", "1/2/3"}) {
    CHECK_THROWS_AS(Rational::parse(bad, "p"), decant::ArgumentError);
  }
  Rational x(1);
  CHECK_THROWS_AS(([&] { for (int i = 0; i < 200; ++i) x *= Rational(1, 1000003 + i); })(), decant::ArgumentError);
}

}  // namespace exact_tests
