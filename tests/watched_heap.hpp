#pragma once
// Every way into the heap of a test program, watched. For one file of the program, which says what on_allocation() does.
#include <cstdlib>
#include <new>

namespace watched_heap {
/// Called before each allocation, on its thread.
void on_allocation(std::size_t bytes);
}  // namespace watched_heap

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // g++ 12 sees free() meet its own operator new
#endif

void* operator new(std::size_t bytes) {
  watched_heap::on_allocation(bytes);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  watched_heap::on_allocation(bytes);
  return std::malloc(bytes ? bytes : 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  watched_heap::on_allocation(bytes);
  const auto a = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (bytes + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
