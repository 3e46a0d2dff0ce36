// mma.sync: D = A B + C over a warp. The fragments' layouts follow one rule for all types. With g = lane / 4, t = lane
// % 4 and p values per 32-bit register (1 for f64):
//   A: register r, value e lies at row g + 8 (r % 2), column p t + e + 4 p (r / 2)
//   B: register r, value e lies at row p t + e + 4 p r, column g
//   C, D: value i lies at row g + 8 (i / 2), column 2 t + i % 2
// Products are exact; sums run in order of k in the accumulator's type (f16 accumulators: in f32, rounded at the end),
// where the hardware's order and intermediate width are its own.

#include <algorithm>

#include "alu.hpp"
#include "numbers.hpp"
#include "warp_sync.hpp"

namespace ptx {
namespace {

constexpr std::size_t kMaxRows = 16, kColumns = 8, kMaxDepth = 32;

struct Shape {
  std::string_view name;
  std::size_t rows, depth;
};

constexpr Shape kShapes[] = {{"m8n8k4", 8, 4},   {"m8n8k16", 8, 16},   {"m16n8k4", 16, 4},
                             {"m16n8k8", 16, 8}, {"m16n8k16", 16, 16}, {"m16n8k32", 16, 32}};

// Inst::option
constexpr std::uint32_t kSaturateFinite = 1u << 31;
Type a_type(const Inst& inst) {
  return static_cast<Type>(inst.option & 255);
}
Type b_type(const Inst& inst) {
  return static_cast<Type>(inst.option >> 8 & 255);
}
Type d_type(const Inst& inst) {
  return static_cast<Type>(inst.option >> 16 & 127);
}
// Inst::imm
std::size_t rows_of(const Inst& inst) {
  return static_cast<std::size_t>(inst.imm & 255);
}
std::size_t depth_of(const Inst& inst) {
  return static_cast<std::size_t>(inst.imm >> 8 & 255);
}

float decode_float(std::uint32_t bits, Type type) {
  switch (type) {
    case Type::kF16:
      return f16_to_float(static_cast<std::uint16_t>(bits));
    case Type::kBF16:
      return bf16_to_float(static_cast<std::uint16_t>(bits));
    // The hardware reads the 19 high bits.
    case Type::kTF32:
      return std::bit_cast<float>(bits & 0xffffe000u);
    case Type::kE4M3:
      return static_cast<float>(decode(bits & 255, kFormatE4M3));
    default:
      return static_cast<float>(decode(bits & 255, kFormatE5M2));
  }
}

std::int32_t decode_integer(std::uint32_t bits, Type type) {
  return type == Type::kS8 ? static_cast<std::int8_t>(bits) : static_cast<std::uint8_t>(bits);
}

template <class T>
struct Operands {
  std::array<std::array<T, kMaxDepth>, kMaxRows> a;
  std::array<std::array<T, kColumns>, kMaxDepth> b;
};

// Where the registers of a fragment begin in Inst::list: D, A, B, C.
struct Places {
  const Reg *d, *a, *b, *c;
  std::size_t d_count, a_count, b_count;
};

std::size_t values_per_register(Type type) {
  return type == Type::kF64 ? 1 : std::max<std::size_t>(4 / size_of(type), 1);
}

std::size_t accumulators(const Inst& inst) {
  const std::size_t values = rows_of(inst) / 4;  // per lane
  return d_type(inst) == Type::kF16 ? values / 2 : values;
}

Places places_of(const Inst& inst) {
  const std::size_t d = accumulators(inst);
  const std::size_t a = rows_of(inst) * depth_of(inst) / kLanes / values_per_register(a_type(inst));
  const std::size_t b = kColumns * depth_of(inst) / kLanes / values_per_register(b_type(inst));
  return {inst.list, inst.list + d, inst.list + d + a, inst.list + d + a + b, d, a, b};
}

// With 16 rows, registers alternate between the upper and the lower half; with 8 there is only the upper.
template <class T, class Word, class Decode>
void load_operands(const Warp& warp, const Inst& inst, const Places& places, Operands<T>& operands,
                   Decode&& decode_value) {
  const std::size_t halves = rows_of(inst) / 8;
  const auto fill = [&](const Reg* registers, std::size_t count, Type type, auto&& put) {
    const std::size_t p = values_per_register(type);
    const std::size_t bits = 8 * size_of(type);
    for (std::size_t r = 0; r < count; ++r) {
      const Word* words = warp.lanes<Word>(registers[r]);
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        for (std::size_t e = 0; e < p; ++e)
          put(r, lane, e, p, decode_value(static_cast<Word>(words[lane] >> (p == 1 ? 0 : bits * e)), type));
    }
  };
  fill(places.a, places.a_count, a_type(inst),
       [&](std::size_t r, std::size_t lane, std::size_t e, std::size_t p, T value) {
         operands.a[lane / 4 + 8 * (r % halves)][p * (lane % 4) + e + 4 * p * (r / halves)] = value;
       });
  fill(places.b, places.b_count, b_type(inst),
       [&](std::size_t r, std::size_t lane, std::size_t e, std::size_t p, T value) {
         operands.b[p * (lane % 4) + e + 4 * p * r][lane / 4] = value;
       });
}

template <class T, class Sum>
void multiply(const Operands<T>& operands, std::size_t rows, std::size_t depth,
              std::array<std::array<Sum, kColumns>, kMaxRows>& sums) {
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t k = 0; k < depth; ++k)
      for (std::size_t column = 0; column < kColumns; ++column)
        sums[row][column] += static_cast<Sum>(operands.a[row][k]) * static_cast<Sum>(operands.b[k][column]);
}

// Calls f(register, lane, value in it, row, column) for every accumulator.
template <class F>
void for_accumulators(const Inst& inst, F&& f) {
  const bool halves = d_type(inst) == Type::kF16;
  for (std::size_t i = 0; i < rows_of(inst) / 4; ++i)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      f(halves ? i / 2 : i, lane, halves ? i % 2 : 0, lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
}

void require_whole_warp(const Warp& warp, const Inst& inst, std::uint32_t members) {
  if (members != kFullMask)
    report(ReportKind::kMask, warp, std::countr_zero(members), inst, "mma is executed by a part of a warp");
}

Flow execute_float(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, kNoReg, [&](std::uint32_t members) {
    require_whole_warp(warp, inst, members);
    const Places places = places_of(inst);
    Operands<float> operands;
    load_operands<float, std::uint32_t>(warp, inst, places, operands, decode_float);
    std::array<std::array<float, kColumns>, kMaxRows> sums;
    const bool halves = d_type(inst) == Type::kF16;
    for_accumulators(
        inst, [&](std::size_t reg, std::size_t lane, std::size_t part, std::size_t row, std::size_t column) {
          const std::uint32_t word = warp.lanes<std::uint32_t>(places.c[reg])[lane];
          sums[row][column] =
              halves ? f16_to_float(static_cast<std::uint16_t>(word >> (16 * part))) : std::bit_cast<float>(word);
        });
    multiply(operands, rows_of(inst), depth_of(inst), sums);
    for_accumulators(inst,
                     [&](std::size_t reg, std::size_t lane, std::size_t part, std::size_t row, std::size_t column) {
                       std::uint32_t& word = warp.lanes<std::uint32_t>(places.d[reg])[lane];
                       if (halves) {
                         const std::uint32_t bits = float_to_f16(sums[row][column]);
                         word = part == 0 ? bits : word | bits << 16;
                       } else {
                         word = std::bit_cast<std::uint32_t>(canonical(sums[row][column]));
                       }
                     });
  });
}

Flow execute_integer(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, kNoReg, [&](std::uint32_t members) {
    require_whole_warp(warp, inst, members);
    const Places places = places_of(inst);
    Operands<std::int32_t> operands;
    load_operands<std::int32_t, std::uint32_t>(warp, inst, places, operands, decode_integer);
    std::array<std::array<std::int64_t, kColumns>, kMaxRows> sums;
    for_accumulators(inst, [&](std::size_t reg, std::size_t lane, std::size_t, std::size_t row, std::size_t column) {
      sums[row][column] = warp.lanes<std::int32_t>(places.c[reg])[lane];
    });
    multiply(operands, rows_of(inst), depth_of(inst), sums);
    for_accumulators(inst, [&](std::size_t reg, std::size_t lane, std::size_t, std::size_t row, std::size_t column) {
      std::int64_t sum = sums[row][column];
      if (inst.option & kSaturateFinite) sum = std::clamp<std::int64_t>(sum, INT32_MIN, INT32_MAX);
      warp.lanes<std::int32_t>(places.d[reg])[lane] = static_cast<std::int32_t>(sum);
    });
  });
}

Flow execute_double(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, kNoReg, [&](std::uint32_t members) {
    require_whole_warp(warp, inst, members);
    const Places places = places_of(inst);
    Operands<double> operands;
    load_operands<double, std::uint64_t>(warp, inst, places, operands,
                                         [](std::uint64_t bits, Type) { return std::bit_cast<double>(bits); });
    std::array<std::array<double, kColumns>, kMaxRows> sums;
    for_accumulators(inst, [&](std::size_t reg, std::size_t lane, std::size_t, std::size_t row, std::size_t column) {
      sums[row][column] = warp.lanes<double>(places.c[reg])[lane];
    });
    for (std::size_t row = 0; row < rows_of(inst); ++row)
      for (std::size_t k = 0; k < depth_of(inst); ++k)
        for (std::size_t column = 0; column < kColumns; ++column)
          sums[row][column] = std::fma(operands.a[row][k], operands.b[k][column], sums[row][column]);
    for_accumulators(inst, [&](std::size_t reg, std::size_t lane, std::size_t, std::size_t row, std::size_t column) {
      warp.lanes<double>(places.d[reg])[lane] = sums[row][column];
    });
  });
}

// Which combinations of type and shape exist.
bool exists(Type a, Type b, Type d, std::size_t rows, std::size_t depth) {
  switch (a) {
    case Type::kF16:
      return b == a && rows == 16 && (depth == 8 || depth == 16) && (d == Type::kF32 || d == Type::kF16);
    case Type::kBF16:
      return b == a && rows == 16 && (depth == 8 || depth == 16) && d == Type::kF32;
    case Type::kTF32:
      return b == a && rows == 16 && (depth == 4 || depth == 8) && d == Type::kF32;
    case Type::kE4M3:
    case Type::kE5M2:
      return (b == Type::kE4M3 || b == Type::kE5M2) && rows == 16 && (depth == 16 || depth == 32) &&
             (d == Type::kF32 || d == Type::kF16);
    case Type::kS8:
    case Type::kU8:
      return (b == Type::kS8 || b == Type::kU8) && d == Type::kS32 &&
             ((rows == 16 && (depth == 16 || depth == 32)) || (rows == 8 && depth == 16));
    case Type::kF64:
      return b == a && d == a && ((rows == 8 && depth == 4) || (rows == 16 && depth <= 16));
    default:
      return false;
  }
}

void lower_mma(Lowering& lowering, Inst& inst) {
  if (!lowering.take("sync") || !lowering.take("aligned")) lowering.fail("mma needs .sync.aligned");
  const Shape* shape = nullptr;
  for (const Shape& candidate : kShapes)
    if (lowering.take(candidate.name)) shape = &candidate;
  if (!shape) lowering.fail("the shape is not supported");
  if (!lowering.take("row") || !lowering.take("col")) lowering.fail("A is .row, B is .col");
  lowering.take_any({"rn"});
  const bool saturate = lowering.take("satfinite");
  const Type d = lowering.take_type(), a = lowering.take_type(), b = lowering.take_type(), c = lowering.take_type();
  if (c != d || !exists(a, b, d, shape->rows, shape->depth)) lowering.fail("the types and shape do not go together");
  inst.option = static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b) << 8 |
                static_cast<std::uint32_t>(d) << 16 | (saturate ? kSaturateFinite : 0);
  inst.imm = static_cast<std::int64_t>(shape->rows | shape->depth << 8);
  const Places counts = places_of(inst);
  lowering.expect_operands(4);
  const std::size_t d_bytes = d == Type::kF64 ? 8 : 4, ab_bytes = a == Type::kF64 ? 8 : 4;
  std::vector<Reg> registers;
  for (const Operand& element : lowering.elements(0)) registers.push_back(lowering.destination(element, d_bytes));
  if (registers.size() != counts.d_count) lowering.fail("D has another number of registers");
  for (const Operand& element : lowering.elements(1)) registers.push_back(lowering.source(element, ab_bytes));
  if (registers.size() != counts.d_count + counts.a_count) lowering.fail("A has another number of registers");
  for (const Operand& element : lowering.elements(2)) registers.push_back(lowering.source(element, ab_bytes));
  if (registers.size() != counts.d_count + counts.a_count + counts.b_count)
    lowering.fail("B has another number of registers");
  for (const Operand& element : lowering.elements(3)) registers.push_back(lowering.source(element, d_bytes));
  if (registers.size() != 2 * counts.d_count + counts.a_count + counts.b_count)
    lowering.fail("C has another number of registers");
  inst.list = lowering.list(std::move(registers));
  inst.execute = d == Type::kF64 ? execute_double : d == Type::kS32 ? execute_integer : execute_float;
}

}  // namespace

void add_mma(InstructionSet& set) {
  set.general["mma"] = lower_mma;
}

}  // namespace ptx
