#pragma once
// From parsed PTX to the executable form. Each group of instructions (exec_*.cpp) adds its opcodes to the instruction
// set with a function that reads a statement's modifiers and operands and fills in an Inst. A modifier that nobody
// asked for is an error, so that an unknown variant is never run as a known one.

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "module.hpp"
#include "program.hpp"

namespace ptx {

class Lowering;
using LowerFunction = void (*)(Lowering&, Inst&);

// Opcodes such as "add" mean one thing with a floating-point type and another without.
struct InstructionSet {
  std::map<std::string_view, LowerFunction> general, floating;
};

const InstructionSet& instruction_set();

// Each adds one group.
void add_integer(InstructionSet& set);
void add_bits(InstructionSet& set);
void add_compare(InstructionSet& set);
void add_float(InstructionSet& set);
void add_convert(InstructionSet& set);
void add_move(InstructionSet& set);
void add_memory(InstructionSet& set);
void add_atomic(InstructionSet& set);
void add_async(InstructionSet& set);
void add_control(InstructionSet& set);
void add_barrier(InstructionSet& set);
void add_warp(InstructionSet& set);
void add_matrix(InstructionSet& set);
void add_mma(InstructionSet& set);
void add_system(InstructionSet& set);

// A function that the runtime provides, such as vprintf, or nullptr. Inst::list has the places of its arguments in
// local memory, Inst::imm that of its result (or -1).
Execute builtin_function(std::string_view name);

std::unique_ptr<Program> lower_kernel(Module& module, const Function& kernel);

class Lowering {
 public:
  Lowering(Module& module, Program& program);

  void lower_all(const Function& kernel);

  // ---- for the instruction groups: the statement at hand

  std::string_view opcode() const { return statement_->opcode; }
  std::size_t operand_count() const { return statement_->operands.size(); }
  const Operand& operand(std::size_t i) const;
  bool has_second_destination() const { return statement_->has_second_destination; }
  [[noreturn]] void fail(const std::string& what) const;
  void expect_operands(std::size_t count) const;

  // Uses up a modifier; false where the statement has none such left.
  bool take(std::string_view modifier);
  // The index in the list of the one that is there, or -1.
  int take_any(std::initializer_list<std::string_view> modifiers);
  // The first type among the modifiers that are left.
  Type take_type();
  Type take_type(std::initializer_list<Type> allowed);
  bool has_type() const;
  // Cache hints and eviction priorities, which change no result. With L2::cache_hint the last operand is a policy.
  void take_cache_hints();
  Space take_space();
  void take_order(Inst& inst);
  bool take_scope(Inst& inst);
  int take_vector();  // elements

  // ---- operands. Registers must have the width asked for; numbers become constants of it.

  Reg source(std::size_t i, std::size_t bytes) { return source(operand(i), bytes); }
  Reg source(const Operand& operand, std::size_t bytes);
  // A register at least as wide; its width goes to `bytes`.
  Reg source_wide(const Operand& operand, std::size_t at_least, std::uint8_t& bytes);
  Reg destination(std::size_t i, std::size_t bytes) { return destination(operand(i), bytes); }
  Reg destination(const Operand& operand, std::size_t bytes);
  Reg destination_wide(const Operand& operand, std::size_t at_least, std::uint8_t& bytes);
  Reg source_predicate(std::size_t i);
  Reg destination_predicate(std::size_t i);
  bool is_register(const Operand& operand) const;
  // The width in bytes of a register operand (0 for a predicate), or -1 for anything else.
  int register_width(const Operand& operand) const;
  std::uint64_t number(std::size_t i) const;  // an operand that must be an immediate
  bool is_number(std::size_t i) const;
  Reg constant(std::uint64_t bits, std::size_t bytes);
  Reg scratch(std::size_t bytes);
  Reg carry_flag();  // the predicate that add.cc sets and addc reads

  // Base register, offset and width of an address operand.
  void address(std::size_t i, Inst& inst, int src = 0);
  // Elements of a vector operand, or the operand alone.
  std::vector<Operand> elements(std::size_t i) const;
  const Reg* list(std::vector<Reg> registers);

  // An instruction of its own before (or instead of) the one being lowered.
  void emit(Inst inst);
  // The statement needs nothing beyond what was emitted.
  void emitted_all() { nothing_left_ = true; }

  // ---- control

  void branch_to(std::string_view label);  // the next instruction's target
  const std::vector<std::string_view>* targets(std::string_view name) const;
  void table_entry(std::size_t list_index, std::size_t position, std::string_view label);
  Module& module() { return module_; }
  Program& program() { return program_; }
  const Statement& statement() const { return *statement_; }

  struct Symbol {
    Space space = Space::kGeneric;
    std::size_t at = 0;  // an offset; for global and const variables, the address
    std::size_t bytes = 0;
    bool kernel_parameter = false;
  };
  const Symbol* find_symbol(std::string_view name);
  FunctionFrame& frame(int function);
  const CallPrototype* prototype(std::string_view name) const;
  void require_function(int function);
  void require_functions_with_address();

 private:
  struct Register {
    Reg reg = kNoReg;
    Type type = Type::kNone;
  };
  struct RegisterRange {
    Type type = Type::kNone;
    std::vector<Reg> regs;
  };
  struct NameScope {
    std::unordered_map<std::string_view, Register> registers;
    std::unordered_map<std::string_view, RegisterRange> ranges;
    std::unordered_map<std::string_view, Symbol> symbols;
  };

  void lower_body(const Function& function, NameScope&& outermost);
  void lower_item(const BodyItem& item);
  void lower_statement(const Statement& statement);
  void declare(const Variable& variable);
  void place_shared(const Function& kernel);
  void resolve_branches();
  Reg allocate(Type type);
  Reg allocate_bytes(std::size_t bytes);
  Register find_register(std::string_view name);
  Reg special(std::string_view name, std::size_t& bytes);
  Reg address_of(const Symbol& symbol, std::int64_t offset, std::size_t bytes);
  Reg value_of(const Operand& operand, std::size_t bytes);
  std::size_t place(std::size_t& top, std::size_t bytes, std::size_t alignment);

  Module& module_;
  Program& program_;
  std::vector<NameScope> scopes_;
  NameScope module_scope_;
  std::map<std::pair<std::uint64_t, std::size_t>, Reg> constants_;
  std::map<std::string_view, std::pair<Reg, std::size_t>> specials_;
  std::unordered_map<std::string_view, std::uint32_t> labels_;
  std::unordered_map<std::string_view, std::vector<std::string_view>> tables_;
  std::unordered_map<std::string_view, CallPrototype> prototypes_;
  struct Fixup {
    std::uint32_t inst;
    std::string_view label;
    int line;
  };
  std::vector<Fixup> fixups_;
  struct TableFixup {
    std::size_t list, position;
    std::string_view label;
  };
  std::vector<TableFixup> table_fixups_;
  std::vector<int> functions_to_do_;
  std::size_t shared_top_ = 0;
  Reg carry_flag_ = kNoReg;

  const Statement* statement_ = nullptr;
  std::vector<std::string_view> modifiers_;
  std::string_view pending_label_;
  bool nothing_left_ = false;
  std::size_t hidden_operands_ = 0;
};

}  // namespace ptx
