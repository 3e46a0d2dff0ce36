// decant: MerkleSet, a set of digests that another's copy is compared with from the top down: by the nibbles of the
// digests it is a tree of 16 branches, and only what differs is looked into and sent: d differences in a set of n cost
// O(d log n) bytes and log16 n round trips. A view that gossip left behind is mended without sending all of it again.
// The digest of a bucket is the sum of its mixed keys (ours), from sums over the sorted keys: there is no tree to keep.
// Two buckets that differ have equal sums with probability 2^-64; who may choose keys can make some: it costs misses.
// Messages go through the caller, as in gossip_router.hpp; writing them to bytes is the caller's.
#ifndef DECANT_SCHEDULING_MERKLE_REPAIR_HPP
#define DECANT_SCHEDULING_MERKLE_REPAIR_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "workload.hpp"

namespace decant::scheduling {

/// All keys that begin with the first `depth` nibbles, at most 16, of `prefix`, whose other nibbles are 0.
struct MerkleBucket {
  std::uint64_t prefix = 0;
  std::uint32_t depth = 0;
  bool operator==(const MerkleBucket&) const = default;

  static constexpr std::size_t bytes = 8 + 1;
  constexpr std::uint64_t last() const { return depth >= 16 ? prefix : prefix | ~std::uint64_t{0} >> (4 * depth); }
  constexpr MerkleBucket child(std::uint32_t nibble) const {
    return {prefix | std::uint64_t{nibble} << (60 - 4 * depth), depth + 1};
  }
};

/// Buckets that differ or may, with the digests of their children at who asks.
struct MerkleRequest {
  struct Entry {
    MerkleBucket bucket;
    std::uint64_t children[16];
  };
  std::vector<Entry> entries;  ///< none: nothing left to ask

  std::size_t bytes() const { return entries.size() * (MerkleBucket::bytes + 16 * 8); }
};

/// Children that differ: to be asked about, or, where few keys are there, with these.
struct MerkleReply {
  struct Contents {
    MerkleBucket bucket;
    std::vector<std::uint64_t> keys;
  };
  std::vector<MerkleBucket> differ;
  std::vector<Contents> contents;

  std::size_t bytes() const {
    std::size_t sum = differ.size() * MerkleBucket::bytes;
    for (const Contents& c : contents) sum += MerkleBucket::bytes + 1 + 8 * c.keys.size();
    return sum;
  }
};

class MerkleSet {
 public:
  /// So many keys are sent as they are: the digests of a bucket's children would be no fewer bytes.
  static constexpr std::size_t few = 16;

  explicit MerkleSet(std::vector<std::uint64_t> keys = {}) : keys_(std::move(keys)) {
    std::sort(keys_.begin(), keys_.end());
    finish();
  }

  /// In ascending order.
  const std::vector<std::uint64_t>& keys() const { return keys_; }
  std::uint64_t digest(const MerkleBucket& bucket) const {
    const Range r = range(bucket);
    return sums_[r.end] - sums_[r.begin];
  }

  /// The first question of who wants to be equal to another.
  MerkleRequest ask() const {
    MerkleRequest request;
    add(request, {});
    return request;
  }
  /// What the other, who is right, answers. O(log n) per bucket. ArgumentError: a bucket that is none, or that has no
  /// children.
  MerkleReply answer(const MerkleRequest& request) const {
    MerkleReply reply;
    for (const MerkleRequest::Entry& e : request.entries) {
      check(e.bucket, 15, "scheduling::MerkleSet::answer", "request");
      for (std::uint32_t nibble = 0; nibble < 16; ++nibble) {
        const MerkleBucket child = e.bucket.child(nibble);
        const Range r = range(child);
        if (sums_[r.end] - sums_[r.begin] == e.children[nibble]) continue;
        if (r.end - r.begin > few) {
          reply.differ.push_back(child);
        } else {
          reply.contents.push_back({child, {keys_.data() + r.begin, keys_.data() + r.end}});
        }
      }
    }
    return reply;
  }
  /// Takes an answer in; what to ask next. O(n). ArgumentError, and nothing changed: a bucket that is none, keys of
  /// another.
  MerkleRequest take(const MerkleReply& reply) {
    constexpr auto where = "scheduling::MerkleSet::take";
    for (const MerkleBucket& b : reply.differ) check(b, 15, where, "reply");
    for (const MerkleReply::Contents& c : reply.contents) {
      check(c.bucket, 16, where, "reply");
      for (const std::uint64_t key : c.keys) {
        require(key >= c.bucket.prefix && key <= c.bucket.last(), where, "reply", "keys of their bucket", key);
      }
    }
    if (!reply.contents.empty()) {
      std::vector<char> goes(keys_.size(), 0);
      std::vector<std::uint64_t> come, all;
      for (const MerkleReply::Contents& c : reply.contents) {
        const Range r = range(c.bucket);
        std::fill(goes.data() + r.begin, goes.data() + r.end, char{1});
        come.insert(come.end(), c.keys.begin(), c.keys.end());
      }
      std::sort(come.begin(), come.end());
      all.reserve(keys_.size() + come.size());
      std::size_t next = 0;
      for (std::size_t i = 0; i < keys_.size(); ++i) {
        if (goes[i]) continue;
        while (next < come.size() && come[next] < keys_[i]) all.push_back(come[next++]);
        all.push_back(keys_[i]);
      }
      all.insert(all.end(), come.data() + next, come.data() + come.size());
      keys_.swap(all);
      finish();
    }
    MerkleRequest request;
    for (const MerkleBucket& b : reply.differ) add(request, b);
    return request;
  }

 private:
  struct Range {
    std::size_t begin, end;
  };
  Range range(const MerkleBucket& b) const {
    const auto first = std::lower_bound(keys_.begin(), keys_.end(), b.prefix);
    const auto end = std::upper_bound(first, keys_.end(), b.last());
    return {static_cast<std::size_t>(first - keys_.begin()), static_cast<std::size_t>(end - keys_.begin())};
  }
  static void check(const MerkleBucket& b, std::uint32_t deepest, const char* where, const char* what) {
    require(b.depth <= deepest, where, what, "buckets of less depth", b.depth);
    const std::uint64_t below = b.depth >= 16 ? 0 : ~std::uint64_t{0} >> (4 * b.depth);
    require((b.prefix & below) == 0, where, what, "buckets with nothing below their prefix", b.prefix);
  }
  void add(MerkleRequest& request, const MerkleBucket& bucket) const {
    MerkleRequest::Entry& e = request.entries.emplace_back();
    e.bucket = bucket;
    for (std::uint32_t nibble = 0; nibble < 16; ++nibble) e.children[nibble] = digest(bucket.child(nibble));
  }
  void finish() {
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    sums_.assign(keys_.size() + 1, 0);
    for (std::size_t i = 0; i < keys_.size(); ++i) sums_[i + 1] = sums_[i] + SplitMix64{keys_[i]}();
  }

  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> sums_;  // [i]: of the first i keys
};

struct MerkleTraffic {
  std::size_t sent = 0, received = 0;  ///< bytes, as who repairs sees it
  std::uint32_t round_trips = 0;
};

/// Makes `copy` equal to `original`, both here, and counts what a link between them would have carried.
inline MerkleTraffic repair(MerkleSet& copy, const MerkleSet& original) {
  MerkleTraffic traffic;
  for (MerkleRequest request = copy.ask(); !request.entries.empty(); ++traffic.round_trips) {
    const MerkleReply reply = original.answer(request);
    traffic.sent += request.bytes();
    traffic.received += reply.bytes();
    request = copy.take(reply);
  }
  return traffic;
}

}  // namespace decant::scheduling

#endif
