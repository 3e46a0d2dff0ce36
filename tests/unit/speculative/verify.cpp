// verify() on the CPU: laws by statistics, bits across instruction sets, threads, batches and ways to evaluate, statuses.
#include <decant/sampling/draw.hpp>
#include <decant/sampling/process.hpp>
#include <decant/speculative/draft_tree.hpp>
#include <decant/speculative/drafter.hpp>
#include <decant/speculative/verify.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

#include "catch_compat.hpp"
#include "oracle/drafted_trees.hpp"
#include "threads.hpp"

namespace verify_tests {

using namespace decant;
using namespace decant::speculative;
using namespace drafted_trees;

template <class V>
Results run(Cpu& cpu, const V& v, const Problem& x, std::uint32_t step, std::uint32_t request = 0,
            std::uint64_t seed = 1) {
  DraftForest forest;
  forest.add(x.tree.view());
  Results r(1, x.tree.depth());
  verify(cpu, v, forest.view(), x.target(), x.q.view(),
         DrawKeys{Philox{seed}, View<const std::uint32_t, 1>(&request, 1), View<const std::uint32_t, 1>(&step, 1)},
         r.view());
  return r;
}

/// Chi-square of counts of the likeliest 50 tokens and the rest, as a normal deviate (Wilson and Hilferty).
double chi_square_deviate(const std::vector<double>& law, const std::vector<std::int64_t>& counts, double n) {
  std::vector<std::size_t> order(law.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return law[a] > law[b]; });
  double chi = 0, tail = 0, tail_count = 0;
  int cells = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double expected = n * law[order[i]];
    const auto got = static_cast<double>(counts[order[i]]);
    if (i < 50 && expected >= 8) {
      chi += (got - expected) * (got - expected) / expected;
      ++cells;
    } else {
      tail += expected;
      tail_count += got;
    }
  }
  if (tail >= 8) {
    chi += (tail_count - tail) * (tail_count - tail) / tail;
    ++cells;
  }
  const double k = cells - 1;
  return (std::cbrt(chi / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
}

TEST_CASE("verify: the first token has the target's law; a wrong draft law is found out", "[speculative][statistics]") {
  // 13 tests at a deviate of 5: together they raise a false alarm once in 268,000 seeds.
  Cpu cpu;
  constexpr int steps = 20000;
  const Models models{40, Philox{9}, 0};
  std::vector<float> rows(80);
  models.fill(rows.data(), rows.data() + 40, 0, 0);
  const std::vector<double> p(rows.begin(), rows.begin() + 40);
  each_verifier([&](const auto& v, const std::vector<std::int32_t>& branching, Law law) {
    std::vector<std::int64_t> counts(40);
    for (int s = 0; s < steps; ++s) {
      const Problem x = drafted(models, branching, law, static_cast<std::uint32_t>(s), rows);
      const Results r = run(cpu, v, x, static_cast<std::uint32_t>(16 * s));
      REQUIRE(r.status[0] == Status::ok);
      ++counts[static_cast<std::size_t>(r.tokens[0])];
    }
    INFO("law " << name(law) << ", depth " << branching.size());
    CHECK(chi_square_deviate(p, counts, steps) < 5);
  });
  // The negative control: a greedy draft that claims to be drawn.
  std::vector<std::int64_t> counts(40);
  for (int s = 0; s < steps; ++s) {
    Problem x = drafted(models, {1}, Law::deterministic, static_cast<std::uint32_t>(s), rows);
    x.tree.set_law(0, Law::chain, 0);
    x.tree.finalize();
    ++counts[static_cast<std::size_t>(run(cpu, ChainRejection{}, x, static_cast<std::uint32_t>(s)).tokens[0])];
  }
  CHECK(chi_square_deviate(p, counts, steps) > 10);
}

TEST_CASE("verify: every instruction set gives the same bits", "[speculative]") {
  // 1024, 4096 and more tokens: whole tiles, a part of one, listed tokens in several.
  for (const index_t vocab : {7, 1024, 2500, 4096}) {
    const Models models{vocab, Philox{static_cast<std::uint64_t>(vocab)}};
    const auto check = [&](const auto& v, const std::vector<std::int32_t>& branching, Law law) {
      if (vocab == 7 && law == Law::deterministic) return;
      for (std::uint32_t s = 0; s < 6; ++s) {
        const Problem x = drafted(models, branching, law, s);
        Cpu cpu;
        cpu.set_isa(Isa::portable);
        const Results expected = run(cpu, v, x, s);
        CHECK(expected.status[0] == Status::ok);
        for (const Isa isa : {Isa::avx2, Isa::avx512}) {
          if (isa > best_isa()) continue;
          cpu.set_isa(isa);
          INFO("vocab " << vocab << " " << name(isa) << " " << name(law) << " step " << s);
          CHECK(run(cpu, v, x, s) == expected);
        }
      }
    };
    each_verifier(check);
    each_other_verifier(check);
  }
}

TEST_CASE("verify: from logits it emits what it emits from their probabilities", "[speculative]") {
  for (const index_t vocab : {70, 2500}) {
    const Philox random{static_cast<std::uint64_t>(vocab)};
    const auto check = [&](const auto& v, const std::vector<std::int32_t>& branching, Law law) {
      for (std::uint32_t s = 0; s < 4; ++s) {
        Problem x = drafted(Models{vocab, random}, branching, law, s);
        const index_t nodes = x.tree.nodes();
        std::vector<float> logits;
        for (const float p : x.p) logits.push_back(std::log(p + 1e-9f));
        std::vector<sampling::LogitRow> rows(static_cast<std::size_t>(nodes));
        std::vector<sampling::RowStatus> status(rows.size(), sampling::RowStatus::ok);
        Cpu cpu;
        const View<const float, 2> view(logits.data(), nodes, vocab);
        filter(cpu, sampling::Processing{.temperature = s == 3 ? 0.0f : 0.8f, .top_k = 40}, view,
               View<sampling::LogitRow, 1>(rows), View<sampling::RowStatus, 1>(status));
        const sampling::LogitRows target{view, View<const sampling::LogitRow, 1>(rows)};
        materialise(cpu, target, View<const sampling::RowStatus, 1>(status), View<float, 2>(x.p.data(), nodes, vocab));
        const Results expected = run(cpu, v, x, s);
        REQUIRE(expected.status[0] == Status::ok);
        for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
          if (isa > best_isa()) continue;
          cpu.set_isa(isa);
          DraftForest forest;
          forest.add(x.tree.view());
          Results r(1, x.tree.depth());
          verify(cpu, v, forest.view(), target, x.q.view(),
                 DrawKeys{Philox{1}, {}, View<const std::uint32_t, 1>(&s, 1)}, r.view());
          CHECK(r == expected);
        }
      }
    };
    each_verifier(check);
    each_other_verifier(check);
  }
}

TEST_CASE("GumbelCoupled: emits what plain racing would, whatever is drafted, and agrees as the closed form says",
          "[speculative]") {
  const Models models{30, Philox{111}, 0};
  std::vector<float> rows(60);
  models.fill(rows.data(), rows.data() + 30, 0, 0);
  double agreement = 0;
  for (std::size_t x = 0; x < 30; ++x) {
    double sum = 0;
    for (std::size_t y = 0; y < 30; ++y) {
      sum += std::max(static_cast<double>(rows[y]) / static_cast<double>(rows[x]),
                      static_cast<double>(rows[30 + y]) / static_cast<double>(rows[30 + x]));
    }
    agreement += 1 / sum;
  }
  Cpu cpu;
  int accepted = 0;
  constexpr int steps = 4000;
  for (int s = 0; s < steps; ++s) {
    const auto step = static_cast<std::uint32_t>(4 * s);
    const auto race_of = [&](const float* row, std::uint32_t at) {
      std::int32_t token = -1;
      sampling::RowStatus status = sampling::RowStatus::ok;
      sampling::race(cpu, View<const float, 2>(row, 1, 30), DrawKeys{Philox{1}, {}, View<const std::uint32_t, 1>(&at, 1)},
           {View<std::int32_t, 1>(&token, 1), View<sampling::RowStatus, 1>(&status, 1)});
      return token;
    };
    Problem x = drafted(models, {1, 1}, Law::deterministic, step, rows);
    DraftTree tree;  // a drafter that races its own distribution with the same noise
    tree.push_child(tree.push_child(0, race_of(rows.data() + 30, step), 0), race_of(rows.data() + 30, step + 1), 0);
    tree.finalize();
    x.tree = tree;
    const Results r = run(cpu, GumbelCoupled{}, x, step);
    REQUIRE(r.status[0] == Status::ok);
    for (std::int32_t i = 0; i <= r.length[0]; ++i) {
      CHECK(r.tokens[static_cast<std::size_t>(i)] == race_of(rows.data(), step + static_cast<std::uint32_t>(i)));
    }
    accepted += r.length[0] >= 1 ? 1 : 0;
  }
  // Within 5 standard errors: a false alarm once in 1.7 million seeds.
  CHECK(std::abs(accepted - steps * agreement) < 5 * std::sqrt(steps * agreement * (1 - agreement)));
}

TEST_CASE("lossy verifiers: their thresholds by brute force, and their ends", "[speculative]") {
  Cpu cpu;
  const Models models{50, Philox{121}, 0.3};
  for (std::uint32_t s = 0; s < 80; ++s) {
    const Problem x = drafted(models, {3, 2, 2}, Law::iid, s);
    const auto p = [&](std::int32_t node, std::int32_t token) {
      return static_cast<double>(x.p[static_cast<std::size_t>(node * 50 + token)]);
    };
    const auto longest = [&](const auto& stands) {
      std::vector<bool> ok(static_cast<std::size_t>(x.tree.nodes()), true);
      std::int32_t best = 0;
      for (std::int32_t i = 1; i < x.tree.nodes(); ++i) {
        const std::int32_t parent = x.tree.parent(i);
        ok[static_cast<std::size_t>(i)] = ok[static_cast<std::size_t>(parent)] && stands(parent, x.tree.token(i));
        if (ok[static_cast<std::size_t>(i)] && x.tree.depth(i) > x.tree.depth(best)) best = i;
      }
      return best;
    };
    const auto end_of = [&](const Results& r) {
      return r.length[0] == 0 ? 0 : r.nodes[static_cast<std::size_t>(r.length[0] - 1)];
    };
    const auto rank = [&](std::int32_t node, std::int32_t token) {
      int likelier = 0;
      for (std::int32_t y = 0; y < 50; ++y) likelier += p(node, y) > p(node, token) ? 1 : 0;
      return likelier;
    };
    for (const TypicalAcceptance v : {TypicalAcceptance{}, TypicalAcceptance{0.3f, 1.0f}}) {
      CHECK(end_of(run(cpu, v, x, s)) == longest([&](std::int32_t node, std::int32_t token) {
              double entropy = 0;
              for (std::int32_t y = 0; y < 50; ++y) entropy -= p(node, y) > 0 ? p(node, y) * std::log(p(node, y)) : 0;
              return (node == 0 && rank(node, token) == 0) ||
                     p(node, token) > std::min<double>(v.epsilon, v.delta * std::exp(-entropy));
            }));
    }
    CHECK(end_of(run(cpu, TypicalAcceptance{0}, x, s)) ==
          longest([&](std::int32_t node, std::int32_t token) { return p(node, token) > 0; }));
    for (const std::int32_t k : {1, 4}) {
      CHECK(end_of(run(cpu, TopKAcceptance{k}, x, s)) ==
            longest([&](std::int32_t node, std::int32_t token) { return rank(node, token) < k; }));
    }
    CHECK(run(cpu, TopKAcceptance{50}, x, s).length[0] == 3);
  }
  CHECK_THROWS_AS(validate(TypicalAcceptance{2}), ArgumentError);
  CHECK_THROWS_AS(validate(TopKAcceptance{0}), ArgumentError);
}

TEST_CASE("verify: without draft rows, where none are read; bad numbers anywhere in a row; no token without a chance",
          "[speculative]") {
  Cpu cpu;
  const Models models{50, Philox{131}, 0.3};
  const auto check = [&](const auto& v) {
    Problem x = drafted(models, {1, 1, 1}, Law::chain, 1);
    const Results expected = run(cpu, v, x, 1);
    CHECK(expected.status[0] == Status::ok);
    CHECK(expected.independent[0] == -1);
    x.q = Proposals(50);
    CHECK(run(cpu, v, x, 1) == expected);
    const auto token = static_cast<std::size_t>(x.tree.token(1));
    for (const float bad : {std::nanf(""), HUGE_VALF}) {
      Problem y = x;
      y.p[(token + 1) % 50] = bad;
      CHECK(run(cpu, v, y, 1).status[0] == Status::bad_row);
    }
    std::fill_n(x.p.begin(), 50, 0.0f);
    x.p[(token + 1) % 50] = 1;
    CHECK(run(cpu, v, x, 1).length[0] == 0);
  };
  check(GumbelCoupled{});
  check(TypicalAcceptance{});
  check(TopKAcceptance{});
}

TEST_CASE("verify: passes give the same bits on every instruction set", "[speculative]") {
  using namespace decant::speculative::detail;
  const index_t vocab = 5 * 1024 + 300;
  std::vector<float> p(static_cast<std::size_t>(vocab)), q(p);
  for (index_t y = 0; y < vocab; ++y) {
    p[static_cast<std::size_t>(y)] = Philox{1}.uniform(static_cast<std::uint32_t>(y)) / 2600;
    q[static_cast<std::size_t>(y)] = Philox{2}.uniform(static_cast<std::uint32_t>(y)) / 2600;
  }
  const Exception<double> listed[] = {{3, 0, 0}, {64, .7, .1}, {70, .7, .2}, {2047, 0, 0}, {2048, .7, .3}, {5200, 0, 0}};
  const Residual<double> residual{0, 0, .7, .4, 0, listed, 6};
  const View<const float, 2> rows_q(q.data(), 1, vocab);
  PassSums<double> first;
  double left = 0, over = 0, drawn = 0;
  for (index_t y = 0; y < vocab; ++y) {
    const auto i = static_cast<std::size_t>(y);
    const Exception<double>* e = nullptr;
    for (const auto& x : listed) e = x.token == y ? &x : e;
    left += e ? std::max(e->scale * p[i] - e->cut * q[i], 0.0) : std::max(.7 * p[i] - .9 * q[i], 0.0);
    if (e) continue;
    over += std::min(.5 * q[i], std::max(.9 * q[i] - .7 * p[i], 0.0));
    drawn += y == 4000 ? 0 : q[i];
  }
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (isa > best_isa()) continue;
    std::vector<float> totals(6), fresh(6);
    FloatRows rows(isa, ProbabilitySource{p.data(), vocab}, rows_q, static_cast<std::int32_t>(vocab), totals.data());
    const PassSums<double> sums = rows.pass(residual, .5, 4000);
    CHECK(sums.left == Approx(left).epsilon(1e-6));
    CHECK(sums.over == Approx(over).epsilon(1e-6));
    CHECK(sums.drawn == Approx(drawn).epsilon(1e-6));
    if (isa == Isa::portable) first = sums;
    CHECK(sums.left == first.left);
    CHECK(sums.over == first.over);
    CHECK(sums.drawn == first.drawn);
    // The draw that follows a pass is the draw without one.
    FloatRows again(isa, ProbabilitySource{p.data(), vocab}, rows_q, static_cast<std::int32_t>(vocab), fresh.data());
    const Exception<double> later[] = {{3, 0, 0}, {64, .7, .1}, {70, 0, 0}, {2047, 0, 0}, {2048, .7, .3}, {5200, 0, 0}};
    for (double u = 0; u < 1; u += 1 / 64.) {
      rows.pass(residual, .5, 4000);
      const Residual<double> next{0, 0, .7, .4 + .5, 0, later, 6};
      CHECK(rows.draw(next, u) == again.draw(next, u));
      CHECK(totals == fresh);
    }
  }
}

TEST_CASE("verify: lazy and level-parallel evaluation agree to the bit", "[speculative]") {
  Cpu cpu;
  const Models models{300, Philox{21}};
  for (const UniVer::Order order : {UniVer::Order::sampled_first, UniVer::Order::paper}) {
    for (const Law law : {Law::greedy_plus_one, Law::without_replacement, Law::iid, Law::deterministic}) {
      for (std::uint32_t s = 0; s < 60; ++s) {
        const Problem x = drafted(models, {3, 2, 1, 2}, law, s);
        CHECK(run(cpu, UniVer{order}, x, s) == run(cpu, UniVer{order, UniVer::Eval::level_parallel}, x, s));
      }
    }
  }
}

TEST_CASE("verify: tokens do not depend on the batch nor on threads", "[speculative][threads]") {
  const Models models{500, Philox{31}};
  std::vector<Problem> problems;
  DraftForest forest;
  std::vector<float> p, q;
  std::vector<std::uint32_t> requests, steps;
  const std::vector<std::int32_t> shapes[] = {{2, 2}, {}, {3}, {1, 1, 1}};
  for (std::uint32_t b = 0; b < 12; ++b) {
    problems.push_back(drafted(models, shapes[b % 4], Law::without_replacement, b));
    const Problem& x = problems.back();
    forest.add(x.tree.view(), static_cast<std::int32_t>(q.size() / 500));
    p.insert(p.end(), x.p.begin(), x.p.end());
    q.insert(q.end(), x.q.view().data(), x.q.view().data() + x.q.view().size());
    requests.push_back(100 + b);
    steps.push_back(7 * b);
  }
  const ProbabilityRows rows_p(p.data(), static_cast<index_t>(p.size()) / 500, 500);
  const ProbabilityRows rows_q(q.data(), static_cast<index_t>(q.size()) / 500, 500);
  const DrawKeys keys{Philox{1}, View<const std::uint32_t, 1>(requests), View<const std::uint32_t, 1>(steps)};
  Cpu serial;
  Results expected(12, 3);
  verify(serial, Traversal{}, forest.view(), rows_p, rows_q, keys, expected.view());
  for (std::size_t b = 0; b < 12; ++b) {
    const Results alone = run(serial, Traversal{}, problems[b], steps[b], requests[b]);
    CHECK(alone.length[0] == expected.length[b]);
    for (std::size_t i = 0; i <= static_cast<std::size_t>(alone.length[0]); ++i) {
      CHECK(alone.tokens[i] == expected.tokens[4 * b + i]);
    }
  }
  Cpu parallel(real_threads(4));
  Results r(12, 3);
  verify(parallel, Traversal{}, forest.view(), rows_p, rows_q, keys, r.view());
  CHECK(r == expected);
}

TEST_CASE("verify: where target and draft are one-hot, whoever accepts the law accepts the same", "[speculative]") {
  Cpu cpu;
  const Models models{60, Philox{41}};
  for (const Law law : {Law::chain, Law::without_replacement, Law::greedy_plus_one, Law::deterministic}) {
    for (std::uint32_t s = 0; s < 30; ++s) {
      Problem x = drafted(models, law == Law::chain ? std::vector<std::int32_t>{1, 1, 1} : std::vector<std::int32_t>{2, 2},
                          law, s);
      std::int32_t tau = 0;
      std::int32_t node = 0;
      for (std::int32_t i = 0; i < x.tree.nodes(); ++i) {  // greedy decoding: all mass at the likeliest token
        float* const row = x.p.data() + i * 60;
        std::int32_t best = 0;
        for (std::int32_t y = 1; y < 60; ++y) best = row[y] > row[best] ? y : best;
        for (std::int32_t y = 0; y < 60; ++y) row[y] = y == best ? 1.0f : 0.0f;
        if (i != node) continue;
        for (std::int32_t c = i + 1; c < x.tree.nodes(); ++c) {
          if (x.tree.parent(c) == i && x.tree.token(c) == best && node == i) {
            node = c;
            ++tau;
          }
        }
      }
      const auto expect = [&](const auto& v) {
        if (!v.accepts(law)) return;
        CHECK(run(cpu, v, x, s).length[0] == tau);
      };
      expect(ChainRejection{});
      expect(BlockVerification{});
      expect(MultiRound{});
      expect(RRSw{});
      expect(GreedyMultiDraft{});
      expect(Traversal{});
      expect(UniVer{});
      expect(UniVer{UniVer::Order::paper});
      expect(Membership{});
    }
  }
}

TEST_CASE("verify: Membership emits what plain decoding would", "[speculative]") {
  Cpu cpu;
  const Models models{80, Philox{51}};
  // The target after a path depends on the path's depth alone, so that plain decoding can be followed here.
  for (std::uint32_t s = 0; s < 50; ++s) {
    Problem x = drafted(models, {4, 3, 2}, Law::deterministic, s);
    for (std::int32_t i = 0; i < x.tree.nodes(); ++i) {
      std::int32_t first = i;
      for (std::int32_t j = 0; j < x.tree.nodes(); ++j) {
        if (x.tree.depth(j) == x.tree.depth(i)) {
          first = j;
          break;
        }
      }
      std::copy_n(x.p.begin() + first * 80, 80, x.p.begin() + i * 80);
    }
    const Results r = run(cpu, Membership{}, x, 10 * s, 5);
    const std::int32_t tau = r.length[0];
    std::int32_t node = 0;
    for (std::int32_t i = 0; i <= tau; ++i) {
      const View<const float, 1> row(x.p.data() + node * 80, 80);
      CHECK(r.tokens[static_cast<std::size_t>(i)] ==
            draw_next(cpu, row, DrawKey{Philox{1}, 5, 10 * s + static_cast<std::uint32_t>(i)}));
      if (i < tau) node = r.nodes[static_cast<std::size_t>(i)];
    }
  }
}

TEST_CASE("verify: log-probabilities, paths, padding, and the independent count", "[speculative]") {
  Cpu cpu;
  const Models models{100, Philox{61}};
  std::int64_t independent = 0;
  double expected = 0;
  for (std::uint32_t s = 0; s < 200; ++s) {
    const Problem x = drafted(models, {1, 1, 1}, Law::chain, s);
    const Results r = run(cpu, ChainRejection{}, x, s);
    const std::int32_t tau = r.length[0];
    std::int32_t node = 0;
    for (std::int32_t i = 0; i <= 3; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (i > tau) {
        CHECK(r.tokens[at] == -1);
        CHECK(std::isnan(r.log_probability[at]));
        continue;
      }
      const float chance = x.p[static_cast<std::size_t>(node * 100 + r.tokens[at])];
      CHECK(r.log_probability[at] == Approx(std::log(static_cast<double>(chance))));
      if (i < tau) {
        CHECK(x.tree.token(r.nodes[at]) == r.tokens[at]);
        CHECK(x.tree.parent(r.nodes[at]) == node);
        node = r.nodes[at];
      }
    }
    for (std::int32_t i = tau; i < 3; ++i) CHECK(r.nodes[static_cast<std::size_t>(i)] == -1);
    CHECK(r.independent[0] >= tau);
    independent += r.independent[0];
    for (std::int32_t i = 0; i < 3; ++i) {
      for (std::int32_t y = 0; y < 100; ++y) {
        expected += static_cast<double>(std::min(x.p[static_cast<std::size_t>(i * 100 + y)], x.q.view()(i, y)));
      }
    }
  }
  // 600 trials: within 5 standard errors of the mean overlap.
  CHECK(std::abs(static_cast<double>(independent) - expected) < 5 * std::sqrt(600 * 0.25));
}

TEST_CASE("verify: Membership counts the nodes of a chain by the draws that plain decoding makes", "[speculative]") {
  Cpu cpu;
  const Models models{60, Philox{62}};
  std::int64_t further = 0;
  for (std::uint32_t s = 0; s < 100; ++s) {
    const Problem x = drafted(models, {1, 1, 1, 1}, Law::deterministic, s);
    const Results r = run(cpu, Membership{}, x, 10 * s, 5);
    std::int32_t expected = 0;
    for (std::int32_t i = 0; i < 4; ++i) {
      const View<const float, 1> row(x.p.data() + i * 60, 60);
      const DrawKey key{Philox{1}, 5, 10 * s + static_cast<std::uint32_t>(i)};
      expected += draw_next(cpu, row, key) == x.tree.token(i + 1) ? 1 : 0;
    }
    CHECK(r.independent[0] == expected);
    further += expected - r.length[0];
  }
  CHECK(further > 0);
  CHECK(run(cpu, Membership{}, drafted(models, {2, 1}, Law::deterministic, 0), 0).independent[0] == -1);
}

TEST_CASE("verify: a bad request gets its status, the others what they would get", "[speculative]") {
  Cpu cpu;
  const Models models{70, Philox{71}};
  const Problem good = drafted(models, {2, 1}, Law::without_replacement, 5);
  const std::uint32_t requests[] = {0, 1, 0};
  const auto batch = [&](const std::function<void(Problem&)>& change) {
    Problem bad = good;
    change(bad);
    DraftForest forest;
    forest.add(good.tree.view());
    forest.add(bad.tree.view(), static_cast<std::int32_t>(good.q.rows()));
    forest.add(good.tree.view());
    std::vector<float> p, q;
    for (const Problem* x : {&good, static_cast<const Problem*>(&bad), &good}) p.insert(p.end(), x->p.begin(), x->p.end());
    for (const Problem* x : {&good, static_cast<const Problem*>(&bad)}) {
      q.insert(q.end(), x->q.view().data(), x->q.view().data() + x->q.view().size());
    }
    Results r(3, 2);
    const std::uint32_t step = 9;
    verify(cpu, RRSw{}, forest.view(), ProbabilityRows(p.data(), static_cast<index_t>(p.size()) / 70, 70),
           ProbabilityRows(q.data(), static_cast<index_t>(q.size()) / 70, 70),
           DrawKeys{Philox{1}, View<const std::uint32_t, 1>(requests, 3), View<const std::uint32_t, 1>(&step, 1)},
           r.view());
    const Results alone = run(cpu, RRSw{}, good, 9);
    for (const std::size_t b : {std::size_t{0}, std::size_t{2}}) {
      CHECK(r.status[b] == Status::ok);
      CHECK(r.length[b] == alone.length[0]);
      for (std::size_t i = 0; i < 3; ++i) CHECK(r.tokens[3 * b + i] == alone.tokens[i]);
    }
    if (r.status[1] != Status::ok) {
      CHECK(r.length[1] == -1);
      for (std::size_t i = 0; i < 3; ++i) CHECK(r.tokens[3 + i] == -1);
      CHECK(r.nodes[2] == -1);
      CHECK(r.nodes[3] == -1);
    }
    return r.status[1];
  };
  const float nan = std::nanf("");
  CHECK(batch([](Problem&) {}) == Status::ok);
  CHECK(batch([&](Problem& x) { x.p[static_cast<std::size_t>(x.tree.token(1))] = nan; }) == Status::bad_row);
  CHECK(batch([&](Problem& x) { x.p[static_cast<std::size_t>(x.tree.token(1))] = -1; }) == Status::bad_row);
  CHECK(batch([&](Problem& x) { std::fill(x.p.begin(), x.p.end(), HUGE_VALF); }) == Status::bad_row);
  CHECK(batch([&](Problem& x) { x.q.row(0)[x.tree.token(1)] = nan; }) == Status::bad_row);
  CHECK(batch([&](Problem& x) { std::fill(x.p.begin(), x.p.end(), 0.0f); }) == Status::empty_support);
  CHECK(batch([](Problem& x) {
          x.tree.set_law(0, Law::iid, 0);
          x.tree.finalize();
        }) == Status::wrong_law);
  CHECK(batch([](Problem& x) {
          x.tree.set_law(0, Law::without_replacement, 99);
          x.tree.finalize();
        }) == Status::bad_tree);
  CHECK(batch([](Problem& x) {
          x.tree.push_child(0, 70, 0);
          x.tree.finalize();
          x.p.resize(static_cast<std::size_t>(x.tree.nodes()) * 70);
        }) == Status::bad_tree);
  CHECK(batch([](Problem& x) {  // deeper than there is room for
          x.tree.push_child(4, 1, 0);
          x.tree.finalize();
          x.p.resize(static_cast<std::size_t>(x.tree.nodes()) * 70);
        }) == Status::bad_tree);
}

TEST_CASE("well_formed: arrays that are no tree", "[speculative]") {
  const Models models{50, Philox{81}};
  const Problem x = drafted(models, {2, 2}, Law::without_replacement, 1);
  const TreeView t = x.tree.view();
  CHECK(well_formed(t, 50, x.q.rows()));
  CHECK_FALSE(well_formed(t, 50, 0));
  const std::size_t n = static_cast<std::size_t>(t.nodes);
  // Every array, every node, a few values: never accepted when it differs, and nothing outside is read (sanitizers).
  for (std::size_t i = 0; i < n; ++i) {
    for (const std::int32_t value : {-2147483647 - 1, -2, -1, 0, 1, 3, 6, 7, 50, 2147483647}) {
      const auto with = [&](const std::int32_t* from, const std::int32_t* TreeView::*member) {
        std::vector<std::int32_t> copy(from, from + n);
        if (copy[i] == value) return;
        copy[i] = value;
        TreeView changed = t;
        changed.*member = copy.data();
        CHECK_FALSE(well_formed(changed, 50, x.q.rows()));
      };
      with(t.parent, &TreeView::parent);
      with(t.first_child, &TreeView::first_child);
      with(t.children, &TreeView::children);
    }
    std::vector<std::uint16_t> depth(t.depth, t.depth + n);
    depth[i] = static_cast<std::uint16_t>(depth[i] + 1);
    TreeView changed = t;
    changed.depth = depth.data();
    CHECK_FALSE(well_formed(changed, 50, x.q.rows()));
  }
}

TEST_CASE("verify: shapes are checked before anything is written", "[speculative]") {
  Cpu cpu;
  const Models models{50, Philox{91}};
  const Problem x = drafted(models, {2, 2}, Law::without_replacement, 1);
  DraftForest forest;
  forest.add(x.tree.view());
  const auto fails = [&](const std::function<void(Accepted&, ProbabilityRows&, DrawKeys&)>& change) {
    Results r(1, 2);
    Accepted out = r.view();
    ProbabilityRows p = x.target();
    DrawKeys keys{Philox{1}};
    change(out, p, keys);
    const Results before = r;
    CHECK_THROWS_AS(verify(cpu, RRSw{}, forest.view(), p, x.q.view(), keys, out), ArgumentError);
    CHECK(r == before);
  };
  fails([](Accepted& out, auto&, auto&) { out.length = {}; });
  fails([](Accepted& out, auto&, auto&) { out.nodes = out.nodes.slice(1, 0, 1); });
  fails([](Accepted&, ProbabilityRows& p, auto&) { p = p.slice(0, 0, 6); });
  fails([](Accepted&, ProbabilityRows& p, auto&) { p = p.slice(1, 0, 49); });
  const std::uint32_t two[2] = {};
  fails([&](Accepted&, auto&, DrawKeys& keys) { keys.requests = View<const std::uint32_t, 1>(two, 2); });
}

TEST_CASE("verify: the second call takes no more scratch", "[speculative]") {
  Cpu cpu;
  const Models models{3000, Philox{101}};
  const Problem x = drafted(models, {3, 2}, Law::greedy_plus_one, 1);
  run(cpu, UniVer{}, x, 1);
  const std::size_t before = cpu.workspace().high_water();
  Cpu fixed(ParallelFor{}, nullptr, 0);
  CHECK_THROWS_AS(run(fixed, UniVer{}, x, 1), WorkspaceError);
  std::vector<std::byte> memory(before + 4096);
  Cpu enough(ParallelFor{}, memory.data(), memory.size());
  CHECK(run(enough, UniVer{}, x, 1) == run(cpu, UniVer{}, x, 1));
}

}  // namespace verify_tests
