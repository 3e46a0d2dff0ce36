#include "report.hpp"

#include <cxxabi.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "machine.hpp"
#include "module.hpp"
#include "options.hpp"

namespace ptx {
namespace {

std::vector<Report>& reports() {
  static auto* const all = new std::vector<Report>;
  return *all;
}

std::string demangle(const std::string& name) {
  int status = 0;
  char* plain = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (!plain) return name;
  std::string result = plain;
  std::free(plain);
  // Names of templates can fill a page.
  constexpr std::size_t kLongest = 160;
  if (result.size() > kLongest) result = result.substr(0, kLongest) + "...";
  return result;
}

void publish(Report&& report) {
  const Options& how = options();
  if (!how.quiet) std::fprintf(stderr, "[ptx] %s\n", report.message.c_str());
  if (!how.reports_file.empty()) {
    if (std::FILE* out = std::fopen(how.reports_file.c_str(), "a")) {
      std::fprintf(out, "%s\n", report.message.c_str());
      std::fclose(out);
    }
  }
  reports().push_back(std::move(report));
}

// Counts a report of the launch; true where it is new and is to be printed.
bool admit(Launch& launch, ReportKind kind, std::uint32_t pc) {
  if (launch.first_failure < 0) launch.first_failure = static_cast<int>(kind);
  const std::uint64_t key = std::uint64_t{static_cast<std::uint8_t>(kind)} << 32 | pc;
  if (std::find(launch.reported.begin(), launch.reported.end(), key) != launch.reported.end()) return false;
  launch.reported.push_back(key);
  if (++launch.reports >= options().max_reports) launch.stop = true;
  return true;
}

std::string source_of(const Launch& launch, const InstInfo& info) {
  if (info.place.file == 0) return {};
  const std::string file = launch.module->file_name(info.place.file);
  return (file.empty() ? "file " + std::to_string(info.place.file) : file) + ":" + std::to_string(info.place.line);
}

std::string one_line(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\t' || c == '\n';
    if (!blank)
      result += c;
    else if (!result.empty() && result.back() != ' ')
      result += ' ';
  }
  return result;
}

std::string coordinates(const Dim3& at) {
  char text[48];
  std::snprintf(text, sizeof text, "(%u,%u,%u)", at.x, at.y, at.z);
  return text;
}

}  // namespace

const char* report_kind_name(ReportKind kind) {
  switch (kind) {
    case ReportKind::kRace:
      return "race";
    case ReportKind::kBounds:
      return "out of bounds";
    case ReportKind::kAlignment:
      return "misaligned";
    case ReportKind::kUninitialised:
      return "uninitialised";
    case ReportKind::kBarrier:
      return "barrier";
    case ReportKind::kMask:
      return "mask";
    case ReportKind::kDeadlock:
      return "deadlock";
    case ReportKind::kAsyncCopy:
      return "asynchronous copy";
    case ReportKind::kTrap:
      return "trap";
    case ReportKind::kAssert:
      return "assertion";
    case ReportKind::kUnsupported:
      return "unsupported";
    case ReportKind::kHost:
      return "host";
  }
  return "report";
}

std::string place_of(const Program& program, const Launch& launch, std::size_t pc) {
  const InstInfo& info = program.info[pc];
  const std::string source = source_of(launch, info);
  std::string result = source;
  if (!source.empty()) result += ", ";
  result += "PTX line " + std::to_string(info.line);
  result += " (" + one_line(info.text) + ")";
  return result;
}

void report(ReportKind kind, const Warp& warp, int lane, const Inst& inst, const std::string& message) {
  Launch& launch = *warp.block->launch;
  const std::uint32_t pc = warp.pc_of(inst);
  if (!admit(launch, kind, pc)) return;
  const auto thread = static_cast<std::uint32_t>(warp.thread(lane));
  const Dim3& size = launch.block;
  const Dim3 at{thread % size.x, thread / size.x % size.y, thread / (size.x * size.y)};
  Report result;
  result.kind = kind;
  result.kernel = warp.program->kernel->name;
  result.ptx_line = warp.program->info[pc].line;
  result.source = source_of(launch, warp.program->info[pc]);
  result.message = std::string(report_kind_name(kind)) + ": " + demangle(result.kernel) + ", block " +
                   coordinates(warp.block->index) + ", thread " + coordinates(at) + " " + message + "; " +
                   place_of(*warp.program, launch, pc);
  publish(std::move(result));
}

void report(ReportKind kind, Launch& launch, const std::string& message) {
  if (!admit(launch, kind, ~0u)) return;
  Report result;
  result.kind = kind;
  result.kernel = launch.program ? launch.program->kernel->name : "";
  result.message = std::string(report_kind_name(kind)) + ": " + demangle(result.kernel) + ": " + message;
  publish(std::move(result));
}

void report_host(const std::string& message) {
  Report result;
  result.kind = ReportKind::kHost;
  result.message = "host: " + message;
  publish(std::move(result));
}

const std::vector<Report>& all_reports() {
  return reports();
}

void clear_reports() {
  reports().clear();
}

}  // namespace ptx
