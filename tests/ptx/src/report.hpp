#pragma once
// What the checks found. A report names the kernel, block, thread, PTX line and, where -lineinfo was given, source
// line.

#include <string>
#include <vector>

#include "program.hpp"

namespace ptx {

struct Launch;

enum class ReportKind : std::uint8_t {
  kRace,
  kBounds,
  kAlignment,
  kUninitialised,
  kBarrier,
  kMask,
  kDeadlock,
  kAsyncCopy,
  kTrap,
  kAssert,
  kUnsupported,
  kHost,
};

struct Report {
  ReportKind kind;
  std::string kernel;
  std::string message;  // the whole line, as printed
  int ptx_line = 0;
  std::string source;  // "file:line" or empty
};

const char* report_kind_name(ReportKind kind);

// Prints and remembers; the same kind at the same instruction of a launch is printed once.
void report(ReportKind kind, const Warp& warp, int lane, const Inst& inst, const std::string& message);
void report(ReportKind kind, Launch& launch, const std::string& message);
void report_host(const std::string& message);

// Everything reported by this process.
const std::vector<Report>& all_reports();
void clear_reports();

// "file.cu:12, PTX line 345 (ld.global.f32 ...)"
std::string place_of(const Program& program, const Launch& launch, std::size_t pc);

}  // namespace ptx
