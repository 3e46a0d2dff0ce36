// decant: LockedIndex, a PrefixIndex that several threads use: an engine's loop that inserts and evicts, beside front
// ends that only ask how much of a prompt is there. Asking without using (peek) is shared; everything that changes the
// index, match() too, since it marks what it finds as used, is alone. Not in decant.hpp: <shared_mutex> brings the
// clocks along, and few programs need it.
#ifndef DECANT_SCHEDULING_LOCKED_INDEX_HPP
#define DECANT_SCHEDULING_LOCKED_INDEX_HPP

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "prefix_index.hpp"

namespace decant::scheduling {

template <PrefixIndex I>
class LockedIndex {
 public:
  /// The index's own arguments.
  template <class... Arguments>
  explicit LockedIndex(Arguments&&... arguments) : index_(std::forward<Arguments>(arguments)...) {}
  LockedIndex(const LockedIndex&) = delete;
  LockedIndex& operator=(const LockedIndex&) = delete;

  std::uint32_t granularity() const { return index_.granularity(); }
  std::size_t size() const {
    const std::shared_lock lock(mutex_);
    return index_.size();
  }
  /// As match(), but counts as no use: threads that peek do not wait for each other.
  std::size_t peek(View<const std::uint32_t, 1> tokens) const {
    const std::shared_lock lock(mutex_);
    return index_.peek(tokens);
  }

  std::size_t match(View<const std::uint32_t, 1> tokens) {
    const std::lock_guard lock(mutex_);
    return index_.match(tokens);
  }
  std::size_t insert(View<const std::uint32_t, 1> tokens) {
    const std::lock_guard lock(mutex_);
    return index_.insert(tokens);
  }
  std::size_t evict(std::size_t count) {
    const std::lock_guard lock(mutex_);
    return index_.evict(count);
  }

  /// What use(index) returns, by value: several calls as one, such as a match and the lock of the node it ends at. `use`
  /// must keep no reference to the index and not call this object.
  template <class Use>
  auto exclusively(const Use& use) {
    const std::lock_guard lock(mutex_);
    return use(index_);
  }

 private:
  mutable std::shared_mutex mutex_;
  I index_;
};

}  // namespace decant::scheduling

#endif
