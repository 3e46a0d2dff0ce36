// A bounded queue between two threads. Either side may close it: then the other no longer waits.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace runtime {

template <class T>
class Channel {
 public:
  explicit Channel(std::size_t room) : room_(room) {}

  /// Waits for room. False, and the value is dropped, when the channel is closed.
  bool push(T value) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || values_.size() < room_; });
    if (closed_) return false;
    values_.push_back(std::move(value));
    changed_.notify_all();
    return true;
  }

  /// Waits for a value. None when the channel is closed and what was in it has been taken.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !values_.empty(); });
    if (values_.empty()) return std::nullopt;
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    changed_.notify_all();
    return value;
  }

  /// No more values come. What is in the channel can still be taken.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  /// Nobody takes values any more: what is in the channel is dropped.
  void abandon() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    values_.clear();
    changed_.notify_all();
  }

 private:
  std::size_t room_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> values_;
  bool closed_ = false;
};

}  // namespace runtime
