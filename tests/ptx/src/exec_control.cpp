// Branches, calls, exits, and instructions that do nothing here.

#include <algorithm>
#include <cstring>

#include "alu.hpp"
#include "report.hpp"

namespace ptx {

Flow execute_branch(Warp&, const Inst&, std::uint32_t) {
  return Flow::kJump;
}

namespace {

void lower_bra(Lowering& lowering, Inst& inst) {
  lowering.take("uni");
  lowering.expect_operands(1);
  lowering.branch_to(lowering.operand(0).name);
  inst.execute = execute_branch;
}

// Through a table of labels in inst.list.
Flow execute_indexed_branch(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const std::uint32_t* index = warp.lanes<std::uint32_t>(inst.src[0]);
  for_each_lane(mask, [&](int lane) {
    if (index[lane] >= inst.option) throw Error("brx.idx: index out of range");
    warp.pc[static_cast<std::size_t>(lane)] = inst.list[index[lane]];
  });
  return Flow::kRescan;
}

void lower_brx(Lowering& lowering, Inst& inst) {
  if (!lowering.take("idx")) lowering.fail("brx needs .idx");
  lowering.take("uni");
  lowering.expect_operands(2);
  const auto* targets = lowering.targets(lowering.operand(1).name);
  if (!targets) lowering.fail("unknown table of targets");
  inst.src[0] = lowering.source(0, 4);
  inst.list = lowering.list(std::vector<Reg>(targets->size(), 0));
  inst.option = static_cast<std::uint32_t>(targets->size());
  const std::size_t list = lowering.program().lists.size() - 1;
  for (std::size_t i = 0; i < targets->size(); ++i) lowering.table_entry(list, i, (*targets)[i]);
  inst.execute = execute_indexed_branch;
}

Flow execute_exit(Warp& warp, const Inst&, std::uint32_t mask) {
  warp.alive &= ~mask;
  return Flow::kRescan;
}

void lower_exit(Lowering&, Inst& inst) {
  inst.execute = execute_exit;
}

// ---- calls: parameters are copied from the caller's local memory to the called function's, results back

int called_function(const Warp& warp, const Inst& inst, const Call& call, int lane) {
  if (call.function >= 0) return call.function;
  const std::uint64_t pointer = warp.lanes<std::uint64_t>(inst.src[0])[lane];
  const std::uint64_t number = (pointer - kFunctionWindow) / 16;
  if (pointer < kFunctionWindow || number >= warp.program->functions.size() || !warp.program->functions[number].lowered)
    throw Error("a call through a pointer to no function");
  return static_cast<int>(number);
}

Flow execute_call(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const Call& call = warp.program->calls[inst.target];
  for_each_lane(mask, [&](int lane) {
    const int function = called_function(warp, inst, call, lane);
    const FunctionFrame& frame = warp.program->functions[static_cast<std::size_t>(function)];
    std::vector<CallSite>& stack = warp.calls[static_cast<std::size_t>(lane)];
    for (const CallSite& site : stack)
      if (site.function == function) throw Error("recursion is not supported: " + frame.function->name);
    if (call.argument_at.size() != frame.parameter_at.size() || call.result_at.size() > frame.return_at.size())
      throw Error("a call does not fit the parameters of " + frame.function->name);
    std::byte* local = warp.local(lane);
    for (std::size_t i = 0; i < call.argument_at.size(); ++i)
      std::memcpy(local + frame.parameter_at[i], local + call.argument_at[i], call.argument_bytes[i]);
    stack.push_back({warp.pc_of(inst), function});
    warp.pc[static_cast<std::size_t>(lane)] = frame.entry;
  });
  return Flow::kRescan;
}

Flow execute_return(Warp& warp, const Inst&, std::uint32_t mask) {
  for_each_lane(mask, [&](int lane) {
    std::vector<CallSite>& stack = warp.calls[static_cast<std::size_t>(lane)];
    if (stack.empty()) {
      warp.alive &= ~(1u << lane);
      return;
    }
    const CallSite site = stack.back();
    stack.pop_back();
    const FunctionFrame& frame = warp.program->functions[static_cast<std::size_t>(site.function)];
    const Call& call = warp.program->calls[warp.program->code[site.pc].target];
    std::byte* local = warp.local(lane);
    for (std::size_t i = 0; i < call.result_at.size(); ++i)
      std::memcpy(local + call.result_at[i], local + frame.return_at[i], call.result_bytes[i]);
    warp.pc[static_cast<std::size_t>(lane)] = site.pc + 1;
  });
  return Flow::kRescan;
}

void lower_ret(Lowering& lowering, Inst& inst) {
  lowering.take("uni");
  inst.execute = execute_return;
}

void lower_call(Lowering& lowering, Inst& inst) {
  lowering.take("uni");
  Call call;
  std::size_t i = 0;
  const auto add = [&](const Operand& list, std::vector<std::size_t>& at, std::vector<std::size_t>& bytes) {
    for (const Operand& element : list.elements) {
      const Lowering::Symbol* symbol = lowering.find_symbol(element.name);
      if (!symbol || symbol->space != Space::kLocal) lowering.fail("arguments must be .param variables");
      at.push_back(symbol->at);
      bytes.push_back(symbol->bytes);
    }
  };
  if (lowering.operand(0).kind == Operand::Kind::kVector) add(lowering.operand(i++), call.result_at, call.result_bytes);
  const Operand& target = lowering.operand(i++);
  if (i < lowering.operand_count() && lowering.operand(i).kind == Operand::Kind::kVector)
    add(lowering.operand(i++), call.argument_at, call.argument_bytes);
  if (lowering.is_register(target)) {
    inst.src[0] = lowering.source(target, 8);
    lowering.require_functions_with_address();
  } else {
    call.function = lowering.module().function_number(target.name);
    if (call.function < 0) lowering.fail("unknown function");
    if (const Execute builtin = builtin_function(target.name)) {
      inst.list = lowering.list({call.argument_at.begin(), call.argument_at.end()});
      inst.count = static_cast<std::uint8_t>(call.argument_at.size());
      inst.imm = call.result_at.empty() ? -1 : static_cast<std::int64_t>(call.result_at[0]);
      inst.execute = builtin;
      return;
    }
    lowering.require_function(call.function);
  }
  inst.target = static_cast<std::uint32_t>(lowering.program().calls.size());
  lowering.program().calls.push_back(std::move(call));
  inst.execute = execute_call;
}

Flow execute_trap(Warp& warp, const Inst& inst, std::uint32_t mask) {
  report(ReportKind::kTrap, warp, std::countr_zero(mask), inst, "executes trap");
  warp.block->launch->stop = true;
  warp.alive &= ~mask;
  return Flow::kRescan;
}

Flow execute_nothing(Warp&, const Inst&, std::uint32_t) {
  return Flow::kNext;
}

void lower_nothing(Lowering& lowering, Inst& inst) {
  lowering.take_any({"u32", "launch_dependents", "wait"});
  inst.execute = execute_nothing;
}

}  // namespace

void add_control(InstructionSet& set) {
  auto& all = set.general;
  all["bra"] = lower_bra;
  all["brx"] = lower_brx;
  all["exit"] = lower_exit;
  all["ret"] = lower_ret;
  all["call"] = lower_call;
  all["trap"] = [](Lowering&, Inst& inst) { inst.execute = execute_trap; };
  all["brkpt"] = lower_nothing;
  all["nanosleep"] = lower_nothing;
  all["pmevent"] = lower_nothing;
  // Kernels run one after another, so programmatic dependent launches are always fulfilled.
  all["griddepcontrol"] = lower_nothing;
}

}  // namespace ptx
