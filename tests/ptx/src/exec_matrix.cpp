// ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit values, spread over a warp. Lane i holds the values 2(i%4) and
// 2(i%4)+1 of row i/4; .trans exchanges rows and columns.

#include <cstring>

#include "access.hpp"
#include "alu.hpp"
#include "warp_sync.hpp"

namespace ptx {
namespace {

constexpr std::size_t kRows = 8;

using Matrix = std::array<std::array<std::uint16_t, kRows>, kRows>;

Matrix gather(const Warp& warp, Reg reg, bool transposed) {
  Matrix result;
  const std::uint32_t* words = warp.lanes<std::uint32_t>(reg);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t row = lane / 4, column = 2 * (lane % 4) + half;
      (transposed ? result[column][row] : result[row][column]) = static_cast<std::uint16_t>(words[lane] >> (16 * half));
    }
  }
  return result;
}

void scatter(const Warp& warp, Reg reg, const Matrix& matrix, bool transposed) {
  std::uint32_t* words = warp.lanes<std::uint32_t>(reg);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    std::uint32_t word = 0;
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t row = lane / 4, column = 2 * (lane % 4) + half;
      word |= std::uint32_t{transposed ? matrix[column][row] : matrix[row][column]} << (16 * half);
    }
    words[lane] = word;
  }
}

void require_whole_warp(const Warp& warp, const Inst& inst, std::uint32_t members) {
  if (members != kFullMask)
    report(ReportKind::kMask, warp, std::countr_zero(members), inst,
           "a matrix instruction is executed by a part of a warp");
}

// Lanes 8j..8j+7 have the addresses of the rows of matrix j.
template <bool kStore>
Flow execute_ldst(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, kNoReg, [&](std::uint32_t members) {
    require_whole_warp(warp, inst, members);
    LaneAddresses addresses;
    LanePointers pointers;
    lane_addresses(warp, inst, addresses);
    const std::uint32_t used = inst.count == 4 ? kFullMask : (1u << (kRows * inst.count)) - 1;
    resolve(warp, inst, used & members, inst.space, addresses, 16, {!kStore, kStore, false}, pointers);
    const bool transposed = inst.option != 0;
    for (std::size_t j = 0; j < inst.count; ++j) {
      Matrix matrix{};
      if (kStore) matrix = gather(warp, inst.list[j], transposed);
      for (std::size_t row = 0; row < kRows; ++row) {
        if (!(members >> (kRows * j + row) & 1)) continue;
        std::byte* at = pointers[kRows * j + row];
        if (kStore) {
          std::memcpy(at, matrix[row].data(), 16);
        } else {
          std::memcpy(matrix[row].data(), at, 16);
        }
      }
      if (!kStore) scatter(warp, inst.list[j], matrix, transposed);
    }
  });
}

void take_form(Lowering& lowering, Inst& inst) {
  if (!lowering.take("sync") || !lowering.take("aligned")) lowering.fail("needs .sync.aligned");
  if (!lowering.take("m8n8")) lowering.fail("only .m8n8 is supported");
  const int count = lowering.take_any({"x1", "x2", "x4"});
  if (count < 0) lowering.fail("needs .x1, .x2 or .x4");
  inst.count = static_cast<std::uint8_t>(1 << count);
  inst.option = lowering.take("trans") ? 1 : 0;
  inst.space = lowering.take_space();
  lowering.take_type({Type::kB16});
  lowering.expect_operands(2);
}

void lower_ldmatrix(Lowering& lowering, Inst& inst) {
  take_form(lowering, inst);
  std::vector<Reg> registers;
  for (const Operand& element : lowering.elements(0)) registers.push_back(lowering.destination(element, 4));
  if (registers.size() != inst.count) lowering.fail("expected as many registers as matrices");
  inst.list = lowering.list(std::move(registers));
  lowering.address(1, inst);
  inst.execute = execute_ldst<false>;
}

void lower_stmatrix(Lowering& lowering, Inst& inst) {
  take_form(lowering, inst);
  std::vector<Reg> registers;
  for (const Operand& element : lowering.elements(1)) registers.push_back(lowering.source(element, 4));
  if (registers.size() != inst.count) lowering.fail("expected as many registers as matrices");
  inst.list = lowering.list(std::move(registers));
  lowering.address(0, inst);
  inst.execute = execute_ldst<true>;
}

Flow execute_movmatrix(Warp& warp, const Inst& inst, std::uint32_t mask) {
  return meet(warp, inst, mask, kNoReg, [&](std::uint32_t members) {
    require_whole_warp(warp, inst, members);
    scatter(warp, inst.dst[0], gather(warp, inst.src[0], false), true);
  });
}

void lower_movmatrix(Lowering& lowering, Inst& inst) {
  if (!lowering.take("sync") || !lowering.take("aligned") || !lowering.take("m8n8") || !lowering.take("trans"))
    lowering.fail("movmatrix.sync.aligned.m8n8.trans is expected");
  lowering.take_type({Type::kB16});
  same_width_operands(lowering, inst, 1, 4);
  inst.execute = execute_movmatrix;
}

}  // namespace

void add_matrix(InstructionSet& set) {
  set.general["ldmatrix"] = lower_ldmatrix;
  set.general["stmatrix"] = lower_stmatrix;
  set.general["movmatrix"] = lower_movmatrix;
}

}  // namespace ptx
