// Verification of draft trees on one core: microseconds a step, against a plain read of what the step must read, in the
// same order (drafted_rows.hpp), and how many tokens are accepted. All trees have rows of their own, and caches are
// filled with something else before each round of them, for the limit too: rows come from memory. The error of a time
// is the largest difference of a log-probability from its row's; that of a length its standard error.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "drafted_rows.hpp"
#include "harness.hpp"

namespace {

using namespace drafted_rows;

/// Reads all of it again, where it lies: one buffer is faster than another, by how the system has backed it.
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
    const index_t per_tree = rows_of(shape, budget);
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
        note_step(verifier, t, p, rows.draft(), DrawKeys{Philox{static_cast<std::uint64_t>(i)}}.at(b), pieces);
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
      if (batch * vocab > 4'000'000) continue;  // trees of the batch would take gigabytes
      add<ChainRejection, Law::chain>(suite, {}, "ChainRejection", eight, "chain8", vocab, batch);
      add<BlockVerification, Law::chain>(suite, {}, "BlockVerification", eight, "chain8", vocab, batch);
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
