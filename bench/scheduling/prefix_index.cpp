// Prefix indexes: look-ups, insertions and evictions of prompts of 4,096 tokens, most of whose prefix is cached, as chats
// and agents send them. Peers: a std::map from each token's prefix to the next (a plain trie), a plain radix tree, and for
// the digests the same tokens through xxHash where it is installed. Error 0: the lengths found are those of the trie, or
// the counts are right. Rows of insertions and evictions count tokens; `memory` is bytes per cached token.
// And what Feather's choice of the nearest waiting request costs, beside ranking all of them by the cached prefix as
// longest-prefix-first does in every round.
#include <algorithm>
#include <cstdint>
#include <map>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "decant/scheduling/block_index.hpp"
#include "decant/scheduling/chain_hash.hpp"
#include "decant/scheduling/chunked_hash_index.hpp"
#include "decant/scheduling/radix_cache.hpp"
#include "decant/scheduling/workload.hpp"
#include "harness.hpp"
#if __has_include(<xxhash.h>)
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

namespace {

using namespace decant;
using namespace decant::scheduling;
using Tokens = std::vector<std::uint32_t>;
using Words = View<const std::uint32_t, 1>;

constexpr std::uint32_t block = 16;
constexpr std::size_t length = 4096;

/// Prompts of `tokens` tokens in all: each begins as one of its time does, for a length that is drawn.
std::vector<Tokens> prompts(std::size_t tokens) {
  SplitMix64 next{7};
  std::vector<Tokens> out;
  for (std::size_t have = 0; have < tokens;) {
    Tokens p;
    if (!out.empty() && next() % 3 > 0) {
      const Tokens& old = out[out.size() - 1 - next() % std::min<std::size_t>(out.size(), 64)];
      p.assign(old.begin(), old.begin() + static_cast<std::ptrdiff_t>(next() % length));
    }
    have += length - p.size();
    while (p.size() < length) p.push_back(static_cast<std::uint32_t>(next() % 128000));
    out.push_back(std::move(p));
  }
  return out;
}

/// Bytes that containers of the peers hold.
std::size_t counted = 0;
template <class T>
struct Counted {
  using value_type = T;
  Counted() = default;
  template <class U>
  Counted(const Counted<U>&) {}
  T* allocate(std::size_t n) {
    counted += n * sizeof(T);
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, std::size_t n) {
    counted -= n * sizeof(T);
    std::allocator<T>().deallocate(p, n);
  }
  template <class U>
  bool operator==(const Counted<U>&) const { return true; }
};
template <class T>
using List = std::vector<T, Counted<T>>;
using Children = std::map<std::uint32_t, std::uint32_t, std::less<>, Counted<std::pair<const std::uint32_t, std::uint32_t>>>;

/// A trie whose edges are single tokens.
class PlainTrie {
 public:
  void insert(const Tokens& tokens) {
    std::uint32_t node = 0;
    for (const std::uint32_t t : tokens) {
      const auto [at, fresh] = nodes_[node].try_emplace(t, static_cast<std::uint32_t>(nodes_.size()));
      node = at->second;
      if (fresh) nodes_.emplace_back();
    }
  }
  std::size_t match(const Tokens& tokens) const {
    std::uint32_t node = 0;
    for (std::size_t n = 0; n < tokens.size(); ++n) {
      const auto at = nodes_[node].find(tokens[n]);
      if (at == nodes_[node].end()) return n;
      node = at->second;
    }
    return tokens.size();
  }

 private:
  List<Children> nodes_ = List<Children>(1);
};

/// A radix tree as one writes it: edges in vectors, children in a std::map; nothing is ever forgotten.
class PlainRadix {
 public:
  void insert(const Tokens& tokens) {
    std::uint32_t node = 0;
    for (std::size_t n = 0; n < tokens.size();) {
      const auto at = nodes_[node].children.find(tokens[n]);
      if (at == nodes_[node].children.end()) {
        nodes_[node].children[tokens[n]] = static_cast<std::uint32_t>(nodes_.size());
        Node leaf;
        leaf.edge.assign(tokens.begin() + static_cast<std::ptrdiff_t>(n), tokens.end());
        nodes_.push_back(std::move(leaf));
        return;
      }
      const std::uint32_t child = at->second;
      const std::size_t same = common(child, tokens, n);
      if (same < nodes_[child].edge.size()) {
        const auto upper = static_cast<std::uint32_t>(nodes_.size());
        nodes_.emplace_back();
        auto& edge = nodes_[child].edge;
        const auto middle = edge.begin() + static_cast<std::ptrdiff_t>(same);
        nodes_[upper].edge.assign(edge.begin(), middle);
        edge.erase(edge.begin(), middle);
        nodes_[upper].children[edge.front()] = child;
        nodes_[node].children[tokens[n]] = upper;
        node = upper;
      } else {
        node = child;
      }
      n += same;
    }
  }
  std::size_t match(const Tokens& tokens) const {
    std::uint32_t node = 0;
    for (std::size_t n = 0; n < tokens.size();) {
      const auto at = nodes_[node].children.find(tokens[n]);
      if (at == nodes_[node].children.end()) return n;
      node = at->second;
      const std::size_t same = common(node, tokens, n);
      n += same;
      if (same < nodes_[node].edge.size()) return n;
    }
    return tokens.size();
  }

 private:
  struct Node {
    List<std::uint32_t> edge;
    Children children;
  };
  std::size_t common(std::uint32_t node, const Tokens& tokens, std::size_t n) const {
    const auto& edge = nodes_[node].edge;
    const auto end = edge.begin() + static_cast<std::ptrdiff_t>(std::min(edge.size(), tokens.size() - n));
    return static_cast<std::size_t>(
        std::mismatch(edge.begin(), end, tokens.begin() + static_cast<std::ptrdiff_t>(n)).first - edge.begin());
  }
  List<Node> nodes_ = List<Node>(1);
};

constexpr long most_peer_blocks = 10000;

template <class Index>
void match(bench::Suite& suite, const char* policy, long blocks, Index empty) {
  suite.add({.primitive = "match", .policy = policy, .shape = bench::shape("blocks", blocks, "prompt", length)},
            [blocks, empty](bench::Row& row) {
              const auto all = prompts(static_cast<std::size_t>(blocks) * block);
              Index index = empty;
              PlainTrie trie;
              PlainRadix radix;
              const bool peer = blocks <= most_peer_blocks;
              for (std::size_t i = 0; i + 1 < all.size(); ++i) {
                index.insert(all[i]);
                if (!peer) continue;
                trie.insert(all[i]);
                radix.insert(all[i]);
              }
              // Half of them are there, the others only begin as one that is.
              std::vector<Tokens> asked(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(all.size(), 64)));
              for (std::size_t i = 0; i < asked.size(); i += 2) asked[i][length / 2] ^= 1;
              double wrong = 0;
              for (const Tokens& t : asked) {
                if (!peer) continue;
                const std::size_t there = trie.match(t);
                if (index.match(t) != there / index.granularity() * index.granularity() || radix.match(t) != there) wrong = 1;
              }
              std::size_t at = 0, in_trie = 0, in_radix = 0;
              std::vector<std::pair<std::string, bench::Call>> peers;
              if (peer) {
                peers.push_back({"std::map trie", [&] {
                                   benchmark::DoNotOptimize(trie.match(asked[in_trie]));
                                   in_trie = (in_trie + 1) % asked.size();
                                 }});
                peers.push_back({"plain radix tree", [&] {
                                   benchmark::DoNotOptimize(radix.match(asked[in_radix]));
                                   in_radix = (in_radix + 1) % asked.size();
                                 }});
              }
              row.measure({.ours =
                               [&] {
                                 benchmark::DoNotOptimize(index.match(asked[at]));
                                 at = (at + 1) % asked.size();
                               },
                           .peers = peers,
                           .error = wrong});
            });
}

template <class Index>
void insert(bench::Suite& suite, const char* policy, long blocks, Index empty) {
  // A full index: every prompt that comes drives out as much as it adds.
  suite.add({.primitive = "insert and evict", .policy = policy, .shape = bench::shape("blocks", blocks, "prompt", length)},
            [blocks, empty](bench::Row& row) {
              const std::size_t capacity = static_cast<std::size_t>(blocks) * block;
              const auto all = prompts(capacity + 64 * length);
              Index index = empty;
              std::size_t at = 0;
              const auto step = [&] {
                index.insert(all[at]);
                at = (at + 1) % all.size();
                if (index.size() > capacity) index.evict(index.size() - capacity);
              };
              for (std::size_t i = 0; i < all.size(); ++i) step();
              row.measure({.ours = step, .error = index.size() <= capacity ? 0.0 : 1.0});
            });
}

/// An index that fills, and one that loses an eighth of what it has.
template <class Index>
void fill_and_evict(bench::Suite& suite, const char* policy, long blocks, Index empty) {
  const auto row_of = [&](const char* primitive) {
    return bench::Names{.primitive = primitive, .policy = policy, .shape = bench::shape("blocks", blocks, "prompt", length)};
  };
  const std::size_t total = static_cast<std::size_t>(blocks) * block;
  suite.add(row_of("insert"), [blocks, empty, total](bench::Row& row) {
    const auto all = prompts(total);
    Index index = empty;
    PlainTrie trie;
    PlainRadix radix;
    std::vector<std::pair<std::string, bench::Call>> peers;
    if (blocks <= most_peer_blocks) {
      peers.push_back({"std::map trie", [&] { for (const Tokens& t : all) trie.insert(t); }});
      peers.push_back({"plain radix tree", [&] { for (const Tokens& t : all) radix.insert(t); }});
    }
    row.measure({.ours = [&] { for (const Tokens& t : all) index.insert(t); },
                 .peers = peers,
                 .reset =
                     [&] {
                       index = empty;
                       trie = PlainTrie();
                       radix = PlainRadix();
                     },
                 .items = static_cast<double>(all.size() * length)});
  });
  suite.add(row_of("evict"), [empty, total](bench::Row& row) {
    const auto all = prompts(total);
    Index index = empty;
    const auto refill = [&] { for (const Tokens& t : all) index.insert(t); };
    refill();
    const std::size_t count = index.size() / 8, gone = index.evict(count);
    row.measure({.ours = [&] { benchmark::DoNotOptimize(index.evict(count)); },
                 .reset = refill,
                 .items = static_cast<double>(count),
                 .error = gone >= count && gone < count + length ? 0.0 : 1.0});
  });
  suite.add(row_of("memory"), [blocks, empty, total](bench::Row& row) {
    const auto all = prompts(total);
    Index index = empty;
    for (const Tokens& t : all) index.insert(t);
    const auto per_token = [&](std::size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(index.size()); };
    bench::Figure figure{.metric = "memory", .unit = "B/token", .value = per_token(index.bytes()), .higher_is_better = false};
    if (blocks <= most_peer_blocks) {
      const auto held = [&](auto tree) {
        for (const Tokens& t : all) tree.insert(t);
        return per_token(counted);
      };
      figure.peers.push_back({"std::map trie", held(PlainTrie())});
      figure.peers.push_back({"plain radix tree", held(PlainRadix())});
    }
    row.figure(figure);
  });
}

void hash(bench::Suite& suite) {
  suite.add({.primitive = "hash", .policy = "ChainHasher", .shape = bench::shape("tokens", 8192, "chunk", 64)},
            [](bench::Row& row) {
              Tokens tokens(8192);
              SplitMix64 next{1};
              for (auto& t : tokens) t = static_cast<std::uint32_t>(next());
              ChainHasher hasher(64);
              std::vector<std::pair<std::string, bench::Call>> peers;
#ifdef XXH_INLINE_ALL
              // As streaming does it: one state, a digest after every chunk.
              peers.push_back({"xxh64", [&] {
                                 XXH64_state_t state;
                                 XXH64_reset(&state, 0);
                                 for (std::size_t i = 0; i < tokens.size(); i += 64) {
                                   XXH64_update(&state, tokens.data() + i, 256);
                                   benchmark::DoNotOptimize(XXH64_digest(&state));
                                 }
                               }});
#endif
              row.measure({.ours =
                               [&] {
                                 hasher.clear();
                                 hasher.append(tokens);
                                 benchmark::DoNotOptimize(hasher.keys().data());
                               },
                           .peers = peers,
                           .bytes = 4.0 * 8192,
                           .error = 0.0});
            });
}

/// Feather's and longest-prefix-first's next request among many that wait, with 32 active ones of one group; or with
/// none, where the first one admitted changes what all of its group lack, and so does its end (the tree is empty then).
void candidates(bench::Suite& suite, long waiting, RequestId active) {
  suite.add({.primitive = active > 0 ? "best" : "best, none active",
             .policy = "ChunkedHashIndex",
             .shape = bench::shape("waiting", waiting, "prompt", length)},
            [waiting, active](bench::Row& row) {
              constexpr std::uint32_t chunk = 64, groups = 16;
              SplitMix64 next{3};
              std::vector<Tokens> heads(groups, Tokens(3500));
              for (auto& head : heads) {
                for (auto& t : head) t = static_cast<std::uint32_t>(next() % 128000);
              }
              const auto prompt = [&](std::size_t group) {
                Tokens p = heads[group];
                while (p.size() < length) p.push_back(static_cast<std::uint32_t>(next() % 128000));
                return p;
              };
              ChunkedHashIndex index;
              RadixCache radix;
              std::vector<Tokens> queue;
              RequestInfo info;
              const auto n = static_cast<RequestId>(waiting);
              for (RequestId id = 0; id < n; ++id) {
                queue.push_back(prompt(next() % groups));
                info.tag = id;
                index.insert(id, info, chain_keys(queue.back(), chunk, true));
              }
              for (RequestId id = n; id < n + active; ++id) {
                const Tokens p = prompt(5);
                info.tag = id;
                index.insert(id, info, chain_keys(p, chunk, true));
                index.activate(id);
                radix.insert(p);
              }
              // One round: the choice, and what its admission and a later end change.
              const auto ours = [&] {
                const PrefixCandidate c = index.best();
                index.activate(c.id);
                index.finish(c.id);
                info.tag = c.id;
                index.insert(c.id, info, chain_keys(queue[c.id], chunk, true));
              };
              // The other: every waiting prompt is matched, the longest goes first, and joins the tree.
              std::size_t chosen = 0;
              const auto rank = [&] {
                std::size_t longest = 0;
                for (std::size_t i = 0; i < queue.size(); ++i) {
                  const std::size_t found = radix.match(queue[i]);
                  if (i == 0 || found > longest) {
                    longest = found;
                    chosen = i;
                  }
                }
                benchmark::DoNotOptimize(chosen);
              };
              rank();
              const PrefixCandidate c = index.best();
              // Both find a request of the active ones' group; which of them is a tie.
              const auto shared = [&](const Tokens& p) { return std::equal(heads[5].begin(), heads[5].end(), p.begin()); };
              row.measure({.ours = ours,
                           .peers = {{"radix tree, all ranked", rank}},
                           .error = active == 0 || (shared(queue[c.id]) && shared(queue[chosen])) ? 0.0 : 1.0});
            });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("scheduling", argc, argv);
  hash(suite);
  for (const long blocks : suite.sizes({1000, 10000, 100000, 1000000})) {
    match(suite, "RadixCache", blocks, RadixCache(1));
    match(suite, "BlockIndex", blocks, BlockIndex(block));
    insert(suite, "RadixCache", blocks, RadixCache(1));
    insert(suite, "BlockIndex", blocks, BlockIndex(block));
    fill_and_evict(suite, "RadixCache", blocks, RadixCache(1));
    fill_and_evict(suite, "BlockIndex", blocks, BlockIndex(block));
  }
  for (const long waiting : suite.sizes({100, 1000, 10000})) {
    candidates(suite, waiting, 32);
    candidates(suite, waiting, 0);
  }
  return suite.run();
}
