// The largest block that this test program has asked the heap for: what bad bytes may cost.
#include <cstdlib>
#include <new>

#include "dkvc_data.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // g++ 12 sees free() meet its own operator new
#endif

namespace dkvc_test {
thread_local std::size_t largest_allocation = 0;
}

namespace {
void* noted_allocation(std::size_t bytes) {
  if (bytes > dkvc_test::largest_allocation) dkvc_test::largest_allocation = bytes;
  return std::malloc(bytes ? bytes : 1);
}
}  // namespace

// Every way into the heap of this test program is watched.
void* operator new(std::size_t bytes) {
  if (void* p = noted_allocation(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return noted_allocation(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto a = static_cast<std::size_t>(alignment);
  if (bytes > dkvc_test::largest_allocation) dkvc_test::largest_allocation = bytes;
  if (void* p = std::aligned_alloc(a, (bytes + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
