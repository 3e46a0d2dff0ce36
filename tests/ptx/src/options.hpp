#pragma once
// How the interpreter runs: set from environment variables by the stand-in for libcudart, or directly by tests.

#include <cstdint>
#include <string>

namespace ptx {

struct Options {
  bool checks = true;                // DECANT_PTX_CHECKS=0 turns races, bounds, initialisation off
  bool counters = false;             // on where DECANT_PTX_COUNTERS names a file
  bool quiet = false;                // reports are remembered, not printed
  std::uint64_t seed = 0;            // DECANT_PTX_SEED; 0: the default order
  std::string counters_file;         // DECANT_PTX_COUNTERS
  std::string reports_file;          // DECANT_PTX_REPORTS: every report is appended to it
  int max_reports = 12;              // printed per launch
  bool verbose = false;              // DECANT_PTX_VERBOSE: every launch
  int compute_capability = 0;        // DECANT_PTX_SM: pretended; 0: that of the PTX
  bool no_driver = false;            // DECANT_PTX_NO_DRIVER
  std::int64_t fail_allocation = 0;  // DECANT_PTX_FAIL_ALLOCATION: which one fails, counted from 1
  std::int64_t fail_launch = 0;      // DECANT_PTX_FAIL_LAUNCH

  static Options from_environment();
};

Options& options();

}  // namespace ptx
