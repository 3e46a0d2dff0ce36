#pragma once
// The executable form of one kernel: instructions with operands resolved to places in a warp's register file.
//
// The register file holds every register as 32 consecutive lanes of its own width, so that an instruction over a full
// warp is a loop over two arrays that the compiler vectorises. A predicate is one 32-bit mask. Immediates and the
// addresses of variables are registers too, filled before the warp starts.

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "ast.hpp"
#include "types.hpp"

namespace ptx {

struct Inst;
struct Warp;

// Where the lanes that executed an instruction go on.
enum class Flow : std::uint8_t {
  kNext,    // at the next instruction
  kJump,    // at Inst::target
  kRescan,  // the instruction has set their pc (or blocked or ended them)
};

using Execute = Flow (*)(Warp&, const Inst&, std::uint32_t mask);

// A register: its byte offset in the register file.
using Reg = std::uint32_t;
constexpr Reg kNoReg = ~Reg{0};
constexpr int kLanes = 32;
constexpr std::uint32_t kFullMask = ~std::uint32_t{0};

// How an access orders memory. Everything but kWeak is a strong access: it does not race with another strong one.
enum class Order : std::uint8_t { kWeak, kVolatile, kRelaxed, kAcquire, kRelease, kAcquireRelease };
enum class Scope : std::uint8_t { kCta, kCluster, kGpu, kSystem };

struct Inst {
  Execute execute = nullptr;
  Reg dst[2] = {kNoReg, kNoReg};
  Reg src[4] = {kNoReg, kNoReg, kNoReg, kNoReg};
  Reg pred = kNoReg;
  std::uint32_t target = 0;   // of a branch: an instruction; of a call: an index into Program::calls
  std::int64_t imm = 0;       // the offset of an address, a lookup table ...
  const Reg* list = nullptr;  // further operands: elements of vectors
  std::uint32_t option = 0;   // what else selects the behaviour; its meaning is the instruction's own
  bool pred_negated = false;
  bool sign_extend = false;
  Space space = Space::kGeneric;
  Order order = Order::kWeak;
  Scope scope = Scope::kGpu;
  std::uint8_t size = 0;       // bytes of an element in memory
  std::uint8_t count = 1;      // elements
  std::uint8_t reg_size = 0;   // bytes of the register of an element
  std::uint8_t addr_size = 8;  // bytes of the address register
};

// For reports: what an instruction was.
struct InstInfo {
  int line = 0;
  SourcePlace place;
  std::string_view text;
};

enum class Special : std::uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneId,
  kWarpId,
  kNwarpId,
  kLaneMaskEq,
  kLaneMaskLt,
  kLaneMaskLe,
  kLaneMaskGt,
  kLaneMaskGe,
  kSmId,
  kNsmId,
  kGridId,
  kDynamicShared,
  kTotalShared,
  kReservedShared,
  kZero,
  kOne,
  kEnvReg1,
  kEnvReg2,
};

struct SpecialUse {
  Reg reg;
  Special special;
  std::uint8_t size;
};

// A register that holds the address of a byte of the thread's local memory, or of the kernel's parameters.
struct AddressUse {
  Reg reg;
  std::size_t offset;
};

struct Copy {
  std::size_t to, from, bytes;  // offsets in the thread's local memory
};

// A device function as part of a program. Parameters and results live in local memory at fixed places: no recursion.
struct FunctionFrame {
  const Function* function = nullptr;
  std::vector<std::size_t> parameter_at, return_at;
  std::uint32_t entry = 0;
  bool lowered = false;
};

struct Call {
  int function = -1;  // -1: through a pointer in Inst::src[0]
  std::vector<std::size_t> argument_at, argument_bytes, result_at, result_bytes;
};

struct Program {
  const Function* kernel = nullptr;
  std::vector<Inst> code;
  std::vector<InstInfo> info;
  std::vector<std::byte> initial_registers;
  std::vector<SpecialUse> specials;
  std::vector<AddressUse> local_addresses, parameter_addresses;
  std::deque<std::vector<Reg>> lists;
  std::deque<Call> calls;
  std::vector<FunctionFrame> functions;   // by the module's function number
  std::vector<std::size_t> parameter_at;  // of the kernel's parameters
  std::size_t parameter_bytes = 0;
  std::size_t static_shared = 0;   // bytes
  std::size_t dynamic_shared = 0;  // where `extern __shared__` begins
  std::size_t local = 0;           // bytes per thread
  bool uses_alloca = false;
};

}  // namespace ptx
