// The largest block that this test program has asked the heap for: what bad bytes may cost.
#include "dkvc_data.hpp"
#include "watched_heap.hpp"

namespace dkvc_test {
thread_local std::size_t largest_allocation = 0;
}

void watched_heap::on_allocation(std::size_t bytes) {
  if (bytes > dkvc_test::largest_allocation) dkvc_test::largest_allocation = bytes;
}
