// What the device's runtime provides: printf, assert, alloca.

#include <cstdio>
#include <cstring>

#include "alu.hpp"
#include "report.hpp"

namespace ptx {
namespace {

template <class T>
T argument(const Warp& warp, const Inst& inst, int lane, std::size_t i) {
  T value;
  std::memcpy(&value, warp.local(lane) + inst.list[i], sizeof value);
  return value;
}

const char* host_pointer(const Warp& warp, std::uint64_t address) {
  const std::uint64_t offset = address - kSharedWindow;
  if (offset < kSharedWindowSize) return reinterpret_cast<const char*>(warp.block->shared.get() + offset);
  return reinterpret_cast<const char*>(address);
}

// The arguments lie one after another, each aligned to its size: int and unsigned have 4 bytes, the rest 8.
int print(const Warp& warp, const char* format, const std::byte* arguments) {
  int conversions = 0;
  std::size_t at = 0;
  const auto take = [&]<class T>(T value) {
    at = (at + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    std::memcpy(&value, arguments + at, sizeof value);
    at += sizeof value;
    return value;
  };
  while (*format) {
    if (*format != '%') {
      std::fputc(*format++, stdout);
      continue;
    }
    if (format[1] == '%') {
      std::fputc('%', stdout);
      format += 2;
      continue;
    }
    std::string spec = "%";
    bool wide = false;
    for (++format; *format && std::strchr("-+ #0123456789.*hlLjzt", *format); ++format) {
      if (*format == '*') {
        spec += std::to_string(take(int{}));
        continue;
      }
      wide = wide || std::strchr("ljzt", *format);
      if (!std::strchr("hlLjzt", *format)) spec += *format;
    }
    const char conversion = *format ? *format++ : 'd';
    ++conversions;
    // The format is the kernel's own, rebuilt for one argument of known type.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (std::strchr("diouxXc", conversion)) {
      if (wide) {
        std::printf((spec + "ll" + conversion).c_str(), take(static_cast<long long>(0)));
      } else {
        std::printf((spec + conversion).c_str(), take(int{}));
      }
    } else if (conversion == 's') {
      std::printf((spec + 's').c_str(), host_pointer(warp, take(std::uint64_t{})));
    } else if (conversion == 'p') {
      std::printf((spec + 'p').c_str(), take(static_cast<void*>(nullptr)));
    } else {
      std::printf((spec + conversion).c_str(), take(double{}));
    }
#pragma GCC diagnostic pop
  }
  return conversions;
}

Flow execute_vprintf(Warp& warp, const Inst& inst, std::uint32_t mask) {
  for_each_lane(mask, [&](int lane) {
    const char* format = host_pointer(warp, argument<std::uint64_t>(warp, inst, lane, 0));
    const char* arguments = host_pointer(warp, argument<std::uint64_t>(warp, inst, lane, 1));
    const int conversions = print(warp, format, reinterpret_cast<const std::byte*>(arguments));
    if (inst.imm >= 0) std::memcpy(warp.local(lane) + inst.imm, &conversions, sizeof conversions);
  });
  std::fflush(stdout);
  return Flow::kNext;
}

Flow execute_assertfail(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const int lane = std::countr_zero(mask);
  const auto text = [&](std::size_t i) {
    return std::string(host_pointer(warp, argument<std::uint64_t>(warp, inst, lane, i)));
  };
  report(ReportKind::kAssert, warp, lane, inst,
         text(1) + ":" + std::to_string(argument<std::uint32_t>(warp, inst, lane, 2)) + ": " + text(3) +
             ": assertion '" + text(0) + "' failed");
  warp.block->launch->stop = true;
  warp.alive &= ~mask;
  return Flow::kRescan;
}

// ---- alloca: a stack of fixed size at the end of each thread's local memory

constexpr std::uint32_t kStackBytes = 16384;

Flow execute_alloca(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const std::uint64_t* sizes = warp.lanes<std::uint64_t>(inst.src[0]);
  std::uint64_t* d = warp.lanes<std::uint64_t>(inst.dst[0]);
  for_each_lane(mask, [&](int lane) {
    std::uint32_t& used = warp.local_used[static_cast<std::size_t>(lane)];
    const auto alignment = static_cast<std::uint32_t>(inst.option);
    const std::uint32_t at = (used + alignment - 1) / alignment * alignment;
    if (at + sizes[lane] > kStackBytes) throw Error("alloca: the stack of 16 KiB overflows");
    used = at + static_cast<std::uint32_t>(sizes[lane]);
    d[lane] = reinterpret_cast<std::uint64_t>(warp.local(lane) + warp.program->local + at);
  });
  return Flow::kNext;
}

void lower_alloca(Lowering& lowering, Inst& inst) {
  lowering.take_type({Type::kU64});
  inst.dst[0] = lowering.destination(0, 8);
  inst.src[0] = lowering.source(1, 8);
  inst.option = lowering.operand_count() > 2 ? static_cast<std::uint32_t>(lowering.number(2)) : 8;
  lowering.program().uses_alloca = true;
  inst.execute = execute_alloca;
}

Flow execute_stacksave(Warp& warp, const Inst& inst, std::uint32_t mask) {
  std::uint64_t* d = warp.lanes<std::uint64_t>(inst.dst[0]);
  for_each_lane(mask, [&](int lane) { d[lane] = warp.local_used[static_cast<std::size_t>(lane)]; });
  return Flow::kNext;
}

Flow execute_stackrestore(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const std::uint64_t* a = warp.lanes<std::uint64_t>(inst.src[0]);
  for_each_lane(
      mask, [&](int lane) { warp.local_used[static_cast<std::size_t>(lane)] = static_cast<std::uint32_t>(a[lane]); });
  return Flow::kNext;
}

}  // namespace

Execute builtin_function(std::string_view name) {
  if (name == "vprintf") return execute_vprintf;
  if (name == "__assertfail") return execute_assertfail;
  return nullptr;
}

void add_system(InstructionSet& set) {
  auto& all = set.general;
  all["alloca"] = lower_alloca;
  all["stacksave"] = [](Lowering& lowering, Inst& inst) {
    lowering.take_type({Type::kU64});
    inst.dst[0] = lowering.destination(0, 8);
    inst.execute = execute_stacksave;
  };
  all["stackrestore"] = [](Lowering& lowering, Inst& inst) {
    lowering.take_type({Type::kU64});
    inst.src[0] = lowering.source(0, 8);
    inst.execute = execute_stackrestore;
  };
}

}  // namespace ptx
