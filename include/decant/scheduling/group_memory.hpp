// decant: GroupMemory, a ledger for simulations of prefix groups: the tokens that a group's requests have in common
// (RequestInfo::group, group_tokens) are held once, kept while there is room, and computed anew by the first request that
// misses them. Nothing but counts; an engine uses BlockMemory.
#ifndef DECANT_SCHEDULING_GROUP_MEMORY_HPP
#define DECANT_SCHEDULING_GROUP_MEMORY_HPP

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kv_memory.hpp"

namespace decant::scheduling {

struct GroupMemoryOptions {
  std::uint64_t capacity = 131072;  ///< tokens
  bool reserve_output = false;      ///< a request holds room for its whole output from the beginning
  bool warm = false;                ///< prefixes are there from the beginning, and for nothing
  bool operator==(const GroupMemoryOptions&) const = default;
};

/// A prefix can be found as soon as a request has room for all of it: those that are admitted later in the same step
/// read it in the same forward. O(groups) where a prefix must go, else O(1).
class GroupMemory {
 public:
  explicit GroupMemory(const GroupMemoryOptions& options) : o_(options) {}

  std::uint64_t capacity() const { return o_.capacity; }
  /// Of running requests, their prefixes included.
  std::uint64_t used() const { return used_; }
  /// Kept for nobody.
  std::uint64_t kept() const { return kept_; }

  std::uint32_t hit(const RequestInfo& info, std::uint32_t tokens) const {
    if (info.group == 0) return 0;
    const bool there = o_.warm || (info.group < groups_.size() && groups_[info.group].resident);
    return there && info.group_tokens <= tokens ? info.group_tokens : 0;
  }

  bool open(RequestId id, const RequestInfo& info, std::uint32_t, std::uint32_t tokens) {
    if (id >= held_.size()) held_.resize(id + std::size_t{1});
    if (info.group >= groups_.size()) groups_.resize(info.group + std::size_t{1});
    Group& group = groups_[info.group];
    const bool grouped = info.group != 0 && !o_.warm;
    Held held;
    held.prefix = info.group == 0 ? 0 : info.group_tokens;
    held.group = grouped ? info.group : 0;
    held.own = (std::max)(tokens, held.prefix) - held.prefix;
    if (o_.reserve_output) held.own = info.prompt - held.prefix + info.max_output - 1;
    // A group that others compute right now is held by them; this request computes its own copy, and is not counted.
    const bool brings = grouped && !group.resident && group.holders == 0;
    const bool takes_up = grouped && group.resident && group.holders == 0;
    const std::uint64_t more = std::uint64_t{held.own} + (brings ? held.prefix : 0);
    if (used_ + (takes_up ? group.tokens : 0) + more > o_.capacity) return false;
    if (takes_up) {
      kept_ -= group.tokens;
      used_ += group.tokens;
    }
    make_room(more);
    used_ += more;
    if (grouped) {
      if (brings) group.tokens = held.prefix;
      ++group.holders;
      group.resident = group.resident || tokens >= held.prefix;
      group.last_use = ++clock_;
    }
    held_[id] = held;
    return true;
  }

  bool grow(RequestId id, std::uint32_t tokens) {
    Held& held = held_[id];
    const std::uint32_t own = o_.reserve_output ? held.own : (std::max)(tokens, held.prefix) - held.prefix;
    const std::uint64_t more = own - held.own;
    if (used_ + more > o_.capacity) return false;
    make_room(more);
    used_ += more;
    held.own = own;
    if (held.group != 0 && tokens >= held.prefix) groups_[held.group].resident = true;
    return true;
  }

  void close(RequestId id, const RequestInfo&, std::uint32_t) {
    Held& held = held_[id];
    used_ -= held.own;
    if (held.group != 0) {
      Group& group = groups_[held.group];
      group.last_use = ++clock_;
      if (--group.holders == 0) {
        used_ -= group.tokens;
        if (group.resident) kept_ += group.tokens;
      }
    }
    held = {};
  }

 private:
  struct Group {
    std::uint64_t tokens = 0, last_use = 0;
    std::uint32_t holders = 0;
    bool resident = false;
  };
  struct Held {
    std::uint32_t group = 0, prefix = 0, own = 0;
  };

  /// Drops prefixes that nobody holds, the one unused for longest first, until `more` tokens fit.
  void make_room(std::uint64_t more) {
    while (used_ + kept_ + more > o_.capacity) {
      Group* oldest = nullptr;
      for (Group& group : groups_) {
        if (!group.resident || group.holders > 0) continue;
        if (oldest == nullptr || group.last_use < oldest->last_use) oldest = &group;
      }
      kept_ -= oldest->tokens;
      oldest->resident = false;
    }
  }

  GroupMemoryOptions o_;
  std::uint64_t used_ = 0, kept_ = 0, clock_ = 0;
  std::vector<Group> groups_;  // by number
  std::vector<Held> held_;     // per slot
};

static_assert(KvMemory<GroupMemory>);

}  // namespace decant::scheduling

#endif
