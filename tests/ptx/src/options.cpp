#include "options.hpp"

#include <cstdlib>

namespace ptx {
namespace {

std::string text(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::int64_t number(const char* name, std::int64_t otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::strtoll(value, nullptr, 0) : otherwise;
}

}  // namespace

Options Options::from_environment() {
  Options result;
  result.checks = number("DECANT_PTX_CHECKS", 1) != 0;
  result.seed = static_cast<std::uint64_t>(number("DECANT_PTX_SEED", 0));
  result.counters_file = text("DECANT_PTX_COUNTERS");
  result.counters = !result.counters_file.empty();
  result.reports_file = text("DECANT_PTX_REPORTS");
  result.verbose = number("DECANT_PTX_VERBOSE", 0) != 0;
  result.compute_capability = static_cast<int>(number("DECANT_PTX_SM", 0));
  result.no_driver = number("DECANT_PTX_NO_DRIVER", 0) != 0;
  result.fail_allocation = number("DECANT_PTX_FAIL_ALLOCATION", 0);
  result.fail_launch = number("DECANT_PTX_FAIL_LAUNCH", 0);
  return result;
}

Options& options() {
  static Options* const instance = new Options(Options::from_environment());
  return *instance;
}

}  // namespace ptx
