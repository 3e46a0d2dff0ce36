// decant: what a node tells others of the prefixes that it has cached, for gossip (arXiv 2606.17059): FullSummary, all
// digests, which stands for the paper's tree; BloomSummary, a filter of them; DeltaSummary, what changed since the last
// full set. Behind one concept, SummaryEncoding. The encodings are ours. Writing messages to bytes is the caller's:
// bytes() counts what the fields take without padding.
#ifndef DECANT_SCHEDULING_PREFIX_SUMMARY_HPP
#define DECANT_SCHEDULING_PREFIX_SUMMARY_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "router.hpp"

namespace decant::scheduling {

/// What every message says, whatever its encoding.
struct SummaryHead {
  std::uint64_t version = 0;  ///< from 1; incarnation in the upper half: a restarted node is not taken for its past
  NodeId node = 0;
  std::uint32_t queue = 0;
  bool overloaded = false;
  bool operator==(const SummaryHead&) const = default;

  static constexpr std::size_t head_bytes = 8 + 4 + 4 + 1;
};

struct SummaryOptions {
  std::uint32_t bits_per_key = 10;  ///< of a Bloom filter
  std::uint32_t full_every = 8;     ///< of so many messages one is a full set, the others are changes
};

/// A message, and the view of a listener too: a default one that has taken messages.
template <class S>
concept SummaryEncoding = std::derived_from<S, SummaryHead> && std::default_initializable<S> &&
                          std::constructible_from<typename S::Writer, SummaryOptions> &&
                          requires(S& view, const S& message, typename S::Writer& writer, const SummaryHead& head,
                                   std::vector<std::uint64_t> keys, std::uint64_t key) {
  /// The next message of a node, which has these digests, each once, in any order. Versions grow.
  { writer.write(head, std::move(keys)) } -> std::same_as<S>;
  /// Takes a message of the same node in; false, and nothing changed: it is not newer, or continues what was missed.
  { view.take(message) } -> std::same_as<bool>;
  /// Whether a digest is there; what is there is never denied.
  { message.contains(key) } -> std::same_as<bool>;
  /// Of the message, head included.
  { message.bytes() } -> std::same_as<std::size_t>;
};

/// Chunks of a chain that seem to be there: whole prefixes, so the first that is not ends it.
template <SummaryEncoding S>
std::uint32_t match_chain(const S& summary, View<const std::uint64_t, 1> chain) {
  std::uint32_t n = 0;
  while (n < chain.extent(0) && summary.contains(chain[n])) ++n;
  return n;
}

/// The digests as a Bloom filter: `bits_per_key` bits each, `hashes` of them set. With 10 and 7 a digest that is not
/// there is found with probability 0.008; that a match is too long by j chunks, with 0.008^j.
struct BloomSummary : SummaryHead {
  std::uint32_t hashes = 7;
  std::vector<std::uint64_t> bits;
  bool operator==(const BloomSummary&) const = default;

  class Writer {
   public:
    explicit Writer(const SummaryOptions& options) : bits_per_key_(options.bits_per_key) {}
    BloomSummary write(const SummaryHead& head, std::vector<std::uint64_t> keys) const {
      BloomSummary s;
      static_cast<SummaryHead&>(s) = head;
      s.bits.assign((keys.size() * bits_per_key_ + 63) / 64, 0);
      if (!s.bits.empty()) {
        for (const std::uint64_t key : keys) s.add(key);
      }
      return s;
    }

   private:
    std::size_t bits_per_key_;
  };

  bool take(const BloomSummary& message) {
    if (message.version <= version) return false;
    *this = message;
    return true;
  }
  bool contains(std::uint64_t key) const {
    if (bits.empty()) return false;
    SplitMix64 next{key};
    const std::uint64_t first = next(), step = next() | 1, n = bits.size() * 64;
    for (std::uint32_t i = 0; i < hashes; ++i) {
      const std::uint64_t bit = (first + i * step) % n;
      if ((bits[bit / 64] >> (bit % 64) & 1) == 0) return false;
    }
    return true;
  }
  void add(std::uint64_t key) {
    SplitMix64 next{key};
    const std::uint64_t first = next(), step = next() | 1, n = bits.size() * 64;
    for (std::uint32_t i = 0; i < hashes; ++i) {
      const std::uint64_t bit = (first + i * step) % n;
      bits[bit / 64] |= std::uint64_t{1} << (bit % 64);
    }
  }
  std::size_t bytes() const { return head_bytes + 4 + 8 * bits.size(); }
};

/// All digests, in ascending order.
struct FullSummary : SummaryHead {
  std::vector<std::uint64_t> keys;
  bool operator==(const FullSummary&) const = default;

  struct Writer {
    explicit Writer(const SummaryOptions&) {}
    FullSummary write(const SummaryHead& head, std::vector<std::uint64_t> cached) const {
      std::sort(cached.begin(), cached.end());
      FullSummary s;
      static_cast<SummaryHead&>(s) = head;
      s.keys = std::move(cached);
      return s;
    }
  };

  bool take(const FullSummary& message) {
    if (message.version <= version) return false;
    *this = message;
    return true;
  }
  bool contains(std::uint64_t key) const { return std::binary_search(keys.begin(), keys.end(), key); }
  std::size_t bytes() const { return head_bytes + 8 * keys.size(); }
};

/// The digests that came and went since the last full set, which is sent now and then, and whenever it is the smaller.
/// Changes are counted from the full set and not from the message before: who has that set can miss any of the others.
/// Who missed it ignores its changes until it comes after all, or the next.
struct DeltaSummary : SummaryHead {
  std::uint64_t base = 0;              ///< version of the full set; a full set's own
  std::vector<std::uint64_t> keys;     ///< the full set; of a message that tells changes, empty. All three ascending
  std::vector<std::uint64_t> added, removed;
  bool operator==(const DeltaSummary&) const = default;

  class Writer {
   public:
    /// ArgumentError: full_every of 0.
    explicit Writer(const SummaryOptions& options) : full_every_(options.full_every) {
      require(full_every_ > 0, "scheduling::DeltaSummary", "options.full_every", "at least 1", full_every_);
    }
    DeltaSummary write(const SummaryHead& head, std::vector<std::uint64_t> cached) {
      std::sort(cached.begin(), cached.end());
      DeltaSummary s;
      static_cast<SummaryHead&>(s) = head;
      if (left_ > 0) {
        s.added = difference(cached, told_);
        s.removed = difference(told_, cached);
        if (s.added.size() + s.removed.size() < cached.size()) {
          s.base = base_;
          --left_;
          return s;
        }
        s.added.clear();
        s.removed.clear();
      }
      left_ = full_every_ - 1;
      s.base = base_ = head.version;
      told_ = cached;
      s.keys = std::move(cached);
      return s;
    }

   private:
    std::uint32_t full_every_;
    std::uint32_t left_ = 0;  // messages until the next full set
    std::uint64_t base_ = 0;
    std::vector<std::uint64_t> told_;
  };

  bool full() const { return base == version; }
  bool take(const DeltaSummary& message) {
    if (message.version <= version) return false;
    if (message.full()) {
      *this = message;
      return true;
    }
    if (message.base != base) return false;
    static_cast<SummaryHead&>(*this) = message;
    added = message.added;
    removed = message.removed;
    return true;
  }
  bool contains(std::uint64_t key) const {
    const auto in = [key](const std::vector<std::uint64_t>& v) { return std::binary_search(v.begin(), v.end(), key); };
    return in(added) || (in(keys) && !in(removed));
  }
  /// All that a view knows of, in ascending order.
  std::vector<std::uint64_t> digests() const {
    const std::vector<std::uint64_t> stay = difference(keys, removed);
    std::vector<std::uint64_t> all(stay.size() + added.size());
    std::merge(stay.begin(), stay.end(), added.begin(), added.end(), all.begin());
    return all;
  }
  std::size_t bytes() const { return head_bytes + 8 + 4 + 8 * (keys.size() + added.size() + removed.size()); }

 private:
  static std::vector<std::uint64_t> difference(const std::vector<std::uint64_t>& of,
                                               const std::vector<std::uint64_t>& without) {
    std::vector<std::uint64_t> rest(of.size());
    rest.erase(std::set_difference(of.begin(), of.end(), without.begin(), without.end(), rest.begin()), rest.end());
    return rest;
  }
};

static_assert(SummaryEncoding<BloomSummary> && SummaryEncoding<FullSummary> && SummaryEncoding<DeltaSummary>);

/// The default of gossip.
using PrefixSummary = BloomSummary;

}  // namespace decant::scheduling

#endif
