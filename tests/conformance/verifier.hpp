#pragma once
// What every Verifier must do, tested through nothing but the concept: for each law that it accepts the target's law of
// three tokens in a row where it says that it is lossless, results that fit their tree, the same ones in any batch, on
// any number of threads and over any rubbish, no allocation but the workspace's; and a status where a request is bad.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/cpu.hpp"
#include "decant/speculative/policy.hpp"
#include "oracle/drafted_trees.hpp"
#include "threads.hpp"

namespace conformance {

using decant::Cpu;
using decant::index_t;
using decant::View;
using decant::speculative::Law;
using decant::speculative::Status;
using drafted_trees::Problem;
using drafted_trees::Results;

/// Calls of operator new in the whole test program (quantizer.cpp).
extern std::atomic<long> allocations;

/// A target and a drafter that look at the last token alone.
class LastToken {
 public:
  static constexpr index_t vocab = 6;

  LastToken() : rows_(2 * vocab * vocab) {
    for (index_t row = 0; row < 2 * vocab; ++row) {
      float total = 0;
      for (index_t y = 0; y < vocab; ++y) {
        const auto bits = decant::Philox{77}(static_cast<std::uint32_t>(row * vocab + y), 0, 0, 0).word[0];
        total += at(row, y) = static_cast<float>(1 + bits % 9);
      }
      for (index_t y = 0; y < vocab; ++y) at(row, y) /= total;
    }
  }

  float p(std::int32_t after, index_t y) const { return rows_[static_cast<std::size_t>(after * vocab + y)]; }

  Problem draft(const std::vector<std::int32_t>& branching, Law law, std::uint32_t step) const {
    const auto fill = [&](float* p_row, float* q_row, std::int32_t, std::int32_t token) {
      std::copy_n(rows_.data() + token * vocab, vocab, p_row);
      std::copy_n(rows_.data() + (vocab + token) * vocab, vocab, q_row);
    };
    return drafted_trees::drafted_from(vocab, fill, branching, law, step);
  }

 private:
  float& at(index_t row, index_t y) { return rows_[static_cast<std::size_t>(row * vocab + y)]; }

  std::vector<float> rows_;
};

/// Trees of two levels.
inline std::vector<std::int32_t> branching_of(Law law) {
  return law == Law::chain ? std::vector<std::int32_t>{1, 1} : std::vector<std::int32_t>{3, 2};
}

/// A verifier through its concept, so that the suite is compiled once.
struct AnyVerifier {
  bool lossless;
  std::function<bool(Law)> accepts;
  std::function<void(Cpu&, const decant::speculative::ForestView&, const decant::speculative::ProbabilityRows&,
                     const decant::speculative::ProbabilityRows&, const decant::speculative::DrawKeys&,
                     const decant::speculative::Accepted&)>
      verify;
};

template <class V>
  requires decant::speculative::Verifier<V, Cpu>
AnyVerifier any_verifier(const V& v) {
  validate(v);
  CHECK(V(v) == v);
  return {V::lossless, [](Law law) { return V::accepts(law); },
          [v](Cpu& cpu, const auto& trees, const auto& p, const auto& q, const auto& keys, const auto& out) {
            verify(cpu, v, trees, p, q, keys, out);
          }};
}

/// Several requests, their rows one after another.
struct DraftedBatch {
  decant::speculative::DraftForest forest;
  std::vector<float> p, q;
  std::vector<std::uint32_t> requests;
  std::vector<Problem> problems;
  index_t vocab = LastToken::vocab;

  void add(const Problem& x, std::uint32_t request) {
    vocab = x.vocab;
    forest.add(x.tree.view(), static_cast<std::int32_t>(q.size() / static_cast<std::size_t>(vocab)));
    p.insert(p.end(), x.p.begin(), x.p.end());
    q.insert(q.end(), x.q.view().data(), x.q.view().data() + x.q.view().size());
    requests.push_back(request);
    problems.push_back(x);
  }

  /// Into results of that many levels that hold rubbish.
  Results run(Cpu& cpu, const AnyVerifier& v) const {
    Results r(static_cast<index_t>(requests.size()), 2);
    run(cpu, v, r);
    return r;
  }
  void run(Cpu& cpu, const AnyVerifier& v, Results& r) const {
    const auto rows = [&](const std::vector<float>& x) {
      return View<const float, 2>(x.data(), static_cast<index_t>(x.size()) / vocab, vocab);
    };
    v.verify(cpu, forest.view(), rows(p), rows(q),
             decant::speculative::DrawKeys{decant::Philox{5}, View<const std::uint32_t, 1>(requests)}, r.view());
  }
};

/// How far counts are from expectations, as a normal deviate of their chi-square (Wilson and Hilferty); cells of fewer
/// than 8 are one.
inline double chi_square_deviate(const std::vector<double>& expected, const std::vector<double>& counts) {
  double chi = 0, rest = 0, rest_count = 0;
  int cells = 0;
  const auto cell = [&](double e, double n) {
    chi += (n - e) * (n - e) / e;
    ++cells;
  };
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] >= 8) {
      cell(expected[i], counts[i]);
    } else {
      rest += expected[i];
      rest_count += counts[i];
    }
  }
  if (rest >= 8) cell(rest, rest_count);
  const double k = cells - 1;
  return (std::cbrt(chi / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
}

/// Of the first three tokens, over `steps` drafts; where fewer were emitted, the target goes on.
inline double law_deviate(Cpu& cpu, const AnyVerifier& v, Law law, index_t steps) {
  constexpr index_t vocab = LastToken::vocab;
  const LastToken model;
  std::vector<double> counts(vocab * vocab * vocab), expected(counts);
  bool good = true;
  for (index_t done = 0; done < steps;) {
    DraftedBatch batch;
    for (index_t i = 0; i < 250; ++i, ++done) {
      const auto step = static_cast<std::uint32_t>(done);
      batch.add(model.draft(branching_of(law), law, step), step);
    }
    const Results r = batch.run(cpu, v);
    for (std::size_t b = 0; b < batch.requests.size(); ++b) {
      good = good && r.status[b] == Status::ok;
      std::int32_t last = 0;
      std::size_t index = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        if (r.tokens[3 * b + i] >= 0) {
          last = r.tokens[3 * b + i];
        } else {
          double u = decant::Philox{6}.uniform_double(static_cast<std::uint32_t>(i), 0, batch.requests[b], 0);
          std::int32_t y = 0;
          while (y + 1 < vocab && (u -= static_cast<double>(model.p(last, y))) >= 0) ++y;
          last = y;
        }
        index = index * vocab + static_cast<std::size_t>(last);
      }
      ++counts[index];
    }
  }
  REQUIRE(good);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto a = static_cast<std::int32_t>(i / 36), b = static_cast<std::int32_t>(i / 6 % 6);
    expected[i] = static_cast<double>(steps) * static_cast<double>(model.p(0, a)) * static_cast<double>(model.p(a, b)) *
                  static_cast<double>(model.p(b, static_cast<index_t>(i % 6)));
  }
  return chi_square_deviate(expected, counts);
}

/// A request that is ok: a path of its tree, one token more, padding, logarithms.
inline void verifier_result(const Problem& x, const Results& r, std::size_t b) {
  const auto depth = static_cast<std::size_t>(r.levels);
  const std::int32_t* const tokens = r.tokens.data() + b * (depth + 1);
  const std::int32_t* const nodes = r.nodes.data() + b * depth;
  const float* const logs = r.log_probability.data() + b * (depth + 1);
  REQUIRE(r.status[b] == Status::ok);
  REQUIRE(r.length[b] >= 0);
  REQUIRE(r.length[b] <= static_cast<std::int32_t>(x.tree.depth()));
  const auto accepted = static_cast<std::size_t>(r.length[b]);
  std::int32_t node = 0;
  bool good = true;
  for (std::size_t i = 0; i <= accepted; ++i) {
    good = good && tokens[i] >= 0 && tokens[i] < x.vocab;
    if (!good) break;
    const float chance = x.p[static_cast<std::size_t>(node * x.vocab + tokens[i])];
    good = good && chance > 0 && logs[i] == Approx(std::log(static_cast<double>(chance))).margin(1e-5);
    if (i == accepted) break;
    good = good && nodes[i] > 0 && nodes[i] < x.tree.nodes() && x.tree.parent(nodes[i]) == node &&
           x.tree.token(nodes[i]) == tokens[i];
    if (!good) break;
    node = nodes[i];
  }
  for (std::size_t i = accepted + 1; i <= depth; ++i) good = good && tokens[i] == -1 && std::isnan(logs[i]);
  for (std::size_t i = accepted; i < depth; ++i) good = good && nodes[i] == -1;
  CHECK(good);
}

/// Emitted nothing.
inline void verifier_nothing(const Results& r, std::size_t b) {
  const auto depth = static_cast<std::size_t>(r.levels);
  bool good = r.length[b] == -1;
  for (std::size_t i = 0; i <= depth; ++i) good = good && r.tokens[b * (depth + 1) + i] == -1;
  for (std::size_t i = 0; i < depth; ++i) good = good && r.nodes[b * depth + i] == -1;
  CHECK(good);
}

/// Whether request b of one batch came out as request a of another, of as many levels.
inline bool same_request(const Results& x, std::size_t a, const Results& y, std::size_t b) {
  const auto depth = static_cast<std::size_t>(x.levels);
  const auto same = [&](const auto& of_x, const auto& of_y, std::size_t n) {
    return std::memcmp(of_x.data() + a * n, of_y.data() + b * n, n * sizeof of_x[0]) == 0;
  };
  return same(x.tokens, y.tokens, depth + 1) && same(x.nodes, y.nodes, depth) && same(x.length, y.length, 1) &&
         same(x.status, y.status, 1) && same(x.log_probability, y.log_probability, depth + 1) &&
         same(x.independent, y.independent, 1);
}

/// A bad request between good ones, which are not affected.
inline void verifier_refuses(const AnyVerifier& v, Law law, const Problem& good, std::uint32_t request) {
  Cpu cpu;
  const auto status = [&](const Problem& bad) {
    DraftedBatch batch, alone;
    batch.add(good, request);
    batch.add(bad, request + 1);
    batch.add(good, request);
    alone.add(good, request);
    const Results r = batch.run(cpu, v);
    const Results expected = alone.run(cpu, v);
    CHECK(same_request(r, 0, expected, 0));
    CHECK(same_request(r, 2, expected, 0));
    if (r.status[1] != Status::ok) verifier_nothing(r, 1);
    return r.status[1];
  };
  CHECK(status(good) == Status::ok);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), infinity, -1.0f}) {
    Problem x = good;
    std::fill(x.p.begin(), x.p.end(), value);
    INFO("rows of " << value);
    const Status found = status(x);
    // Below 0 is no mass where nothing but a draw from the whole row looks at it.
    CHECK((found == Status::bad_row || (value < 0 && found == Status::empty_support)));
  }
  Problem x = good;
  std::fill(x.p.begin(), x.p.end(), 0.0f);
  CHECK(status(x) == Status::empty_support);
  for (int other = 0; other < decant::speculative::laws; ++other) {
    const auto claimed = static_cast<Law>(other);
    if (v.accepts(claimed)) continue;
    x = good;
    x.tree.clear(0);
    x.tree.set_law(0, claimed, 0);
    x.tree.push_child(0, 1, 0);
    x.tree.finalize();
    x.p.resize(static_cast<std::size_t>(2 * x.vocab));
    CHECK(status(x) == Status::wrong_law);
  }
  for (const std::int32_t token : {-1, static_cast<std::int32_t>(good.vocab)}) {
    x = good;
    x.tree.clear(0);
    x.tree.set_law(0, law, 0);
    x.tree.push_child(0, token, 0);
    x.tree.finalize();
    x.p.resize(static_cast<std::size_t>(2 * x.vocab));
    CHECK(status(x) == Status::bad_tree);
  }
  x = good;  // deeper than there is room for
  x.tree.clear(0);
  for (std::int32_t i = 0; i < 3; ++i) {
    x.tree.set_law(i, law, 0);
    x.tree.push_child(i, 1, 0);
  }
  x.tree.finalize();
  x.p.resize(static_cast<std::size_t>(4 * x.vocab), 0.1f);
  CHECK(status(x) == Status::bad_tree);
}

inline void verifier(const AnyVerifier& v) {
  const LastToken model;
  bool accepts = false;
  for (int l = 0; l < decant::speculative::laws; ++l) {
    const auto law = static_cast<Law>(l);
    if (!v.accepts(law)) continue;
    accepts = true;
    INFO("law " << name(law));

    // A batch of trees of different shapes, and of no drafts; each by itself, in another order, on threads.
    DraftedBatch batch;
    for (std::uint32_t b = 0; b < 24; ++b) {
      std::vector<std::int32_t> branching = branching_of(law);
      branching.resize(b % 3);
      batch.add(model.draft(branching, law, b), 1000 + b);
    }
    Cpu cpu;
    Results first = batch.run(cpu, v);
    for (std::size_t b = 0; b < batch.requests.size(); ++b) verifier_result(batch.problems[b], first, b);
    DraftedBatch reversed;
    for (std::size_t b = batch.requests.size(); b-- > 0;) {
      DraftedBatch alone;
      alone.add(batch.problems[b], batch.requests[b]);
      CHECK(same_request(alone.run(cpu, v), 0, first, b));
      reversed.add(batch.problems[b], batch.requests[b]);
    }
    const Results backwards = reversed.run(cpu, v);
    for (std::size_t b = 0; b < batch.requests.size(); ++b) {
      CHECK(same_request(backwards, batch.requests.size() - 1 - b, first, b));
    }
    for (const decant::ParallelFor& threads : {real_threads(3), reversed_threads(2), reversed_threads(40)}) {
      Cpu parallel(threads);
      CHECK(batch.run(parallel, v) == first);
    }

    // Again: the same, from the workspace that it has by then; and in as much memory as that.
    Results again = first;
    std::fill(again.tokens.begin(), again.tokens.end(), 99);
    std::fill(again.length.begin(), again.length.end(), 99);
    const long before = allocations;
    batch.run(cpu, v, again);
    CHECK(allocations == before);
    CHECK(again == first);
    CHECK(cpu.workspace().used() == 0);
    std::vector<std::byte> memory(cpu.workspace().high_water() + 64);
    Cpu fixed(decant::ParallelFor{}, memory.data(), memory.size());
    CHECK(batch.run(fixed, v) == first);

    // Optional results left out, and a batch of nothing.
    Results fewer(24, 2);
    decant::speculative::Accepted out = fewer.view();
    out.log_probability = {};
    out.independent = {};
    const auto rows = [](const std::vector<float>& x) {
      return View<const float, 2>(x.data(), static_cast<index_t>(x.size()) / LastToken::vocab, LastToken::vocab);
    };
    const decant::speculative::DrawKeys keys{decant::Philox{5}, View<const std::uint32_t, 1>(batch.requests)};
    v.verify(cpu, batch.forest.view(), rows(batch.p), rows(batch.q), keys, out);
    CHECK(fewer.tokens == first.tokens);
    CHECK(fewer.length == first.length);
    CHECK_NOTHROW(DraftedBatch().run(cpu, v));

    // Shapes: refused before anything is written.
    const Results untouched(24, 2);
    fewer = untouched;
    const auto refused = [&](const decant::speculative::ProbabilityRows& p, const decant::speculative::Accepted& to) {
      CHECK_THROWS_AS(v.verify(cpu, batch.forest.view(), p, rows(batch.q), keys, to), decant::ArgumentError);
      CHECK(fewer == untouched);
    };
    const decant::speculative::ProbabilityRows p = rows(batch.p);
    refused(p.slice(0, 0, p.extent(0) - 1), fewer.view());
    refused(p.slice(1, 0, p.extent(1) - 1), fewer.view());
    out = fewer.view();
    out.length = out.length.slice(0, 0, 23);
    refused(p, out);
    out = fewer.view();
    out.nodes = out.nodes.slice(1, 0, 1);
    refused(p, out);

    verifier_refuses(v, law, batch.problems[2], 77);
  }
  CHECK(accepts);
}

/// At a deviate of 5: a false alarm once in 3.5 million laws.
inline void verifier_law(const AnyVerifier& v) {
  Cpu cpu;
  for (int l = 0; l < decant::speculative::laws; ++l) {
    const auto law = static_cast<Law>(l);
    if (!v.lossless || !v.accepts(law)) continue;
    INFO("law " << name(law));
    CHECK(law_deviate(cpu, v, law, 10000) < 5);
  }
}

}  // namespace conformance
