// Verification of draft trees on one core: microseconds a step, against a plain read of what the step must read, in the
// same order (p and q of a node for each sampled rejection there, p where a step ends without one, and the cache lines
// of drafted tokens), and how many tokens are accepted. Targets and drafts mix nearly certain rows with open ones, as
// models' do: identical open rows flatter the better verifiers three- to fourfold. All trees have rows of their own, and
// caches are filled with something else before each round of them, for the limit too: rows come from memory. The error
// of a time is the largest difference of a log-probability from its row's; that of a length its standard error.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "decant/core/softmax.hpp"
#include "decant/speculative/draft_tree.hpp"
#include "decant/speculative/model_drafter.hpp"
#include "decant/speculative/verify.hpp"
#include "harness.hpp"

namespace {

using namespace decant;
using namespace decant::speculative;
using Shape = std::vector<std::int32_t>;

/// Turns normal numbers into a target and a draft row: easy with probability 0.6 (logits of deviation 12, the draft's
/// apart by 1), else hard (4 and 4).
void make_rows(float* p, float* q, index_t vocab, float u) {
  const bool easy = u < 0.6f;
  for (index_t y = 0; y < vocab; ++y) {
    p[y] *= easy ? 12.0f : 4.0f;
    q[y] = p[y] + q[y] * (easy ? 1.0f : 4.0f);
  }
  softmax(best_isa(), p, vocab, p);
  softmax(best_isa(), q, vocab, q);
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

/// Reads them again, where they lie: one buffer is faster than another, by how the system has backed it.
bench::Limit reads(const std::vector<Piece>& pieces) {
  return {"stream_read", [&pieces] {
            std::uint64_t all = 0;
            for (const Piece& piece : pieces) {
              if (piece.bytes == 64) all ^= static_cast<unsigned char>(*piece.begin);
              else all ^= bench::detail::read(best_isa(), piece.begin, piece.bytes);
            }
            benchmark::DoNotOptimize(all);
          }};
}

/// Fills the caches with memory that nobody else reads.
class ColdCaches {
 public:
  void operator()() {
    std::uint64_t all = bench::detail::read(best_isa(), memory_.data(), memory_.size());
    benchmark::DoNotOptimize(all);
  }

 private:
  bench::Buffer<char> memory_{std::size_t{96} << 20};
};

/// Verifies `count` trees of a shape, `batch` at a time, one after another.
template <class V, Law L>
void add(bench::Suite& suite, const V& verifier, const std::string& policy, const Shape& shape, const std::string& text,
         index_t vocab, index_t batch, std::int32_t budget = 1000) {
  const auto body = [=](bench::Row& row) {
    index_t per_tree = 1;
    index_t level = 1;
    for (const std::int32_t k : shape) per_tree += level *= k;
    per_tree = std::min<index_t>(per_tree, budget + 1);
    const index_t wanted = (index_t{192} << 20) / (8 * vocab * per_tree) + 1;  // trees in 192 MiB of rows
    const index_t count = (wanted + batch - 1) / batch * batch;
    const Rows rows(vocab, count * per_tree);
    std::vector<DraftForest> forests;
    std::vector<index_t> first;
    for (index_t b = 0; b < count; ++b) {
      if (b % batch == 0) {
        forests.emplace_back();
        first.push_back(b * per_tree);
      }
      const DraftTree tree = draw_tree<L>(rows.q.data() + b * per_tree * vocab, vocab, shape, budget,
                                          static_cast<std::uint32_t>(b), 0);
      forests.back().add(tree.view(), static_cast<std::int32_t>(b * per_tree));
    }
    Cpu cpu;
    ColdCaches cold;
    Results r(batch, static_cast<index_t>(shape.size()));
    const Accepted out = r.view();
    const auto run = [&](std::size_t i) {
      const auto seed = static_cast<std::uint64_t>(i);
      verify(cpu, verifier, forests[i].view(), rows.target().slice(0, first[i], batch * per_tree), rows.draft(),
             DrawKeys{Philox{seed}}, out);
    };
    std::vector<Piece> pieces;
    double error = 0;
    for (std::size_t i = 0; i < forests.size(); ++i) {
      run(i);
      for (index_t b = 0; b < batch; ++b) {
        const TreeView t = forests[i].view().tree(b);
        if (out.status[b] != Status::ok) throw std::runtime_error("a step failed");
        std::int32_t node = 0;
        const float* const p = rows.p.data() + (first[i] + b * per_tree) * vocab;
        for (std::int32_t d = 0; d <= out.length[b]; ++d) {
          const double exact = std::log(static_cast<double>(p[node * vocab + out.tokens(b, d)]));
          error = std::max(error, std::abs(exact - static_cast<double>(out.log_probability(b, d))));
          if (d < out.length[b]) node = out.nodes(b, d);
        }
        // The same walk once more, noted.
        using Plan = typename speculative::detail::PlanOf<V, double>::type;
        const auto n = static_cast<std::size_t>(t.nodes);
        std::vector<float> totals(static_cast<std::size_t>(row_tiles(vocab)));
        std::vector<double> scales(n), cuts(n);
        std::vector<speculative::detail::Exception<double>> exceptions(n);
        NotingRows noting{{best_isa(), speculative::detail::ProbabilitySource{p, vocab}, rows.draft(),
                           static_cast<std::int32_t>(vocab), totals.data()},
                          p, rows.q.data(), vocab, pieces};
        speculative::detail::PhiloxChoices choices{DrawKeys{Philox{static_cast<std::uint64_t>(i)}}.at(b)};
        const auto note_with = [&](auto plans) {
          speculative::detail::walk(verifier, t, noting, choices,
                                    speculative::detail::RequestScratch<typename decltype(plans)::value_type>{
                                        plans.data(), scales.data(), cuts.data(), exceptions.data()});
        };
        if constexpr (std::is_same_v<V, UniVer>) {
          if (verifier.order == UniVer::Order::paper) {
            note_with(std::vector<speculative::detail::JointPlan<double>>(n));
          } else {
            note_with(std::vector<Plan>(n));
          }
        } else {
          note_with(std::vector<Plan>(n));
        }
      }
    }
    const double steps = static_cast<double>(count);
    row.measure({.ours = [&] { for (std::size_t i = 0; i < forests.size(); ++i) run(i); },
                 .limit = reads(pieces),
                 .reset = [&] { cold(); },
                 .clock =
                     [steps](const bench::Call& call) {
                       const auto start = std::chrono::steady_clock::now();
                       call();
                       return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / steps;
                     },
                 .error = error});
  };
  suite.add({.primitive = "verify",
             .policy = policy,
             .shape = bench::shape("v", vocab, "tree", text, "batch", batch)},
            body);
}

/// Accepted tokens and the bonus, per step, on binary trees of 5 levels over 500 tokens, with rows of their own for each
/// step: the ratio to RRSw on trees of the same rows.
constexpr index_t length_vocab = 500;
constexpr std::int32_t length_nodes = 63;
void add_lengths(bench::Suite& suite) {
  const auto against_rrsw = [&suite](const std::string& policy, auto verifier, auto law) {
    suite.add({.primitive = "accept", .policy = policy, .shape = bench::shape("v", length_vocab, "tree", "2x2x2x2x2")},
              [verifier, &suite](bench::Row& row) {
                constexpr index_t vocab = length_vocab;
                constexpr std::int32_t nodes = length_nodes;
                const int steps = suite.quick() ? 200 : 12000;
                const Shape shape = {2, 2, 2, 2, 2};
                Cpu cpu;
                Results r(1, 5);
                bench::Buffer<float> p(vocab * nodes), q(vocab * nodes);
                double sum = 0, base = 0, squares = 0, base_squares = 0, products = 0;
                for (int s = 0; s < steps; ++s) {
                  const auto step = static_cast<std::uint32_t>(s);
                  bench::fill(p, 2 * step + 1);
                  bench::fill(q, 2 * step + 2);
                  for (index_t i = 0; i < nodes; ++i) {
                    make_rows(p.data() + i * vocab, q.data() + i * vocab, vocab,
                              Philox{5}.uniform(static_cast<std::uint32_t>(i), step));
                  }
                  const auto length = [&](const auto& v, const DraftTree& tree) {
                    DraftForest forest;
                    forest.add(tree.view());
                    verify(cpu, v, forest.view(), ProbabilityRows(p.data(), tree.nodes(), vocab),
                           ProbabilityRows(q.data(), nodes, vocab),
                           DrawKeys{Philox{9}, {}, View<const std::uint32_t, 1>(&step, 1)}, r.view());
                    return r.length[0] + 1.0;
                  };
                  const double a = length(verifier, draw_tree<std::remove_const_t<decltype(law)>::value>(q.data(), vocab, shape, 1000, 0, step));
                  const double b =
                      length(RRSw{}, draw_tree<Law::without_replacement>(q.data(), vocab, shape, 1000, 0, step));
                  sum += a;
                  base += b;
                  squares += a * a;
                  base_squares += b * b;
                  products += a * b;
                }
                // The standard error of a ratio of means, paired.
                const double n = steps, found = sum / base;
                const double variance = (squares - 2 * found * products + found * found * base_squares) / n;
                row.figure({.metric = "ratio_to_rrsw",
                            .unit = "ratio",
                            .value = found,
                            .error = std::sqrt(variance / n) / (base / n)});
              });
  };
  against_rrsw("Traversal", Traversal{}, std::integral_constant<Law, Law::without_replacement>{});
  against_rrsw("GreedyMultiDraft", GreedyMultiDraft{}, std::integral_constant<Law, Law::greedy_plus_one>{});
  against_rrsw("UniVer paper", UniVer{UniVer::Order::paper}, std::integral_constant<Law, Law::greedy_plus_one>{});
  against_rrsw("UniVer sampled_first", UniVer{}, std::integral_constant<Law, Law::greedy_plus_one>{});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("speculative", argc, argv);
  const Shape four(4, 1), eight(8, 1), tree = {4, 2, 2, 1}, eagle = {4, 3, 2, 2};
  for (const long vocab : suite.sizes({32000, 128256})) {
    for (const long batch : suite.sizes({1, 16, 64})) {
      add<ChainRejection, Law::chain>(suite, {}, "ChainRejection", four, "chain4", vocab, batch);
      if (batch > 16) continue;  // trees of the batch would take gigabytes
      add<ChainRejection, Law::chain>(suite, {}, "ChainRejection", eight, "chain8", vocab, batch);
      add<BlockVerification, Law::chain>(suite, {}, "BlockVerification", eight, "chain8", vocab, batch);
      if (batch > 1 && vocab > 100000) continue;
      add<RRSw, Law::without_replacement>(suite, {}, "RRSw", tree, "4x2x2x1", vocab, batch);
      add<Traversal, Law::without_replacement>(suite, {}, "Traversal", tree, "4x2x2x1", vocab, batch);
      add<GreedyMultiDraft, Law::greedy_plus_one>(suite, {}, "GreedyMultiDraft", tree, "4x2x2x1", vocab, batch);
      add<UniVer, Law::greedy_plus_one>(suite, {}, "UniVer sampled_first lazy", tree, "4x2x2x1", vocab, batch);
      add<UniVer, Law::greedy_plus_one>(suite, {UniVer::Order::paper}, "UniVer paper lazy", tree, "4x2x2x1", vocab, batch);
      add<UniVer, Law::greedy_plus_one>(suite, {UniVer::Order::sampled_first, UniVer::Eval::level_parallel},
                                        "UniVer sampled_first level_parallel", tree, "4x2x2x1", vocab, batch);
      add<MultiRound, Law::iid>(suite, {}, "MultiRound", tree, "4x2x2x1", vocab, batch);
      add<KSeq, Law::iid>(suite, {}, "KSeq", tree, "4x2x2x1", vocab, batch);
      add<Membership, Law::deterministic>(suite, {}, "Membership", eagle, "eagle60", vocab, batch, 59);
      add<UniVer, Law::deterministic>(suite, {}, "UniVer sampled_first lazy", eagle, "eagle60", vocab, batch, 59);
    }
  }
  add_lengths(suite);
  return suite.run();
}
