// Drafting without a network, microseconds a step: n-grams, whose limit is one read of the context, suffix tries, what a
// finished answer costs a full one, and SpecBlock's tree from the logits of its two forwards. The n-gram peer is a search
// that tries every length at every place. Error 0: the drafts are the peer's, or well-formed trees.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "decant/core/random.hpp"
#include "decant/speculative/block_drafter.hpp"
#include "decant/speculative/ngram.hpp"
#include "decant/speculative/suffix.hpp"
#include "harness.hpp"

namespace {

using namespace decant;
using namespace decant::speculative;
using Tokens = std::vector<std::int32_t>;

/// Text of phrases: one in five tokens begins a phrase that has been there before, as in code and answers that quote.
Tokens text(index_t length) {
  Tokens tokens;
  const Philox random{3};
  for (std::uint32_t i = 0; static_cast<index_t>(tokens.size()) < length; ++i) {
    const Philox4 bits = random(i);
    const auto size = static_cast<std::uint32_t>(tokens.size());
    if (size > 64 && bits.word[0] % 5 == 0) {
      const std::uint32_t from = bits.word[1] % (size - 16);
      for (std::uint32_t j = 0; j < 12; ++j) tokens.push_back(tokens[from + j]);
    } else {
      tokens.push_back(static_cast<std::int32_t>(bits.word[2] % 32000));
    }
  }
  tokens.resize(static_cast<std::size_t>(length));
  return tokens;
}

/// The first occurrence of the longest suffix.
NgramMatch search(View<const std::int32_t, 1> c, std::int32_t n_min, std::int32_t n_max) {
  const index_t size = c.extent(0);
  for (std::int32_t n = n_max; n >= n_min; --n) {
    for (index_t at = 0; at + n < size; ++at) {
      if (std::equal(c.data() + at, c.data() + at + n, c.data() + size - n)) return {at + n, n};
    }
  }
  return {size, 0};
}

void ngram(bench::Suite& suite, index_t length) {
  suite.add({.primitive = "draft", .policy = "Ngram", .shape = bench::shape("context", length, "n_max", 4)},
            [length](bench::Row& row) {
              const Tokens tokens = text(length);
              const View<const std::int32_t, 1> view(tokens);
              Tokens failures(4);
              const View<std::int32_t, 1> scratch(failures);
              const bool same = match_ngram(view, 1, 4, false, scratch) == search(view, 1, 4);
              Cpu cpu;
              row.measure({.ours = [&] { benchmark::DoNotOptimize(match_ngram(view, 1, 4, false, scratch)); },
                           .limit = bench::stream_read(cpu, static_cast<std::size_t>(4 * length) / 512 * 512),
                           .peers = {{"search", [&] { benchmark::DoNotOptimize(search(view, 1, 4)); }}},
                           .error = same ? 0.0 : 1.0});
            });
}

void suffix(bench::Suite& suite, index_t length, bool tree) {
  suite.add({.primitive = "draft",
             .policy = tree ? "Suffix tree" : "Suffix chain",
             .shape = bench::shape("context", length, "depth", 24)},
            [length, tree](bench::Row& row) {
              const Tokens tokens = text(length);
              Suffix drafter(Suffix::Options{.tree = tree});
              DraftTree drafted;
              Proposals none;
              // Each call is a step: one token more of the context, then a draft.
              index_t at = length / 2;
              const auto step = [&] {
                if (++at > length) {
                  drafter.finish({});
                  at = length / 2;
                }
                drafted.clear(tokens[static_cast<std::size_t>(at - 1)]);
                drafter.draft({View<const std::int32_t, 1>(tokens.data(), at)}, DraftBudget{8, 16}, drafted, none, {});
                drafted.finalize();
              };
              step();
              row.measure({.ours = step, .error = well_formed(drafted.view(), 32000, 0) ? 0.0 : 1.0});
            });
}

void finish(bench::Suite& suite, index_t nodes) {
  suite.add({.primitive = "finish", .policy = "Suffix", .shape = bench::shape("nodes", nodes, "tokens", 256)},
            [nodes](bench::Row& row) {
              const Tokens tokens = text(nodes / 2 / 256 * 256);
              Suffix drafter(Suffix::Options{.max_global_nodes = nodes});
              const auto size = static_cast<index_t>(tokens.size());
              index_t at = 0;
              // A finished answer joins the trie, which forgets as much of the oldest ones.
              const auto step = [&] {
                drafter.finish(View<const std::int32_t, 1>(tokens.data() + at, 256));
                at = (at + 256) % size;
              };
              const auto room = [&] { return nodes - drafter.global().nodes(); };
              while (room() > 24 * 256) step();
              for (int i = 0; i < 100; ++i) step();
              row.measure({.ours = step, .error = room() >= 0 && room() < 24 * 256 ? 0.0 : 1.0});
            });
}

void block(bench::Suite& suite, index_t vocab) {
  suite.add({.primitive = "grow", .policy = "BlockDrafter", .shape = bench::shape("v", vocab, "nodes", 90)},
            [vocab](bench::Row& row) {
              bench::Buffer<float> logits(static_cast<std::size_t>(40 * vocab));
              bench::fill(logits, 1);
              for (std::size_t i = 0; i < logits.size(); ++i) logits[i] *= 4;
              // The network's time is not the tree's: its logits are copied from a table.
              const auto forward = [&](View<const BlockLeaf, 1>, View<float, 2> out, View<RankClass, 1> ranks) {
                std::copy_n(logits.data(), out.size(), out.data());
                for (index_t i = 0; i < ranks.extent(0); ++i) ranks[i] = RankClass::second_to_fourth;
                return true;
              };
              BlockDrafter<decltype(forward)> drafter(vocab, forward);
              DraftTree tree;
              Proposals none;
              const auto step = [&] {
                tree.clear(0);
                drafter.draft({}, DraftBudget{64, 90}, tree, none, {});
                tree.finalize();
              };
              step();
              row.measure({.ours = step,
                           .error = well_formed(tree.view(), static_cast<std::int32_t>(vocab), 0) ? 0.0 : 1.0});
            });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("speculative", argc, argv);
  for (const long length : suite.sizes({4096, 32768, 131072})) {
    ngram(suite, length);
    suffix(suite, length, false);
    suffix(suite, length, true);
  }
  for (const long nodes : suite.sizes({65536, 4194304})) finish(suite, nodes);
  for (const long vocab : suite.sizes({32000, 128256})) block(suite, vocab);
  return suite.run();
}
