#pragma once
// The interpreter's own interface: load a module, launch a kernel. The stand-in for libcudart and the unit tests use
// it.

#include <cstring>
#include <string>
#include <vector>

#include "counters.hpp"
#include "memory.hpp"
#include "module.hpp"
#include "options.hpp"
#include "report.hpp"

namespace ptx {

struct LaunchConfiguration {
  Dim3 grid, block;
  std::size_t dynamic_shared = 0;
  bool cooperative = false;
  std::size_t max_resident = 1024;  // blocks that the device holds at a time
};

struct LaunchResult {
  bool clean = true;       // nothing was reported
  int first_failure = -1;  // the ReportKind of the first report
  bool stopped = false;    // by a trap, an assertion or too many reports
};

// Runs the kernel to its end. `arguments` points to the value of each parameter. Throws Error for PTX that cannot be
// run.
LaunchResult launch(Module& module, const std::string& kernel, const LaunchConfiguration& configuration,
                    const void* const* arguments);

}  // namespace ptx
