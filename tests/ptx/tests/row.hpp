#pragma once
// A table of instructions with operands and results, run through the interpreter one by one: by a single thread, and by
// a full warp with neighbours that hold other values (the two paths that an instruction can take).

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "catch_compat.hpp"
#include "interpreter.hpp"

namespace ptx_test {

using Bits = std::uint64_t;

inline Bits f32(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
inline Bits f64(double value) {
  return std::bit_cast<std::uint64_t>(value);
}
inline Bits u32(std::int64_t value) {
  return static_cast<std::uint32_t>(value);
}
inline Bits u16(std::int64_t value) {
  return static_cast<std::uint16_t>(value);
}
inline Bits u64(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}

inline constexpr Bits kNan32 = 0x7fffffff, kInf32 = 0x7f800000, kMinusInf32 = 0xff800000;

// The instruction names its registers d, a, b, c; p is a predicate, q its companion. Widths are in bits, as "32 32 32"
// for d, a, b; a width of 1 for d means that the result is p.
struct Row {
  const char* instruction;
  const char* widths;
  std::vector<Bits> inputs;
  Bits expected;
};

inline std::vector<int> widths_of(const Row& row) {
  std::vector<int> result;
  for (const char* at = row.widths; *at;) {
    char* end = nullptr;
    result.push_back(static_cast<int>(std::strtol(at, &end, 10)));
    at = end;
  }
  return result;
}

inline std::string kernel_text(const Row& row, int target) {
  const std::vector<int> widths = widths_of(row);
  const bool predicate = widths[0] == 1;
  std::string text = ".version 8.8\n.target sm_" + std::to_string(target) + "\n.address_size 64\n";
  text +=
      ".visible .entry k(.param .u64 in, .param .u64 out) {\n.reg .b64 %in, %out, %at;\n.reg .b32 %t;\n.reg .pred p, "
      "q;\n";
  const auto declare = [&](const std::string& name, int width) {
    text += ".reg .b" + std::to_string(width) + " " + name + ";\n";
  };
  declare("d", predicate ? 32 : widths[0]);
  text += "ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\nmov.u32 %t, %tid.x;\n";
  text += "mad.wide.u32 %at, %t, 32, %in;\n";
  for (std::size_t i = 1; i < widths.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i - 1));
    // The result's name is d, so the fourth operand is e.
    const std::string reg = name == "d" ? "e" : name;
    declare(reg, widths[i]);
    text += "ld.global.b" + std::to_string(widths[i]) + " " + reg + ", [%at+" + std::to_string(8 * (i - 1)) + "];\n";
  }
  text += std::string(row.instruction) + ";\n";
  if (predicate) text += "selp.b32 d, 1, 0, p;\n";
  text += "mad.wide.u32 %at, %t, 8, %out;\nst.global.b" + std::to_string(predicate ? 32 : widths[0]) +
          " [%at], d;\nret;\n}\n";
  return text;
}

inline void check(const Row& row, int target = 100) {
  ptx::Module module(kernel_text(row, target));
  constexpr std::uint32_t kThreads = 32;
  std::byte* in = ptx::memory().allocate(32 * kThreads, ptx::AllocationKind::kDevice);
  std::byte* out = ptx::memory().allocate(8 * kThreads, ptx::AllocationKind::kDevice);
  ptx::memory().mark_initialised(in, 32 * kThreads);
  for (const std::uint32_t threads : {1u, kThreads}) {
    for (std::size_t lane = 0; lane < kThreads; ++lane) {
      for (std::size_t i = 0; i < row.inputs.size(); ++i) {
        // The lane in the middle has the operands; its neighbours have some of their bits changed.
        const bool own = threads == 1 || lane == 13;
        const Bits value = row.inputs[i] ^ (own ? 0 : (lane & 3));
        std::memcpy(in + 32 * lane + 8 * i, &value, 8);
      }
    }
    std::memset(out, 0, 8 * kThreads);
    const void* arguments[] = {&in, &out};
    ptx::LaunchConfiguration configuration;
    configuration.block.x = threads;
    const ptx::LaunchResult result = ptx::launch(module, "k", configuration, arguments);
    Bits got = 0;
    std::memcpy(&got, out + (threads == 1 ? 0 : 8 * 13), 8);
    CHECK(result.clean);
    if (got != row.expected) {
      char line[200];
      std::snprintf(line, sizeof line, "%s: expected %#llx, got %#llx (%u threads)", row.instruction,
                    static_cast<unsigned long long>(row.expected), static_cast<unsigned long long>(got), threads);
      FAIL_CHECK(line);
    }
  }
  ptx::memory().release(in);
  ptx::memory().release(out);
}

inline void check_all(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    try {
      check(row);
    } catch (const ptx::Error& error) {
      FAIL_CHECK(std::string(row.instruction) + ": " + error.what());
    }
  }
}

}  // namespace ptx_test
