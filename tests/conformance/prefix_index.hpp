// What every PrefixIndex must do, against a set of all cached prefixes.
#pragma once

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/prefix_index.hpp"
#include "decant/scheduling/workload.hpp"

namespace conformance {

/// The definition: whole units of every inserted sequence, each a prefix of its own.
class AllPrefixes {
 public:
  using Words = std::vector<std::uint32_t>;

  explicit AllPrefixes(std::uint32_t unit) : unit_(unit) {}

  std::size_t match(const Words& tokens) const {
    std::size_t n = 0;
    while (n + unit_ <= tokens.size() && cached_.count(prefix(tokens, n + unit_)) > 0) n += unit_;
    return n;
  }
  void insert(const Words& tokens) {
    for (std::size_t n = unit_; n <= tokens.size(); n += unit_) cached_.insert(prefix(tokens, n));
  }
  std::size_t size() const { return cached_.size() * unit_; }
  /// Keeps `left` tokens of a sequence that was cached.
  void keep(const Words& tokens, std::size_t left) {
    for (std::size_t n = left + unit_; n <= tokens.size(); n += unit_) cached_.erase(prefix(tokens, n));
  }

 private:
  static Words prefix(const Words& tokens, std::size_t n) {
    return Words(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n));
  }
  std::uint32_t unit_;
  std::set<Words> cached_;
};

/// `index`: empty. Sequences of few different tokens, so that they share; insertions, look-ups and evictions.
template <decant::scheduling::PrefixIndex I>
void prefix_index(I index, std::uint64_t seed) {
  using Words = AllPrefixes::Words;
  decant::scheduling::SplitMix64 next{seed};
  AllPrefixes all(index.granularity());
  std::vector<Words> inserted;
  REQUIRE(index.size() == 0);
  REQUIRE(index.match({}) == 0);
  REQUIRE(index.evict(10) == 0);
  for (int call = 0; call < 1200; ++call) {
    Words tokens(next() % 24);
    for (auto& t : tokens) t = static_cast<std::uint32_t>(next() % 2);
    if (!inserted.empty() && next() % 3 == 0) tokens = inserted[next() % inserted.size()];
    const std::uint64_t what = next() % 8;
    const std::size_t known = all.match(tokens);
    if (what < 4) {
      REQUIRE(index.match(tokens) == known);
    } else if (what < 7) {
      REQUIRE(index.insert(tokens) == known);
      all.insert(tokens);
      inserted.push_back(tokens);
      const std::size_t whole = tokens.size() / index.granularity() * index.granularity();
      REQUIRE(index.match(tokens) == whole);
    } else {
      const std::size_t before = index.size(), count = next() % 40;
      const std::size_t gone = index.evict(count);
      REQUIRE(gone >= std::min(count, before));
      REQUIRE(index.size() + gone == before);
      // What is left is found, and is whole: no prefix has lost its beginning.
      for (const Words& sequence : inserted) all.keep(sequence, index.match(sequence));
    }
    REQUIRE(index.size() == all.size());
  }
  // The one used last goes last.
  const Words old(24, 7), young(24, 9);
  index.evict(index.size());
  index.insert(old);
  index.insert(young);
  index.match(old);
  index.evict(1);
  REQUIRE(index.match(old) == 24 / index.granularity() * index.granularity());
  REQUIRE(index.match(young) < 24 / index.granularity() * index.granularity());
}

}  // namespace conformance
