// Exact enumeration against other definitions: the most that any verifier can accept of one level, as a minimal cut;
// block verification as it was published; siblings in every order; models with zeros, points and disjoint supports.
#include <decant/speculative/exact.hpp>
#include <decant/speculative/verifiers.hpp>

#include <algorithm>
#include <vector>

#include "catch_compat.hpp"

namespace exact_local_tests {

using namespace decant::speculative;
using Path = std::vector<std::int32_t>;
using Row = std::vector<Rational>;
using Rows = detail::ExactRows<Rational>;
using Choices = detail::EnumeratedChoices<Rational>;

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

/// Target and draft rows after a path, small fractions, of one kind.
struct Pair {
  enum class Kind { general, zeros, equal, disjoint, points, even } kind;
  std::uint32_t seed;
  int vocab = 3;
  std::int64_t largest = 6;

  Row row(const Path& path, bool draft) const {
    std::uint32_t state = seed * 2654435761u + (draft && kind != Kind::equal ? 977u : 0u);
    for (const std::int32_t t : path) state = (state ^ static_cast<std::uint32_t>(t + 7)) * 16777619u;
    const auto next = [&](std::int64_t below) {
      state = state * 1664525u + 1013904223u;
      return static_cast<std::int64_t>(state >> 16) % below;
    };
    std::vector<std::int64_t> w;
    for (int y = 0; y < vocab; ++y) w.push_back(kind == Kind::zeros ? next(largest) : 1 + next(largest));
    if (kind == Kind::points) {
      const auto point = at(static_cast<std::int32_t>(next(vocab)));
      for (std::size_t y = 0; y < w.size(); ++y) w[y] = y == point ? 1 : 0;
    }
    if (kind == Kind::disjoint) {
      for (std::size_t y = 0; y < w.size(); ++y) w[y] = (y == path.size() % w.size()) == draft ? w[y] : 0;
    }
    if (kind == Kind::even) w.assign(w.size(), 1);
    std::int64_t total = 0;
    for (const std::int64_t x : w) total += x;
    if (total == 0) total = w[0] = 1;
    Row r;
    for (const std::int64_t x : w) r.push_back(Rational(x, total));
    return r;
  }
  auto p() const {
    return [self = *this](const Path& path) { return self.row(path, false); };
  }
  auto q() const {
    return [self = *this](const Path& path) { return self.row(path, true); };
  }
};

constexpr Pair::Kind kinds[] = {Pair::Kind::general,  Pair::Kind::zeros,  Pair::Kind::equal,
                                Pair::Kind::disjoint, Pair::Kind::points, Pair::Kind::even};

const UniVer sampled_first{};
const UniVer paper{UniVer::Order::paper};

/// The most that can be accepted of one level of k drafts, whatever the rule: output y may be an accepted draft only
/// where it was drafted, which is a flow from sets of drafts to tokens. By its minimal cut, over all sets S of tokens:
/// p outside S and the chance that a draft lies in S.
Rational most_accepted(const Pair& pair, std::int32_t k, Law law) {
  const Row p = pair.row({}, false);
  std::vector<Rational> meets(std::size_t{1} << p.size());
  Enumerator<Rational> e;
  do {
    e.begin();
    Rows rows;
    const DraftTree tree = enumerate_draft(e, {k}, law, pair.p(), pair.q(), rows);
    for (std::size_t s = 0; s < meets.size(); ++s) {
      bool meet = false;
      for (std::int32_t i = 1; i < tree.nodes(); ++i) meet = meet || ((s >> tree.token(i)) & 1) != 0;
      if (meet) meets[s] += e.weight();
    }
  } while (e.next());
  Rational least(1);
  for (std::size_t s = 0; s < meets.size(); ++s) {
    Rational cut = meets[s];
    for (std::size_t y = 0; y < p.size(); ++y) cut += ((s >> y) & 1) == 0 ? p[y] : Rational();
    least = std::min(least, cut);
  }
  return least;
}

TEST_CASE("verification: one level of top tokens and a draw accepts as much as can be accepted", "[speculative]") {
  int less = 0;
  for (const Pair::Kind kind : kinds) {
    for (std::uint32_t seed = 1; seed <= 2; ++seed) {
      const Pair pair{kind, seed, 4};
      const auto length = [&](const auto& v, std::int32_t k, Law law) {
        const auto proof = prove<Rational>(v, {k}, law, pair.p(), pair.q());
        CHECK(proof.lossless);
        return proof.expected_length;
      };
      for (const std::int32_t k : {2, 3}) {
        INFO("kind " << static_cast<int>(kind) << ", seed " << seed << ", " << k << " drafts");
        const Rational greedy = most_accepted(pair, k, Law::greedy_plus_one);
        CHECK(length(GreedyMultiDraft{}, k, Law::greedy_plus_one) == greedy);
        CHECK(length(sampled_first, k, Law::greedy_plus_one) == greedy);
        CHECK(length(paper, k, Law::greedy_plus_one) == greedy);
        CHECK(length(Membership{}, k, Law::deterministic) == most_accepted(pair, k, Law::deterministic));
        const Rational drawn = most_accepted(pair, k, Law::without_replacement);
        const Rational accepted = length(RRSw{}, k, Law::without_replacement);
        CHECK(accepted <= drawn);
        less += accepted < drawn ? 1 : 0;
        CHECK(length(MultiRound{}, k, Law::iid) <= most_accepted(pair, k, Law::iid));
      }
      CHECK(length(ChainRejection{}, 1, Law::chain) == most_accepted(pair, 1, Law::chain));
    }
  }
  CHECK(less > 0);  // one after another without replacement is not optimal
}

/// Block verification as published: a coin of its own for every length, of which the longest that falls counts.
detail::WalkEnd literal_block(const TreeView& t, Rows& rows, Choices& choices) {
  std::vector<Rational> scale(1, Rational(1));
  std::int32_t accepted = 0;
  const auto left = [&](std::int32_t i) {
    Row w;
    for (std::int32_t y = 0; y < rows.vocab(); ++y) {
      const Rational d = scale[at(i)] * rows.target(i, y) - (i + 1 < t.nodes ? rows.draft(i, y) : Rational());
      w.push_back(d < Rational() ? Rational() : d);
    }
    return w;
  };
  for (std::int32_t i = 1; i < t.nodes; ++i) {
    const Rational ratio = scale[at(i - 1)] * rows.target(i - 1, t.token[i]) / rows.draft(i - 1, t.token[i]);
    scale.push_back(std::min(ratio, Rational(1)));
    Rational mass;
    for (const Rational& w : left(i)) mass += w;
    const Rational whole = mass + Rational(1) - scale[at(i)];
    const Rational chance = i + 1 == t.nodes ? scale[at(i)] : whole == Rational() ? Rational(1) : mass / whole;
    if (Rational() < chance && choices.enumerator.bernoulli(chance)) accepted = i;
  }
  return {Status::ok, accepted, choices.enumerator.pick(left(accepted))};
}

TEST_CASE("verification: the recursion is block verification as published", "[speculative]") {
  for (const Pair::Kind kind : kinds) {
    for (std::uint32_t seed = 1; seed <= 2; ++seed) {
      INFO("kind " << static_cast<int>(kind) << ", seed " << seed);
      const Pair pair{kind, seed};
      const Path chain = {1, 1};
      const auto published = enumerate<Rational>(
          [&](Enumerator<Rational>& e, Rows& rows) {
            return enumerate_draft(e, chain, Law::chain, pair.p(), pair.q(), rows);
          },
          literal_block, chain.size(), pair.p());
      const auto recursion = prove<Rational>(BlockVerification{}, chain, Law::chain, pair.p(), pair.q());
      CHECK(published.lossless);
      CHECK(published.expected_length == recursion.expected_length);
      CHECK(published.pass_mass == recursion.pass_mass);
    }
  }
}

/// The masses of sequential residuals, visited in another order: lossless by corollary, whatever the order.
class PermutedPlan {
 public:
  static inline std::int32_t order[3] = {};  // of three siblings; fewer keep theirs

  PermutedPlan() = default;
  PermutedPlan(const TreeView& t, std::int32_t node, const Rational& m) : sequential_(t, node, m) {}

  std::int32_t node() const { return sequential_.node(); }
  std::int32_t next(const TreeView& t) const {
    return tried_ == t.children[node()] ? -1 : t.first_child[node()] + visited(t, tried_);
  }
  Rational offer(const TreeView& t, Rows& rows, const detail::PlanScratch<Rational>& scratch) {
    if (tried_ == 0) share_out(t, rows, scratch);
    return detail::share_of(mass_[at(visited(t, tried_))], left_);
  }
  void reject(const TreeView& t, Rows&, const detail::PlanScratch<Rational>&) {
    left_ = left_ - mass_[at(visited(t, tried_))];
    ++tried_;
  }
  Rational own() const { return sequential_.own(); }
  detail::Residual<Rational> residual(const TreeView& t, const detail::PlanScratch<Rational>& scratch) const {
    return sequential_.residual(t, scratch);
  }

 private:
  std::int32_t visited(const TreeView& t, std::int32_t i) const { return t.children[node()] == 3 ? order[i] : i; }
  void share_out(const TreeView& t, Rows& rows, const detail::PlanScratch<Rational>& scratch) {
    Rational rest(1);
    while (sequential_.next(t) >= 0) {
      const Rational chance = sequential_.offer(t, rows, scratch);
      mass_.push_back(rest * chance);
      rest = rest * (Rational(1) - chance);
      sequential_.reject(t, rows, scratch);
    }
    mass_.resize(at(t.children[node()]));
  }

  detail::SequentialPlan<Rational> sequential_;
  std::vector<Rational> mass_;
  Rational left_ = Rational(1);
  std::int32_t tried_ = 0;
};

Proof<Rational> permuted(const Path& branching, Law law, const Pair& pair) {
  return enumerate<Rational>(
      [&](Enumerator<Rational>& e, Rows& rows) { return enumerate_draft(e, branching, law, pair.p(), pair.q(), rows); },
      [](const TreeView& t, Rows& rows, Choices& choices) {
        std::vector<Rational> cuts(at(t.nodes));
        std::vector<detail::Exception<Rational>> exceptions(at(t.nodes));
        std::vector<PermutedPlan> plans(at(t.nodes));
        return detail::bottom_up<Rational>(t, 0, Rational(1), plans.data(), rows, choices,
                                           {cuts.data(), exceptions.data()});
      },
      branching.size(), pair.p());
}

TEST_CASE("verification: siblings in all six orders, the paper's among them", "[speculative]") {
  for (const Pair::Kind kind : kinds) {
    const Pair pair{kind, 3, 3, 3};
    std::int32_t* const order = PermutedPlan::order;
    for (const std::int32_t first : {0, 1, 2}) {
      for (const std::int32_t second : {0, 1, 2}) {
        if (first == second) continue;
        order[0] = first;
        order[1] = second;
        order[2] = 3 - first - second;
        INFO("kind " << static_cast<int>(kind) << ", order " << first << second);
        const auto proof = permuted({3, 1}, Law::greedy_plus_one, pair);
        CHECK(proof.lossless);
        if (kind == Pair::Kind::disjoint) continue;  // fewer children than asked for
        const auto is = [&](const UniVer& v) {
          const auto named = prove<Rational>(v, {3, 1}, Law::greedy_plus_one, pair.p(), pair.q());
          CHECK(proof.pass_mass == named.pass_mass);
          CHECK(proof.law == named.law);
        };
        if (first == 0 && second == 1) is(sampled_first);
        if (first == 1 && second == 2) is(paper);  // its own masses and scales, the same numbers
      }
    }
  }
}

TEST_CASE("verification: acceptance that only asks whether a token is likely is lossy", "[speculative]") {
  const Pair pair{Pair::Kind::general, 5};
  const auto typical = [](const TreeView& t, Rows& rows, Choices& choices) {
    detail::WalkEnd end;
    for (std::int32_t i = 1; i < t.nodes; ++i) {
      if (t.parent[i] == end.node && Rational(1, 4) < rows.target(end.node, t.token[i])) end.node = i;
    }
    end.token = choices.emit(rows, {end.node, -1, Rational(1), {}, {}, nullptr, 0}, end.node);
    return end;
  };
  const auto draft = [&](Enumerator<Rational>& e, Rows& rows) {
    return enumerate_draft(e, {1, 1}, Law::chain, pair.p(), pair.q(), rows);
  };
  CHECK_FALSE(enumerate<Rational>(draft, typical, 2, pair.p()).lossless);
}

TEST_CASE("verification: a drawn token dropped for its score makes any verifier lossy", "[speculative]") {
  const Pair pair{Pair::Kind::general, 2, 3};
  const auto proof = [&](const auto& v, bool drop) {
    return enumerate<Rational>(
               [&](Enumerator<Rational>& e, Rows& rows) {
                 const DraftTree two = enumerate_draft(e, {2}, Law::without_replacement, pair.p(), pair.q(), rows);
                 if (!drop) return two;
                 const auto q = [&](std::int32_t node) { return rows.q[0][at(two.token(node))]; };
                 DraftTree best;  // the likelier of the two is kept, as if it alone had been drawn
                 best.set_law(0, Law::without_replacement, 0);
                 best.push_child(0, two.token(q(1) < q(2) ? 2 : 1), 0);
                 best.finalize();
                 return best;
               },
               [&](const TreeView& t, Rows& rows, Choices& choices) { return detail::exact_walk(v, t, rows, choices); },
               1, pair.p())
        .lossless;
  };
  CHECK(proof(RRSw{}, false));
  CHECK(proof(Traversal{}, false));
  CHECK_FALSE(proof(RRSw{}, true));
  CHECK_FALSE(proof(Traversal{}, true));
  CHECK_FALSE(proof(UniVer{}, true));
}

TEST_CASE("verification: every shape, law and kind of model in fractions", "[speculative][statistics]") {
  for (const Pair::Kind kind : kinds) {
    const Pair pair{kind, 11, 3, 3};
    const auto length = [&](const auto& v, const Path& branching, Law law) {
      INFO("kind " << static_cast<int>(kind) << ", " << name(law) << ", depth " << branching.size());
      const auto proof = prove<Rational>(v, branching, law, pair.p(), pair.q());
      CHECK(proof.lossless);
      return proof.expected_length;
    };
    const Path chain = {1, 1, 1};
    CHECK(length(ChainRejection{}, chain, Law::chain) <= length(BlockVerification{}, chain, Law::chain));
    for (const Path& branching : {Path{2, 2}, Path{3, 1}, Path{2, 1, 1}}) {
      CHECK(length(GreedyMultiDraft{}, branching, Law::greedy_plus_one) <=
            length(sampled_first, branching, Law::greedy_plus_one));
      length(paper, branching, Law::greedy_plus_one);
      CHECK(length(Membership{}, branching, Law::deterministic) ==
            length(Traversal{}, branching, Law::deterministic));
      CHECK(length(RRSw{}, branching, Law::without_replacement) <=
            length(Traversal{}, branching, Law::without_replacement));
      CHECK(length(MultiRound{}, branching, Law::iid) <= length(sampled_first, branching, Law::iid));
    }
  }
}

TEST_CASE("verification: doubles, where differences vanish but for rounding", "[speculative]") {
  for (const Pair::Kind kind : kinds) {
    const Pair pair{kind, 7};
    const auto doubles = [](const auto& rows) {
      return [rows](const Path& path) {
        std::vector<double> row;
        for (const Rational& x : rows(path)) row.push_back(static_cast<double>(x));
        return row;
      };
    };
    const auto agree = [&](const auto& v, const Path& branching, Law law) {
      INFO("kind " << static_cast<int>(kind) << ", " << name(law));
      const auto rounded = prove<double>(v, branching, law, doubles(pair.p()), doubles(pair.q()));
      const auto exact = prove<Rational>(v, branching, law, pair.p(), pair.q());
      CHECK(rounded.largest_difference < 1e-12);
      CHECK(rounded.expected_length == Approx(static_cast<double>(exact.expected_length)).margin(1e-12));
    };
    agree(BlockVerification{}, {1, 1}, Law::chain);
    agree(RRSw{}, {2, 1}, Law::without_replacement);
    agree(sampled_first, {2, 1}, Law::greedy_plus_one);
    agree(paper, {2, 1}, Law::greedy_plus_one);
  }
}

TEST_CASE("verification: accepted lengths on forty models of two levels", "[speculative][statistics]") {
  double over_rrsw = 0, over_traversal = 0, paper_over_rrsw = 0;
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const Pair pair{Pair::Kind::general, seed, 3, 4};
    const auto length = [&](const auto& v, Law law) {
      return static_cast<double>(prove<Rational>(v, {2, 2}, law, pair.p(), pair.q()).expected_length);
    };
    const double rrsw = length(RRSw{}, Law::without_replacement);
    const double univer = length(sampled_first, Law::greedy_plus_one);
    CHECK(univer >= rrsw);  // no theorem: the drafts are not the same
    over_rrsw += univer / rrsw / 40;
    paper_over_rrsw += length(paper, Law::greedy_plus_one) / rrsw / 40;
    over_traversal += univer / length(Traversal{}, Law::without_replacement) / 40;
  }
  CHECK(over_rrsw == Approx(1.106).margin(0.001));
  CHECK(paper_over_rrsw == Approx(1.101).margin(0.001));
  CHECK(over_traversal == Approx(1.088).margin(0.001));
}

}  // namespace exact_local_tests
