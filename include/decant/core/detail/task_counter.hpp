// decant: hands out the numbers of tasks, so that workers take the next one when they are done with theirs. Like a
// std::atomic without <atomic>, which costs every includer 170 kB of declarations.
#ifndef DECANT_CORE_DETAIL_TASK_COUNTER_HPP
#define DECANT_CORE_DETAIL_TASK_COUNTER_HPP

#include "../view.hpp"

#if !defined(__GNUC__) && !defined(__clang__)
#include <atomic>
#endif

namespace decant::detail {

class TaskCounter {
 public:
  /// 0, 1, 2 ...: each number once, to any thread.
  index_t take() {
#if defined(__GNUC__) || defined(__clang__)
    return __atomic_fetch_add(&next_, index_t{1}, __ATOMIC_RELAXED);
#else
    return next_.fetch_add(1, std::memory_order_relaxed);
#endif
  }

 private:
#if defined(__GNUC__) || defined(__clang__)
  index_t next_ = 0;
#else
  std::atomic<index_t> next_{0};
#endif
};

}  // namespace decant::detail

#endif
