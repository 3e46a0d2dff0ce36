// decant: Workspace, the only place where a hot call gets scratch memory. A bump arena over caller memory or a caller
// allocator. It grows while a call is first made, folds what it grew into one block when that call is over, and so the
// second identical call allocates nothing. It never touches the memory that it hands out, which may be a device's.
#ifndef DECANT_CORE_WORKSPACE_HPP
#define DECANT_CORE_WORKSPACE_HPP

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "error.hpp"
#include "view.hpp"

namespace decant {

/// Where a growing Workspace gets memory. Plain function pointers, so that any engine's allocator fits.
struct Allocator {
  void* (*allocate)(void* state, std::size_t bytes);
  void (*deallocate)(void* state, void* memory, std::size_t bytes);
  void* state;
};

namespace detail {
inline constexpr std::size_t workspace_alignment = 64;

inline void* default_allocate(void*, std::size_t bytes) {
  return ::operator new(bytes, std::align_val_t{workspace_alignment});
}
inline void default_deallocate(void*, void* memory, std::size_t) {
  ::operator delete(memory, std::align_val_t{workspace_alignment});
}
}  // namespace detail

/// A bump arena. Not thread-safe: one per context. Every allocation is aligned to 64 bytes.
class Workspace {
 public:
  /// Grows through operator new.
  Workspace() : Workspace(Allocator{detail::default_allocate, detail::default_deallocate, nullptr}) {}

  /// Grows through the caller's allocator, which must return memory aligned to 64 bytes or null.
  explicit Workspace(Allocator allocator) : allocator_(allocator) {}

  /// Lives in the caller's memory and never grows: WorkspaceError when a call needs more.
  Workspace(void* memory, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const std::size_t skip = (detail::workspace_alignment - address % detail::workspace_alignment) %
                             detail::workspace_alignment;
    blocks_[0] = {static_cast<std::byte*>(memory) + (skip < bytes ? skip : bytes), skip < bytes ? bytes - skip : 0, 0};
    count_ = 1;
  }

  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { free_blocks(); }

  /// Makes sure that `bytes` are available without another allocation. Only between calls (used() == 0).
  void reserve(std::size_t bytes) {
    require(used_ == 0, "Workspace::reserve", "this", "no scope open", "memory in use");
    if (bytes <= (count_ > 0 ? top().bytes : 0)) return;
    if (allocator_.allocate) free_blocks();
    grow(bytes);
  }

  /// Uninitialised room for n objects of T, until the enclosing Scope ends.
  template <class T>
  T* take(index_t n) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= detail::workspace_alignment);
    require(n >= 0 && static_cast<std::uint64_t>(n) <= (std::uint64_t{1} << 46) / sizeof(T), "Workspace::take", "n",
            "a count between 0 and 2^46 bytes", n);
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(n) * sizeof(T)));
  }

  /// The same as a contiguous View.
  template <class T, class... Extents>
  View<T, static_cast<int>(sizeof...(Extents))> take_view(Extents... extents) {
    T* const memory = take<T>((static_cast<index_t>(extents) * ... * 1));
    return View<T, static_cast<int>(sizeof...(Extents))>(memory, extents...);
  }

  std::size_t used() const { return used_; }
  /// The most bytes that were in use at once since construction: what to reserve().
  std::size_t high_water() const { return high_water_; }

  /// Gives back, at the end of its life, everything taken since it was made.
  class Scope {
   public:
    explicit Scope(Workspace& w)
        : w_(w), count_(w.count_), top_used_(w.count_ > 0 ? w.top().used : 0), used_(w.used_) {}
    ~Scope() { w_.rewind(count_, top_used_, used_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& w_;
    int count_;
    std::size_t top_used_;
    std::size_t used_;
  };

 private:
  friend class Scope;

  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    std::size_t used = 0;
  };

  /// Each block is at least twice the one before, so that these outgrow any address space.
  static constexpr int most_blocks = 56;

  static std::size_t aligned(std::size_t bytes) {
    return (bytes + detail::workspace_alignment - 1) / detail::workspace_alignment * detail::workspace_alignment;
  }

  Block& top() { return blocks_[count_ - 1]; }

  void* take_bytes(std::size_t bytes) {
    bytes = aligned(bytes);
    if (count_ == 0 || top().bytes - top().used < bytes) grow(bytes);
    void* p = top().memory + top().used;
    top().used += bytes;
    used_ += bytes;
    high_water_ = used_ > high_water_ ? used_ : high_water_;
    return p;
  }

  void grow(std::size_t bytes) {
    if (!allocator_.allocate) {
      DECANT_THROW(WorkspaceError(detail::describe("Workspace", "memory",
                                                   "at least " + std::to_string(used_ + bytes) + " bytes",
                                                   std::to_string(blocks_[0].bytes))));
    }
    const std::size_t doubled = count_ > 0 ? 2 * top().bytes : std::size_t{4096};
    const std::size_t room = bytes > doubled ? bytes : doubled;
    if (count_ == most_blocks || !add_block(aligned(room))) {
      DECANT_THROW(
          WorkspaceError(detail::describe("Workspace", "allocator", std::to_string(room) + " bytes", "null")));
    }
  }

  /// Puts a new block on top; false, and nothing changed, when the allocator returns null.
  bool add_block(std::size_t room) {
    void* const memory = allocator_.allocate(allocator_.state, room);
    if (!memory) return false;
    blocks_[count_++] = {static_cast<std::byte*>(memory), room, 0};
    return true;
  }

  void rewind(int count, std::size_t top_used, std::size_t used) {
    used_ = used;
    if (used == 0 && allocator_.allocate && count_ > 0 && (count_ > 1 || top().bytes < high_water_)) {
      // The outermost scope ends: fold the blocks, those that inner scopes gave back included, into one that holds all
      // of the high water.
      free_blocks();
      add_block(aligned(high_water_));  // if the allocator fails now, the next take() tries again and reports it
      return;
    }
    while (count_ > count && count_ > 1) drop_top();
    if (count_ > 0) top().used = count_ == count ? top_used : 0;  // else grown in a scope that began empty: keep it
  }

  void drop_top() {
    allocator_.deallocate(allocator_.state, top().memory, top().bytes);
    --count_;
  }

  void free_blocks() {
    while (allocator_.allocate && count_ > 0) drop_top();
  }

  Allocator allocator_{nullptr, nullptr, nullptr};
  Block blocks_[most_blocks];
  int count_ = 0;
  std::size_t used_ = 0;
  std::size_t high_water_ = 0;
};

}  // namespace decant

#endif
