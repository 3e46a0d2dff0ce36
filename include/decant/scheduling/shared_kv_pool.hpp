// decant: SharedKvPool, compressed keys and values of a prefix that many readers share, as PolyKV has one pool for all
// agents: one of them builds a segment and seals it, the others read it, nobody writes it again, and it is freed when
// the last one lets go. A Reader is a list of segments and a tail of its own. The pool is our reconstruction; that the
// published saving of 97.7 % is the closed form here, with no tails, is arithmetic. Codes and memory are the caller's.
#ifndef DECANT_SCHEDULING_SHARED_KV_POOL_HPP
#define DECANT_SCHEDULING_SHARED_KV_POOL_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::scheduling {

/// What makes two segments the same. `content` digests all tokens up to the segment's end, as chain_hash.hpp does, so
/// equal keys start at equal positions: rotated keys are right nowhere else.
struct SegmentKey {
  std::uint64_t content = 0;
  std::uint32_t first_token = 0, tokens = 0;
  std::uint32_t codec = 0;                         ///< the engine's number of codec and parameters
  std::uint32_t first_layer = 0, last_layer = 0;   ///< both included
  bool operator==(const SegmentKey&) const = default;
};

/// Bytes of a pool and its readers.
struct SharedKvLedger {
  std::uint64_t segments = 0;    ///< sealed
  std::uint64_t shared = 0;      ///< of sealed segments, encoded: S / rho
  std::uint64_t tails = 0;       ///< of the readers' own tails
  std::uint64_t per_reader = 0;  ///< encoded segments, counted once for each reader that has them
  std::uint64_t plain = 0;       ///< the same, not encoded
  bool operator==(const SharedKvLedger&) const = default;

  std::uint64_t held() const { return shared + tails; }
  /// Read by a step that reads each segment once for all its readers, and by one that does not know of sharing.
  std::uint64_t read_once() const { return shared + tails; }
  std::uint64_t read_by_each() const { return per_reader + tails; }
  /// The share saved of what the readers would hold each for itself, not encoded; 0 without readers.
  double saving() const {
    const auto own = static_cast<double>(plain + tails);
    return own > 0 ? 1 - static_cast<double>(held()) / own : 0;
  }
};

/// The share that `readers` save with one shared segment encoded to 1 / rho of its size and tails of `tail` of it each:
/// 1 - (1 / rho + N t) / (N (1 + t)). ArgumentError: no reader, a rho not above 0, a tail below 0.
inline double shared_kv_saving(std::uint32_t readers, double rho, double tail = 0) {
  constexpr auto where = "scheduling::shared_kv_saving";
  require(readers > 0, where, "readers", "at least 1", readers);
  require(rho > 0, where, "rho", "a ratio above 0", rho);
  require(tail >= 0, where, "tail", "at least 0", tail);
  return 1 - (1 / rho + readers * tail) / (readers * (1 + tail));
}

/// For a pool that only one thread touches.
struct NoMutex {
  void lock() {}
  void unlock() {}
};

/// `Payload` is whatever holds a segment's codes (a buffer, page numbers, a device pointer with its owner): it can be
/// made empty and moved, is moved in when the segment is sealed and destroyed once, outside the lock, by the thread
/// that lets go of it last. `Mutex` is std::mutex or like it, or NoMutex for one thread: several threads may use the
/// pool, but each Segment and Reader only one at a time. The pool must outlive its segments and readers.
template <class Payload, class Mutex>
class SharedKvPool {
  struct Entry;

 public:
  enum class State : std::uint8_t {
    building,   ///< somebody has the duty to publish it
    sealed,     ///< can be read, and never changes again
    abandoned,  ///< its builder gave up: open the key again
  };

  /// A counted reference. Movable; copies are made by share().
  class Segment {
   public:
    Segment() = default;
    Segment(Segment&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)),
          entry_(std::exchange(other.entry_, nullptr)),
          builder_(std::exchange(other.builder_, false)) {}
    Segment& operator=(Segment&& other) noexcept {
      Segment old(std::move(*this));
      pool_ = std::exchange(other.pool_, nullptr);
      entry_ = std::exchange(other.entry_, nullptr);
      builder_ = std::exchange(other.builder_, false);
      return *this;
    }
    /// Lets go; a builder that has not published abandons the segment.
    ~Segment() {
      if (entry_) pool_->release(entry_, builder_);
    }

    explicit operator bool() const { return entry_ != nullptr; }
    const SegmentKey& key() const { return entry_->key; }
    /// This is the reference whose holder has to publish().
    bool builds() const { return builder_; }
    State state() const {
      const Lock lock(pool_->mutex_);
      return entry_->state;
    }
    /// Another reference to the same segment, without the duty to build.
    Segment share() const {
      const Lock lock(pool_->mutex_);
      ++entry_->references;
      return Segment(pool_, entry_, false);
    }

    /// Seals the segment: `bytes` as encoded, `plain_bytes` before. ArgumentError: not the builder's reference.
    void publish(Payload payload, std::uint64_t bytes, std::uint64_t plain_bytes) {
      require(entry_ && builder_, "scheduling::SharedKvPool::Segment::publish", "this", "the builder's reference",
              "another");
      // Nobody reads the payload before the state says so, and the state changes under the lock.
      entry_->payload = std::move(payload);
      const Lock lock(pool_->mutex_);
      entry_->bytes = bytes;
      entry_->plain_bytes = plain_bytes;
      entry_->state = State::sealed;
      builder_ = false;
      ++pool_->ledger_.segments;
      pool_->ledger_.shared += bytes;
    }

    /// ArgumentError: not sealed.
    const Payload& payload() const {
      require(entry_ && state() == State::sealed, "scheduling::SharedKvPool::Segment::payload", "this",
              "a sealed segment", "one that is not");
      return entry_->payload;
    }

   private:
    friend class SharedKvPool;
    Segment(SharedKvPool* pool, Entry* entry, bool builder) : pool_(pool), entry_(entry), builder_(builder) {}

    SharedKvPool* pool_ = nullptr;
    Entry* entry_ = nullptr;
    bool builder_ = false;
  };

  /// A sequence: sealed segments one after another from position 0, then a tail that is its own.
  class Reader {
   public:
    /// `tail_bytes`: of one token of the tail.
    Reader(SharedKvPool& pool, std::uint64_t tail_bytes) : pool_(&pool), tail_bytes_(tail_bytes) {}
    Reader(Reader&& other) noexcept
        : pool_(other.pool_),
          segments_(std::move(other.segments_)),
          tail_bytes_(other.tail_bytes_),
          shared_tokens_(std::exchange(other.shared_tokens_, 0u)),
          tail_tokens_(std::exchange(other.tail_tokens_, 0u)) {
      other.segments_.clear();
    }
    Reader& operator=(Reader&&) = delete;
    ~Reader() {
      const Lock lock(pool_->mutex_);
      pool_->ledger_.tails -= tail_tokens_ * tail_bytes_;
      for (const Segment& s : segments_) {
        pool_->ledger_.per_reader -= s.entry_->bytes;
        pool_->ledger_.plain -= s.entry_->plain_bytes;
      }
    }

    /// ArgumentError: of another pool, not sealed, not where the last segment ends, or after tokens of the tail.
    void append(Segment segment) {
      constexpr auto where = "scheduling::SharedKvPool::Reader::append";
      require(segment.entry_ && segment.pool_ == pool_, where, "segment", "one of this reader's pool", "another");
      require(segment.state() == State::sealed, where, "segment", "a sealed one", "one that is not");
      require(segment.key().first_token == shared_tokens_, where, "segment.first_token",
              [&] { return "position " + std::to_string(shared_tokens_) + ", for which it was built"; },
              segment.key().first_token);
      require(tail_tokens_ == 0, where, "segment", "an empty tail", tail_tokens_);
      segments_.push_back(std::move(segment));
      const Segment& last = segments_.back();
      shared_tokens_ += last.key().tokens;
      const Lock lock(pool_->mutex_);
      pool_->ledger_.per_reader += last.entry_->bytes;
      pool_->ledger_.plain += last.entry_->plain_bytes;
    }

    /// The tail has `tokens` now, more or fewer than before.
    void set_tail(std::uint64_t tokens) {
      const Lock lock(pool_->mutex_);
      pool_->ledger_.tails += tokens * tail_bytes_ - tail_tokens_ * tail_bytes_;
      tail_tokens_ = tokens;
    }

    View<const Segment, 1> segments() const { return {segments_.data(), static_cast<index_t>(segments_.size())}; }
    std::uint64_t shared_tokens() const { return shared_tokens_; }
    std::uint64_t tail_tokens() const { return tail_tokens_; }

   private:
    SharedKvPool* pool_;
    std::vector<Segment> segments_;
    std::uint64_t tail_bytes_, shared_tokens_ = 0, tail_tokens_ = 0;
  };

  SharedKvPool() : buckets_(16, nullptr) {}
  SharedKvPool(const SharedKvPool&) = delete;
  SharedKvPool& operator=(const SharedKvPool&) = delete;

  /// A reference to the segment of that key. If it was not there the caller builds it: builds() is true, and only for
  /// one of all that ask. Expected O(1).
  Segment open(const SegmentKey& key) {
    const Lock lock(mutex_);
    if (Entry* const found = find(key)) {
      ++found->references;
      return Segment(this, found, false);
    }
    if (count_ == buckets_.size()) grow();
    Entry* const entry = new Entry{key, {}, 0, 0, 1, State::building, nullptr};
    link(entry);
    ++count_;
    return Segment(this, entry, true);
  }

  /// A reference only if it is sealed; else an empty one.
  Segment find_sealed(const SegmentKey& key) {
    const Lock lock(mutex_);
    Entry* const found = find(key);
    if (!found || found->state != State::sealed) return {};
    ++found->references;
    return Segment(this, found, false);
  }

  SharedKvLedger ledger() const {
    const Lock lock(mutex_);
    return ledger_;
  }

 private:
  struct Entry {
    SegmentKey key;
    Payload payload;
    std::uint64_t bytes, plain_bytes, references;
    State state;
    Entry* next;  // in its bucket
  };

  class Lock {
   public:
    explicit Lock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
    ~Lock() { mutex_.unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Mutex& mutex_;
  };

  Entry** bucket(const SegmentKey& key) {
    std::uint64_t h = key.content ^ (std::uint64_t{key.codec} << 32 | key.first_token);
    h ^= (std::uint64_t{key.first_layer} << 48) ^ (std::uint64_t{key.last_layer} << 16);
    h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u;
    return &buckets_[(h >> 32) & (buckets_.size() - 1)];
  }

  Entry* find(const SegmentKey& key) {
    Entry* entry = *bucket(key);
    while (entry && !(entry->key == key)) entry = entry->next;
    return entry;
  }

  void link(Entry* entry) {
    Entry** const head = bucket(entry->key);
    entry->next = *head;
    *head = entry;
  }

  void unlink(Entry* entry) {
    Entry** at = bucket(entry->key);
    while (*at != entry) at = &(*at)->next;
    *at = entry->next;
    --count_;
  }

  void grow() {
    std::vector<Entry*> old(2 * buckets_.size(), nullptr);
    old.swap(buckets_);
    for (Entry* entry : old) {
      while (entry) {
        Entry* const next = entry->next;
        link(entry);
        entry = next;
      }
    }
  }

  void release(Entry* entry, bool builder) {
    {
      const Lock lock(mutex_);
      if (builder) {  // whoever opens the key from now on builds it anew
        entry->state = State::abandoned;
        unlink(entry);
      }
      if (--entry->references > 0) return;
      if (entry->state == State::sealed) {
        unlink(entry);
        --ledger_.segments;
        ledger_.shared -= entry->bytes;
      }
    }
    delete entry;
  }

  mutable Mutex mutex_{};
  std::vector<Entry*> buckets_;  // a power of two of them
  std::size_t count_ = 0;
  SharedKvLedger ledger_;
};

}  // namespace decant::scheduling

#endif
