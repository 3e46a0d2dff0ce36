// One line on standard error that says how far long work has come: on a terminal it is rewritten in place and removed
// at the end; with `always` it is printed as lines for logs. Silent otherwise.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace runtime {

class Progress {
 public:
  explicit Progress(bool always) : terminal_(::isatty(STDERR_FILENO) == 1), active_(always || terminal_) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  void operator()(const std::string& what, std::size_t done, std::size_t total) {
    if (!active_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(terminal_ ? 100 : 2000) && done != total) return;
    last_ = now;
    const std::string line = what + ": " + std::to_string(done) + " of " + std::to_string(total);
    if (terminal_)
      std::fprintf(stderr, "\r\033[K%s", line.c_str());
    else
      std::fprintf(stderr, "%s\n", line.c_str());
    std::fflush(stderr);
    shown_ = true;
  }

  /// Takes the line away, before something else is printed.
  void clear() {
    if (terminal_ && shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }

 private:
  bool terminal_;
  bool active_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace runtime
