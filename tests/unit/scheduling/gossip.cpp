// What gossip sends: that every encoding converges whatever the network does, that what is believed wrongly costs hits
// alone, and that a Merkle exchange mends a set at the price of its differences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/gossip_router.hpp"
#include "decant/scheduling/merkle_repair.hpp"

namespace gossip_test {

using namespace decant;
using namespace decant::scheduling;

using Keys = std::vector<std::uint64_t>;

/// A chain of a topic: its first chunks, and some of one's own. Each digest is made from the one before.
Keys chain_of(std::uint64_t topic, std::uint64_t own, std::uint64_t shared = 8, std::uint64_t more = 2) {
  Keys chain;
  std::uint64_t digest = topic;
  for (std::uint64_t i = 0; i < shared; ++i) chain.push_back(digest = SplitMix64{digest}());
  for (std::uint64_t i = 0; i < more; ++i) chain.push_back(digest = SplitMix64{digest ^ ~own}());
  return chain;
}

Keys random_keys(std::size_t n, std::uint64_t seed) {
  SplitMix64 next{seed};
  Keys keys(n);
  for (auto& key : keys) key = next();
  return keys;
}

Keys sorted(Keys keys) {
  std::sort(keys.begin(), keys.end());
  return keys;
}

/// All that a view of an exact encoding holds.
Keys held(const FullSummary& s) { return s.keys; }
Keys held(const DeltaSummary& s) { return s.digests(); }

/// Four nodes whose caches grow and shrink; a message is lost (3 of 10), comes twice (2 of 10), and comes at any time
/// from at once to some rounds later. Then the caches rest, and nothing is lost for as many rounds as a full set needs.
template <class S>
void converge(std::uint64_t seed) {
  constexpr NodeId nodes = 4;
  GossipOptions o;
  o.cached_tokens = 60 * o.chunk;
  o.full_every = 4;
  std::vector<BasicGossipNode<S>> all;
  for (NodeId n = 0; n < nodes; ++n) all.emplace_back(n, nodes, o);
  struct Flying {
    int round;
    NodeId to;
    S message;
  };
  std::vector<Flying> flying, spent;
  SplitMix64 next{seed};
  int taken = 0, refused = 0;
  for (int round = 0; round < 24; ++round) {
    const bool rests = round >= 20;
    for (auto& node : all) {
      for (int i = 0; i < 2 && !rests; ++i) node.cached(chain_of(next() % 12, next()));
      const S message = node.snapshot(static_cast<std::uint32_t>(round % 4));
      for (NodeId to = 0; to < nodes; ++to) {
        const std::uint64_t draw = next() % 10, copies = rests ? 1 : draw < 3 ? 0 : draw < 5 ? 2 : 1;
        for (std::uint64_t c = 0; c < copies; ++c) {
          flying.push_back({rests ? round : round + static_cast<int>(next() % 4), to, message});
        }
      }
    }
    for (std::size_t i = flying.size(); i > 1; --i) std::swap(flying[i - 1], flying[next() % i]);
    for (std::size_t i = 0; i < flying.size();) {
      if (flying[i].round > round) {
        ++i;
        continue;
      }
      ++(all[flying[i].to].receive(flying[i].message, static_cast<Nanoseconds>(round)) ? taken : refused);
      spent.push_back(std::move(flying[i]));
      flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  CHECK(taken > 100);
  CHECK(refused > 30);
  // What comes again after all that changes nothing.
  for (const Flying& f : spent) {
    const bool news = all[f.to].receive(f.message, 99);
    if (news) FAIL("an old message was news");
  }
  for (NodeId to = 0; to < nodes; ++to) {
    for (NodeId from = 0; from < nodes; ++from) {
      if (to == from) continue;
      const S& view = all[to].summary(from);
      CHECK(view.version == 24);
      CHECK(all[to].head(from).version == 24);
      CHECK(all[to].head(from).queue == 3);
      const Keys there = all[from].digests();
      CHECK(there.size() >= 50);
      CHECK(std::all_of(there.begin(), there.end(), [&](std::uint64_t key) { return view.contains(key); }));
      if constexpr (!std::is_same_v<S, BloomSummary>) CHECK(held(view) == sorted(there));
    }
  }
}

TEST_CASE("gossip encodings: views converge through loss, repetition and disorder") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    converge<BloomSummary>(seed);
    converge<FullSummary>(seed);
    converge<DeltaSummary>(seed);
  }
}

/// A node that starts anew counts from a higher incarnation: its empty cache is believed, and its past is not.
template <class Node>
void restart() {
  GossipOptions o;
  Node here(0, 2, o), before(1, 2, o), after(1, 2, o, 1);
  const Keys chain = chain_of(1, 1);
  before.cached(chain);
  const auto first = before.snapshot(0);
  CHECK(here.receive(first, 1));
  CHECK(here.match(1, chain) == 10);
  before.cached(chain_of(2, 2));
  const auto late = before.snapshot(0);
  CHECK(here.receive(after.snapshot(0), 2));
  CHECK_FALSE(here.receive(late, 3));
  CHECK(here.match(1, chain) == 0);
  CHECK_FALSE(here.receive(here.snapshot(0), 3));  // of itself a node knows more
  auto stranger = first;
  stranger.node = 2;
  CHECK_THROWS_AS(here.receive(stranger, 3), ArgumentError);
}

TEST_CASE("gossip encodings: a restarted node is not taken for its past") {
  restart<GossipNode>();
  restart<BasicGossipNode<FullSummary>>();
  restart<BasicGossipNode<DeltaSummary>>();
  static_assert(std::is_same_v<GossipNode, BasicGossipNode<PrefixSummary>>);
  static_assert(std::is_same_v<GossipRouter, BasicGossipRouter<BloomSummary>>);
}

TEST_CASE("gossip encodings: bytes of a snapshot") {
  const Keys keys = random_keys(1000, 1), more = random_keys(10, 2);
  constexpr std::size_t head = 8 + 4 + 4 + 1;
  const SummaryOptions o;
  CHECK(FullSummary::Writer(o).write({1, 0, 0, false}, keys).bytes() == head + 8000);
  CHECK(BloomSummary::Writer(o).write({1, 0, 0, false}, keys).bytes() == head + 4 + 157 * 8);  // 10,000 bits
  DeltaSummary::Writer writer(o);
  CHECK(writer.write({1, 0, 0, false}, keys).bytes() == head + 12 + 8000);
  Keys now(keys.begin() + 5, keys.end());
  now.insert(now.end(), more.begin(), more.end());
  CHECK(writer.write({2, 0, 0, false}, now).bytes() == head + 12 + 15 * 8);
  // An empty node has little to say, and is believed.
  for (const std::size_t bytes : {FullSummary::Writer(o).write({1, 0, 0, false}, {}).bytes(),
                                  BloomSummary::Writer(o).write({1, 0, 0, false}, {}).bytes()}) {
    CHECK(bytes <= head + 4);
  }
  CHECK_FALSE(BloomSummary::Writer(o).write({1, 0, 0, false}, {}).contains(7));

  GossipOptions options;
  options.period = 1000;
  options.link = 1;
  BasicGossipRouter<FullSummary> router(2, options);
  const std::vector<NodeView> views(2);
  RequestInfo request;
  const Keys chain = chain_of(1, 1);
  request.chain = chain;
  router.on_cached(0, request);
  for (Nanoseconds now_ns = 0; now_ns < 1000; ++now_ns) {
    if (router.next_event() <= now_ns) router.on_event(now_ns, views);
  }
  CHECK(router.snapshots() == 2);
  CHECK(router.snapshot_bytes() == 2 * head + 8 * chain.size());
}

TEST_CASE("gossip encodings: a full set and its changes are the full set") {
  SplitMix64 next{3};
  Keys keys = random_keys(300, 4);
  DeltaSummary::Writer writer(SummaryOptions{.full_every = 5});
  const FullSummary::Writer reference(SummaryOptions{});
  DeltaSummary every, some;
  std::vector<DeltaSummary> sent;
  std::vector<Keys> history;
  for (std::uint64_t version = 1; version <= 20; ++version) {
    for (int i = 0; i < 6; ++i) {
      keys[next() % keys.size()] = next();  // one goes, one comes
      if (i == 0) keys.push_back(next());
    }
    const SummaryHead head{version, 2, static_cast<std::uint32_t>(version), version % 2 == 0};
    sent.push_back(writer.write(head, keys));
    const DeltaSummary& message = sent.back();
    CHECK(message.full() == (version % 5 == 1));
    if (!message.full()) CHECK(message.bytes() < 1000);  // the full set: 2,400
    CHECK(every.take(message));
    CHECK_FALSE(every.take(message));
    const FullSummary full = reference.write(head, keys);
    CHECK(every.digests() == full.keys);
    CHECK(static_cast<const SummaryHead&>(every) == head);
    for (const std::uint64_t key : keys) {
      if (!every.contains(key)) FAIL("a key is denied");
    }
    for (const std::uint64_t key : sent.front().keys) {  // of which some went
      if (every.contains(key) != full.contains(key)) FAIL("a key that went is there");
    }
    history.push_back(full.keys);
    // Another hears of every third message only, and is right each time that it has the full set: 1, 4, 16, 19.
    if (version % 3 == 1) {
      const bool news = some.take(message);
      CHECK(news == (version < 5 || version > 15));
      if (news) CHECK(some.digests() == full.keys);
    }
  }
  CHECK(some.digests() == history[18]);
  DeltaSummary late;
  CHECK(late.take(sent[0]));
  CHECK(late.take(sent[3]));
  CHECK(late.digests() == history[3]);
  const DeltaSummary before = late;
  CHECK_FALSE(late.take(sent[6]));  // a change to a full set that has not come,
  CHECK((late == before));
  CHECK(late.take(sent[5]));        // which comes after all
  CHECK(late.take(sent[6]));
  CHECK_FALSE(late.take(sent[4]));
  DeltaSummary direct = sent[5];
  CHECK(direct.take(sent[6]));
  CHECK((late == direct));
  // Where the changes would be no smaller than the set, the set is sent.
  CHECK(writer.write({21, 2, 0, false}, random_keys(50, 9)).full());
  CHECK(writer.write({22, 2, 0, false}, {}).full());
  CHECK_THROWS_AS(DeltaSummary::Writer(SummaryOptions{.full_every = 0}), ArgumentError);

  // A node hears from changes that it cannot use that the other lives, and how busy it is.
  GossipOptions o;
  o.full_every = 3;
  BasicGossipNode<DeltaSummary> here(0, 2, o), there(1, 2, o);
  there.cached(chain_of(1, 1));
  const auto missed = there.snapshot(1), change = there.snapshot(5);
  CHECK_FALSE(here.receive(change, 7));
  CHECK(here.usable(1, 7));
  CHECK(here.head(1).queue == 5);
  CHECK(here.match(1, chain_of(1, 1)) == 0);
  CHECK(here.receive(missed, 8));  // old as news of the queue, new as digests
  CHECK(here.head(1).queue == 5);
  CHECK(here.match(1, chain_of(1, 1)) == 10);
}

TEST_CASE("gossip encodings: a Bloom filter errs on one side, and seldom") {
  const Keys keys = random_keys(4000, 11);
  const BloomSummary s = BloomSummary::Writer(SummaryOptions{}).write({1, 0, 0, false}, keys);
  for (const std::uint64_t key : keys) {
    if (!s.contains(key)) FAIL("a key is denied");
  }
  // Chains of which nothing is there. P(too long by j) <= 0.0082^j; five standard errors.
  constexpr int chains = 60'000;
  SplitMix64 next{12};
  int over[3] = {};
  for (int i = 0; i < chains; ++i) {
    const Keys chain{next(), next(), next()};
    const std::uint32_t n = match_chain(s, chain);
    for (std::uint32_t j = 0; j < n; ++j) ++over[j];
  }
  for (int j = 0; j < 3; ++j) {
    const double expected = chains * std::pow(0.0082, j + 1);
    CHECK(over[j] <= expected + 5 * std::sqrt(expected) + 1);
  }
  CHECK(over[0] > 300);
}

/// Hits, in chunks, of requests that come one at a time to nodes that hear of everything at once.
template <class S>
std::uint64_t hits_of(std::uint32_t bits_per_key, std::uint64_t& global_hits) {
  constexpr std::uint32_t nodes = 4;
  GossipOptions o;
  o.period = 1000;
  o.link = 0;
  o.cached_tokens = std::size_t{1} << 40;
  o.parity = true;
  o.bits_per_key = bits_per_key;
  BasicGossipRouter<S> router(nodes, o);
  BlockIndex global(o.chunk);
  const std::vector<NodeView> views(nodes);
  SplitMix64 next{21};
  std::uint64_t hits = 0;
  global_hits = 0;
  for (Nanoseconds now = o.period; now <= 400 * o.period; now += o.period) {
    // A round between two requests.
    while (router.next_event() < now) router.on_event(router.next_event(), views);
    const Keys chain = chain_of(next() % 30, next() % 60, 1 + next() % 10);
    RequestInfo request;
    request.prompt = static_cast<std::uint32_t>(chain.size() + 1) * o.chunk;
    request.chain = chain;
    const Dispatch d = router.dispatch(now, request, views);
    CHECK(d.delay == 0);
    // What counts is what the node has, whatever was believed of it.
    const std::uint32_t there = router.node(d.node).index().peek_chain(chain);
    hits += there;
    router.on_cached(d.node, request);
    global_hits += global.insert_chain(chain) / o.chunk;
  }
  return hits;
}

TEST_CASE("gossip: with news at once and room for all, the hits are those of one cache") {
  std::uint64_t global = 0;
  CHECK(hits_of<FullSummary>(10, global) == global);
  CHECK(global > 1000);
  CHECK(hits_of<DeltaSummary>(10, global) == global);
  // What a filter makes believe costs hits, a few or, with one bit per key, more, and nothing else.
  const std::uint64_t fine = hits_of<BloomSummary>(10, global), coarse = hits_of<BloomSummary>(1, global);
  CHECK(fine <= global);
  CHECK(static_cast<double>(fine) >= 0.98 * static_cast<double>(global));
  CHECK(coarse < fine);
  CHECK(coarse > 0);
}

/// `d` differences: half of them keys that are missing, half keys that are too many.
Keys differing(const Keys& keys, std::size_t d, std::uint64_t seed) {
  Keys other(keys.begin() + static_cast<std::ptrdiff_t>(d / 2), keys.end());
  const Keys more = random_keys(d - d / 2, seed);
  other.insert(other.end(), more.begin(), more.end());
  return other;
}

double mean_traffic(std::size_t n, std::size_t d, std::uint32_t& rounds) {
  double sum = 0;
  rounds = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Keys keys = random_keys(n, seed);
    const MerkleSet original(keys);
    MerkleSet copy(differing(keys, d, seed + 100));
    const MerkleTraffic t = repair(copy, original);
    CHECK((copy.keys() == original.keys()));
    sum += static_cast<double>(t.sent + t.received) / 5;
    rounds = (std::max)(rounds, t.round_trips);
  }
  return sum;
}

TEST_CASE("Merkle repair: the sets are equal, for bytes that grow as differences times depth") {
  std::uint32_t rounds = 0;
  const double none = mean_traffic(10'000, 0, rounds);
  CHECK(none == 9 + 16 * 8);  // one bucket's digests, and nothing said to them
  CHECK(rounds == 1);
  const double one = mean_traffic(10'000, 1, rounds);
  CHECK(rounds == 3);  // log16 of 10,000 / 16
  const double ten = mean_traffic(10'000, 10, rounds), hundred = mean_traffic(10'000, 100, rounds);
  INFO("bytes of 1, 10, 100 differences: " << one << ", " << ten << ", " << hundred);
  CHECK(one < 600);
  CHECK(ten > 5 * one);  // ten paths that share their first bucket
  CHECK(ten < 10 * one);
  CHECK(hundred > 4 * ten);
  CHECK(hundred < 10 * ten);
  CHECK(hundred < 0.3 * 8 * 10'000);  // of the whole set
  // Sixteen times the keys: one bucket more on each path.
  const double small = mean_traffic(1 << 8, 1, rounds), middle = mean_traffic(1 << 12, 1, rounds),
               large = mean_traffic(1 << 16, 1, rounds);
  INFO("bytes of 1 difference in 2^8, 2^12, 2^16: " << small << ", " << middle << ", " << large);
  CHECK(middle - small > 100);
  CHECK(middle - small < 200);
  CHECK(large - middle > 100);
  CHECK(large - middle < 200);
}

TEST_CASE("Merkle repair: from nothing, to nothing, from something else; keys that lie close") {
  const Keys keys = random_keys(3000, 31);
  Keys close;  // differ in their last nibbles only
  for (std::uint64_t i = 0; i < 40; ++i) close.push_back(0x123456789abcde00u + i);
  const Keys ends{0, ~std::uint64_t{0}, 1, std::uint64_t{1} << 63};
  const std::vector<Keys> sets{{}, keys, random_keys(500, 32), close, ends, {0}};
  for (const Keys& from : sets) {
    for (const Keys& to : sets) {
      MerkleSet copy(from);
      const MerkleSet original(to);
      const MerkleTraffic t = repair(copy, original);
      CHECK((copy.keys() == original.keys()));
      CHECK(t.round_trips <= 16);
      CHECK(copy.digest({}) == original.digest({}));
    }
  }
  // Another's keys twice are one key.
  CHECK((MerkleSet(Keys{5, 5, 3}).keys() == Keys{3, 5}));

  MerkleSet set(keys);
  MerkleRequest request = set.ask();
  request.entries[0].bucket = {0, 16};
  CHECK_THROWS_AS(set.answer(request), ArgumentError);
  request.entries[0].bucket = {1, 3};
  CHECK_THROWS_AS(set.answer(request), ArgumentError);
  MerkleReply reply;
  reply.contents.push_back({{0x1000000000000000u, 1}, {0x2000000000000000u}});
  CHECK_THROWS_AS(set.take(reply), ArgumentError);
  reply.contents = {{{0, 17}, {}}};
  CHECK_THROWS_AS(set.take(reply), ArgumentError);
  reply.contents.clear();
  reply.differ.push_back({0, 16});
  CHECK_THROWS_AS(set.take(reply), ArgumentError);
  CHECK((set.keys() == sorted(keys)));
}

TEST_CASE("Merkle repair: a view that missed its full set is mended") {
  GossipOptions o;
  BasicGossipNode<DeltaSummary> here(0, 2, o), there(1, 2, o);
  for (std::uint64_t i = 0; i < 300; ++i) there.cached(chain_of(i, i));
  CHECK(here.receive(there.snapshot(0), 1));
  DeltaSummary last;
  for (std::uint64_t i = 0; i < 8; ++i) {
    there.cached(chain_of(1000 + i, i));
    last = there.snapshot(0);  // lost, the eighth a full set
  }
  CHECK(last.full());
  there.cached(chain_of(2000, 0));
  const DeltaSummary change = there.snapshot(0);
  CHECK_FALSE(here.receive(change, 2));
  CHECK(here.match(1, chain_of(2000, 0)) == 0);

  const MerkleSet original(there.digests());
  MerkleSet copy(here.summary(1).digests());
  const MerkleTraffic t = repair(copy, original);
  CHECK(t.sent + t.received < last.bytes());
  DeltaSummary mended;
  static_cast<SummaryHead&>(mended) = change;
  mended.base = mended.version;
  mended.keys = copy.keys();
  CHECK(here.receive(mended, 3));
  CHECK(here.match(1, chain_of(2000, 0)) == 10);
  CHECK(here.match(1, chain_of(5, 5)) == 10);
}

}  // namespace gossip_test
