#include "lower.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "machine.hpp"

namespace ptx {
namespace {

Flow execute_not(Warp& warp, const Inst& inst, std::uint32_t mask) {
  set_predicate(warp, inst.dst[0], mask, ~warp.predicate(inst.src[0]));
  return Flow::kNext;
}

Flow execute_end(Warp&, const Inst&, std::uint32_t) {
  throw Error("ran past the end of a function");
}

struct SpecialRow {
  std::string_view name;
  Special special;
  std::uint8_t bytes;
};

constexpr SpecialRow kSpecials[] = {
    {"%tid.x", Special::kTidX, 4},
    {"%tid.y", Special::kTidY, 4},
    {"%tid.z", Special::kTidZ, 4},
    {"%ntid.x", Special::kNtidX, 4},
    {"%ntid.y", Special::kNtidY, 4},
    {"%ntid.z", Special::kNtidZ, 4},
    {"%ctaid.x", Special::kCtaidX, 4},
    {"%ctaid.y", Special::kCtaidY, 4},
    {"%ctaid.z", Special::kCtaidZ, 4},
    {"%nctaid.x", Special::kNctaidX, 4},
    {"%nctaid.y", Special::kNctaidY, 4},
    {"%nctaid.z", Special::kNctaidZ, 4},
    {"%laneid", Special::kLaneId, 4},
    {"%warpid", Special::kWarpId, 4},
    {"%nwarpid", Special::kNwarpId, 4},
    {"%lanemask_eq", Special::kLaneMaskEq, 4},
    {"%lanemask_lt", Special::kLaneMaskLt, 4},
    {"%lanemask_le", Special::kLaneMaskLe, 4},
    {"%lanemask_gt", Special::kLaneMaskGt, 4},
    {"%lanemask_ge", Special::kLaneMaskGe, 4},
    {"%smid", Special::kSmId, 4},
    {"%nsmid", Special::kNsmId, 4},
    {"%gridid", Special::kGridId, 8},
    {"%dynamic_smem_size", Special::kDynamicShared, 4},
    {"%total_smem_size", Special::kTotalShared, 4},
    {"%aggr_smem_size", Special::kTotalShared, 4},
    {"%envreg1", Special::kEnvReg1, 4},
    {"%envreg2", Special::kEnvReg2, 4},
    {"%clusterid.x", Special::kCtaidX, 4},
    {"%clusterid.y", Special::kCtaidY, 4},
    {"%clusterid.z", Special::kCtaidZ, 4},
    {"%nclusterid.x", Special::kNctaidX, 4},
    {"%nclusterid.y", Special::kNctaidY, 4},
    {"%nclusterid.z", Special::kNctaidZ, 4},
    {"%cluster_ctaid.x", Special::kZero, 4},
    {"%cluster_ctaid.y", Special::kZero, 4},
    {"%cluster_ctaid.z", Special::kZero, 4},
    {"%cluster_nctaid.x", Special::kOne, 4},
    {"%cluster_nctaid.y", Special::kOne, 4},
    {"%cluster_nctaid.z", Special::kOne, 4},
    {"%cluster_ctarank", Special::kZero, 4},
    {"%cluster_nctarank", Special::kOne, 4},
};

LowerFunction find_instruction(const Statement& statement) {
  const auto is_floating = [](std::string_view modifier) { return is_float(type_from_name(modifier)); };
  const InstructionSet& set = instruction_set();
  if (std::any_of(statement.modifiers.begin(), statement.modifiers.end(), is_floating)) {
    const auto found = set.floating.find(statement.opcode);
    if (found != set.floating.end()) return found->second;
  }
  const auto found = set.general.find(statement.opcode);
  return found == set.general.end() ? nullptr : found->second;
}

std::string quoted(std::string_view text) {
  return std::string("'").append(text).append("'");  // with +, g++ 12 warns about its own string
}

}  // namespace

const InstructionSet& instruction_set() {
  static const InstructionSet set = [] {
    InstructionSet all;
    add_integer(all);
    add_bits(all);
    add_compare(all);
    add_float(all);
    add_convert(all);
    add_move(all);
    add_memory(all);
    add_atomic(all);
    add_async(all);
    add_control(all);
    add_barrier(all);
    add_warp(all);
    add_matrix(all);
    add_mma(all);
    add_system(all);
    return all;
  }();
  return set;
}

std::unique_ptr<Program> lower_kernel(Module& module, const Function& kernel) {
  auto program = std::make_unique<Program>();
  Lowering(module, *program).lower_all(kernel);
  return program;
}

Lowering::Lowering(Module& module, Program& program) : module_(module), program_(program) {
  program_.functions.resize(module.text().functions.size());
}

// ---- whole functions

void Lowering::lower_all(const Function& kernel) {
  program_.kernel = &kernel;
  place_shared(kernel);
  NameScope parameters;
  for (const Variable& parameter : kernel.parameters) {
    Symbol symbol;
    symbol.space = Space::kParam;
    symbol.kernel_parameter = true;
    symbol.bytes = parameter.bytes();
    symbol.at = place(program_.parameter_bytes, symbol.bytes, parameter.alignment);
    parameters.symbols[parameter.name] = symbol;
    program_.parameter_at.push_back(symbol.at);
  }
  lower_body(kernel, std::move(parameters));
  while (!functions_to_do_.empty()) {
    const int number = functions_to_do_.back();
    functions_to_do_.pop_back();
    FunctionFrame& called = frame(number);
    if (called.lowered) continue;
    called.lowered = true;
    const Function& function = *called.function;
    if (function.body_text.empty()) throw Error("function " + function.name + " is called but has no body");
    NameScope names;
    const auto add = [&](const Variable& variable, std::size_t at) {
      Symbol symbol;
      symbol.space = Space::kLocal;
      symbol.at = at;
      symbol.bytes = variable.bytes();
      names.symbols[variable.name] = symbol;
    };
    for (std::size_t i = 0; i < function.parameters.size(); ++i) add(function.parameters[i], called.parameter_at[i]);
    for (std::size_t i = 0; i < function.returns.size(); ++i) add(function.returns[i], called.return_at[i]);
    called.entry = static_cast<std::uint32_t>(program_.code.size());
    lower_body(function, std::move(names));
  }
}

// Static shared variables of the kernel and of everything that it calls come first, `extern __shared__` after them. The
// sizes of those in bodies that are yet to be lowered are needed before, so their declarations are looked up by text.
void Lowering::place_shared(const Function& kernel) {
  std::size_t top = 0;
  for (const Variable& variable : module_.text().variables) {
    if (variable.space != Space::kShared) continue;
    Symbol symbol;
    symbol.space = Space::kShared;
    symbol.bytes = variable.bytes();
    const bool used =
        kernel.body_text.find(variable.name) != std::string_view::npos ||
        std::any_of(module_.text().functions.begin(), module_.text().functions.end(), [&](const Function& f) {
          return !f.is_entry && f.body_text.find(variable.name) != std::string_view::npos;
        });
    if (symbol.bytes && used) symbol.at = place(top, symbol.bytes, variable.alignment);
    module_scope_.symbols[variable.name] = symbol;
  }
  shared_top_ = top;
  const auto add_locals_of = [&](std::string_view body) {
    for (std::size_t at = body.find(".shared"); at != std::string_view::npos; at = body.find(".shared", at + 1)) {
      // A declaration, not the end of an instruction's name.
      const std::size_t before = body.find_last_not_of(" \t\r", at == 0 ? 0 : at - 1);
      const bool begins = at == 0 || before == std::string_view::npos || std::strchr("\n;{}", body[before]);
      if (!begins || at + 7 >= body.size() || !std::strchr(" \t", body[at + 7])) continue;
      const std::string_view declaration = body.substr(at, body.find(';', at) - at + 1);
      for (const BodyItem& item : parse_body(declaration, 1))
        if (item.kind == BodyItem::Kind::kVariable) place(top, item.variable.bytes(), item.variable.alignment);
    }
  };
  add_locals_of(kernel.body_text);
  for (const Function& function : module_.text().functions)
    if (!function.is_entry) add_locals_of(function.body_text);
  program_.static_shared = top;
  // An alignment that suits every `extern __shared__` of the module.
  std::size_t alignment = 16;
  for (const Variable& variable : module_.text().variables)
    if (variable.space == Space::kShared && variable.bytes() == 0) alignment = std::max(alignment, variable.alignment);
  program_.dynamic_shared = (top + alignment - 1) / alignment * alignment;
  for (auto& [name, symbol] : module_scope_.symbols)
    if (symbol.space == Space::kShared && symbol.bytes == 0) symbol.at = program_.dynamic_shared;
}

void Lowering::lower_body(const Function& function, NameScope&& outermost) {
  scopes_.clear();
  scopes_.push_back(std::move(outermost));
  labels_.clear();
  tables_.clear();
  prototypes_.clear();
  const std::vector<BodyItem> items = parse_body(function.body_text, function.body_line);
  // Tables may stand after the branch that uses them.
  for (const BodyItem& item : items) {
    if (item.kind == BodyItem::Kind::kTargets) tables_[item.label] = item.targets;
    if (item.kind == BodyItem::Kind::kPrototype) prototypes_[item.label] = item.prototype;
  }
  for (const BodyItem& item : items) lower_item(item);
  Inst end;
  end.execute = execute_end;
  program_.code.push_back(end);
  program_.info.push_back({function.body_line, {}, "end of function"});
  resolve_branches();
}

void Lowering::lower_item(const BodyItem& item) {
  switch (item.kind) {
    case BodyItem::Kind::kStatement:
      lower_statement(item.statement);
      break;
    case BodyItem::Kind::kLabel:
      labels_[item.label] = static_cast<std::uint32_t>(program_.code.size());
      break;
    case BodyItem::Kind::kRegisters:
      for (const RegisterDeclaration& declaration : item.registers) {
        if (declaration.count < 0) {
          scopes_.back().registers[declaration.name] = {kNoReg, declaration.type};
        } else {
          RegisterRange& range = scopes_.back().ranges[declaration.name];
          range.type = declaration.type;
          range.regs.assign(static_cast<std::size_t>(declaration.count), kNoReg);
        }
      }
      break;
    case BodyItem::Kind::kVariable:
      declare(item.variable);
      break;
    case BodyItem::Kind::kOpen:
      scopes_.emplace_back();
      break;
    case BodyItem::Kind::kClose:
      if (scopes_.size() > 1) scopes_.pop_back();
      break;
    case BodyItem::Kind::kTargets:
    case BodyItem::Kind::kPrototype:
      break;
  }
}

void Lowering::lower_statement(const Statement& statement) {
  statement_ = &statement;
  modifiers_ = statement.modifiers;
  pending_label_ = {};
  nothing_left_ = false;
  hidden_operands_ = 0;
  const LowerFunction lower = find_instruction(statement);
  if (!lower) fail("unknown instruction");
  Inst inst;
  if (!statement.predicate.empty()) {
    const Register predicate = find_register(statement.predicate);
    if (predicate.type != Type::kPred) fail("the guard " + quoted(statement.predicate) + " is not a predicate");
    inst.pred = predicate.reg;
    inst.pred_negated = statement.predicate_negated;
  }
  lower(*this, inst);
  if (!modifiers_.empty()) fail("modifier '." + std::string(modifiers_.front()) + "' is not supported here");
  if (!nothing_left_) emit(inst);
  statement_ = nullptr;
}

void Lowering::emit(Inst inst) {
  if (!inst.execute) fail("not supported");
  if (!pending_label_.empty()) {
    fixups_.push_back({static_cast<std::uint32_t>(program_.code.size()), pending_label_, statement_->line});
    pending_label_ = {};
  }
  program_.code.push_back(inst);
  program_.info.push_back({statement_->line, statement_->place, statement_->text});
}

void Lowering::resolve_branches() {
  const auto find = [&](std::string_view label, int line) {
    const auto found = labels_.find(label);
    if (found == labels_.end()) throw Error(line, "unknown label " + quoted(label));
    return found->second;
  };
  for (const Fixup& fixup : fixups_) program_.code[fixup.inst].target = find(fixup.label, fixup.line);
  for (const TableFixup& fixup : table_fixups_) program_.lists[fixup.list][fixup.position] = find(fixup.label, 0);
  fixups_.clear();
  table_fixups_.clear();
}

void Lowering::declare(const Variable& variable) {
  Symbol symbol;
  symbol.bytes = variable.bytes();
  if (variable.space == Space::kShared) {
    symbol.space = Space::kShared;
    symbol.at = place(shared_top_, symbol.bytes, variable.alignment);
  } else {
    // Parameters of calls live in local memory as well.
    symbol.space = Space::kLocal;
    symbol.at = place(program_.local, symbol.bytes, std::max<std::size_t>(variable.alignment, 8));
  }
  scopes_.back().symbols[variable.name] = symbol;
}

std::size_t Lowering::place(std::size_t& top, std::size_t bytes, std::size_t alignment) {
  const std::size_t at = (top + alignment - 1) / alignment * alignment;
  top = at + bytes;
  return at;
}

FunctionFrame& Lowering::frame(int function) {
  FunctionFrame& result = program_.functions[static_cast<std::size_t>(function)];
  if (result.function) return result;
  result.function = &module_.text().functions[static_cast<std::size_t>(function)];
  for (const Variable& parameter : result.function->parameters)
    result.parameter_at.push_back(
        place(program_.local, parameter.bytes(), std::max<std::size_t>(parameter.alignment, 16)));
  for (const Variable& value : result.function->returns)
    result.return_at.push_back(place(program_.local, value.bytes(), std::max<std::size_t>(value.alignment, 16)));
  return result;
}

void Lowering::require_function(int function) {
  frame(function);
  functions_to_do_.push_back(function);
}

void Lowering::require_functions_with_address() {
  for (std::size_t i = 0; i < module_.text().functions.size(); ++i) {
    const Function& function = module_.text().functions[i];
    if (!function.is_entry && !function.body_text.empty()) require_function(static_cast<int>(i));
  }
}

const CallPrototype* Lowering::prototype(std::string_view name) const {
  const auto found = prototypes_.find(name);
  return found == prototypes_.end() ? nullptr : &found->second;
}

const std::vector<std::string_view>* Lowering::targets(std::string_view name) const {
  const auto found = tables_.find(name);
  return found == tables_.end() ? nullptr : &found->second;
}

void Lowering::table_entry(std::size_t list_index, std::size_t position, std::string_view label) {
  table_fixups_.push_back({list_index, position, label});
}

void Lowering::branch_to(std::string_view label) {
  pending_label_ = label;
}

// ---- registers

Reg Lowering::allocate_bytes(std::size_t bytes) {
  const std::size_t size = bytes == 0 ? sizeof(std::uint32_t) : bytes * kLanes;
  const std::size_t at =
      bytes == 0 ? program_.initial_registers.size() : (program_.initial_registers.size() + 63) / 64 * 64;
  program_.initial_registers.resize(at + size, std::byte{0xCB});
  return static_cast<Reg>(at);
}

Reg Lowering::allocate(Type type) {
  return allocate_bytes(type == Type::kPred ? 0 : size_of(type));
}

Reg Lowering::scratch(std::size_t bytes) {
  return allocate_bytes(bytes);
}

Reg Lowering::carry_flag() {
  if (carry_flag_ == kNoReg) carry_flag_ = allocate_bytes(0);
  return carry_flag_;
}

Lowering::Register Lowering::find_register(std::string_view name) {
  std::size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  std::size_t number = 0;
  std::from_chars(name.data() + digits, name.data() + name.size(), number);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->registers.find(name); found != scope->registers.end()) {
      Register& known = found->second;
      if (known.reg == kNoReg) known.reg = allocate(known.type);
      return known;
    }
    if (digits == name.size()) continue;
    const auto range = scope->ranges.find(name.substr(0, digits));
    if (range != scope->ranges.end() && number < range->second.regs.size()) {
      Reg& reg = range->second.regs[number];
      if (reg == kNoReg) reg = allocate(range->second.type);
      return {reg, range->second.type};
    }
  }
  return {};
}

Reg Lowering::special(std::string_view name, std::size_t& bytes) {
  if (const auto known = specials_.find(name); known != specials_.end()) {
    bytes = known->second.second;
    return known->second.first;
  }
  for (const SpecialRow& row : kSpecials) {
    if (row.name != name) continue;
    const Reg reg = allocate_bytes(row.bytes);
    program_.specials.push_back({reg, row.special, row.bytes});
    specials_[row.name] = {reg, row.bytes};
    bytes = row.bytes;
    return reg;
  }
  return kNoReg;
}

Reg Lowering::constant(std::uint64_t bits, std::size_t bytes) {
  if (bytes < 8) bits &= (std::uint64_t{1} << (8 * bytes)) - 1;
  const auto [known, is_new] = constants_.try_emplace({bits, bytes}, kNoReg);
  if (!is_new) return known->second;
  const Reg reg = allocate_bytes(bytes);
  for (int lane = 0; lane < kLanes; ++lane) {
    std::byte* to = program_.initial_registers.data() + reg + bytes * static_cast<std::size_t>(lane);
    std::memset(to, 0, bytes);
    std::memcpy(to, &bits, std::min<std::size_t>(bytes, 8));
  }
  return known->second = reg;
}

const Lowering::Symbol* Lowering::find_symbol(std::string_view name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto found = scope->symbols.find(name); found != scope->symbols.end()) return &found->second;
  if (const auto found = module_scope_.symbols.find(name); found != module_scope_.symbols.end()) return &found->second;
  if (const auto global = module_.global(name)) {
    Symbol symbol;
    symbol.space = Space::kGlobal;
    symbol.at = reinterpret_cast<std::size_t>(global->address);
    symbol.bytes = global->bytes;
    return &(module_scope_.symbols[name] = symbol);
  }
  return nullptr;
}

Reg Lowering::address_of(const Symbol& symbol, std::int64_t offset, std::size_t bytes) {
  const std::size_t at = symbol.at + static_cast<std::size_t>(offset);
  if (symbol.space == Space::kLocal || symbol.kernel_parameter) {
    if (bytes != 8) fail("a 32-bit address of local or parameter memory");
    const Reg reg = allocate_bytes(8);
    (symbol.kernel_parameter ? program_.parameter_addresses : program_.local_addresses).push_back({reg, at});
    return reg;
  }
  return constant(at, bytes);
}

// The value of anything but a plain register: a number, a special register, the address of a variable or function.
Reg Lowering::value_of(const Operand& operand, std::size_t bytes) {
  switch (operand.kind) {
    case Operand::Kind::kInteger:
    case Operand::Kind::kFloat64:
      return constant(operand.bits, bytes);
    case Operand::Kind::kFloat32:
      if (bytes == 8) fail("a 32-bit float where 64 bits are expected");
      return constant(operand.bits, bytes);
    case Operand::Kind::kName: {
      std::size_t width = 0;
      if (const Reg reg = special(operand.name, width); reg != kNoReg) {
        if (width != bytes) fail(quoted(operand.name) + " has another width");
        return reg;
      }
      if (operand.name == "WARP_SZ") return constant(kLanes, bytes);
      if (const Symbol* symbol = find_symbol(operand.name)) return address_of(*symbol, operand.offset, bytes);
      if (const int function = module_.function_number(operand.name); function >= 0) {
        require_function(function);
        return constant(Module::function_pointer(function), bytes);
      }
      fail("unknown name " + quoted(operand.name));
    }
    default:
      fail("unexpected operand");
  }
}

bool Lowering::is_register(const Operand& operand) const {
  return register_width(operand) >= 0;
}

int Lowering::register_width(const Operand& operand) const {
  if (operand.kind != Operand::Kind::kName) return -1;
  // Looking a register up allocates it, which changes nothing that matters.
  const Register found = const_cast<Lowering*>(this)->find_register(operand.name);
  return found.type == Type::kNone ? -1 : static_cast<int>(size_of(found.type));
}

Reg Lowering::source(const Operand& operand, std::size_t bytes) {
  std::uint8_t width = 0;
  const Reg reg = source_wide(operand, bytes, width);
  if (width != bytes)
    fail("operand " + quoted(operand.name) + " is " + std::to_string(8 * width) + " bits wide, not " +
         std::to_string(8 * bytes));
  return reg;
}

Reg Lowering::source_wide(const Operand& operand, std::size_t at_least, std::uint8_t& bytes) {
  if (operand.kind == Operand::Kind::kName) {
    const Register found = find_register(operand.name);
    if (found.type != Type::kNone) {
      if (found.type == Type::kPred) fail("operand " + quoted(operand.name) + " is a predicate");
      bytes = static_cast<std::uint8_t>(size_of(found.type));
      if (bytes < at_least) fail("operand " + quoted(operand.name) + " is too narrow");
      return found.reg;
    }
  }
  // Eight-bit values live in registers of 16 bits and more.
  bytes = static_cast<std::uint8_t>(at_least);
  return value_of(operand, at_least);
}

Reg Lowering::destination(const Operand& operand, std::size_t bytes) {
  std::uint8_t width = 0;
  const Reg reg = destination_wide(operand, bytes, width);
  if (width != bytes)
    fail("destination " + quoted(operand.name) + " is " + std::to_string(8 * width) + " bits wide, not " +
         std::to_string(8 * bytes));
  return reg;
}

Reg Lowering::destination_wide(const Operand& operand, std::size_t at_least, std::uint8_t& bytes) {
  if (operand.kind == Operand::Kind::kSink) {
    bytes = static_cast<std::uint8_t>(at_least);
    return scratch(at_least);
  }
  if (operand.kind != Operand::Kind::kName) fail("a destination must be a register");
  const Register found = find_register(operand.name);
  if (found.type == Type::kNone || found.type == Type::kPred)
    fail(quoted(operand.name) + " is no register for a value");
  bytes = static_cast<std::uint8_t>(size_of(found.type));
  if (bytes < at_least) fail("destination " + quoted(operand.name) + " is too narrow");
  return found.reg;
}

Reg Lowering::source_predicate(std::size_t i) {
  const Operand& value = operand(i);
  Reg reg = kNoReg;
  if (value.kind == Operand::Kind::kInteger) {
    reg = scratch(0);
    const std::uint32_t bits = value.bits ? kFullMask : 0;
    std::memcpy(program_.initial_registers.data() + reg, &bits, sizeof bits);
  } else {
    const Register found = find_register(value.name);
    if (found.type != Type::kPred) fail("operand " + quoted(value.name) + " is not a predicate");
    reg = found.reg;
  }
  if (!value.negated) return reg;
  Inst negate;
  negate.execute = execute_not;
  negate.src[0] = reg;
  negate.dst[0] = scratch(0);
  emit(negate);
  return negate.dst[0];
}

Reg Lowering::destination_predicate(std::size_t i) {
  const Operand& value = operand(i);
  if (value.kind == Operand::Kind::kSink) return scratch(0);
  const Register found = find_register(value.name);
  if (found.type != Type::kPred) fail("destination " + quoted(value.name) + " is not a predicate");
  return found.reg;
}

// ---- the statement at hand

void Lowering::fail(const std::string& what) const {
  throw Error(statement_->line, what + ": " + std::string(statement_->text));
}

const Operand& Lowering::operand(std::size_t i) const {
  if (i >= statement_->operands.size()) fail("an operand is missing");
  return statement_->operands[i];
}

void Lowering::expect_operands(std::size_t count) const {
  if (statement_->operands.size() - hidden_operands_ != count)
    fail("expected " + std::to_string(count) + " operands, got " + std::to_string(statement_->operands.size()));
}

bool Lowering::take(std::string_view modifier) {
  const auto found = std::find(modifiers_.begin(), modifiers_.end(), modifier);
  if (found == modifiers_.end()) return false;
  modifiers_.erase(found);
  return true;
}

int Lowering::take_any(std::initializer_list<std::string_view> modifiers) {
  int i = 0;
  for (std::string_view modifier : modifiers) {
    if (take(modifier)) return i;
    ++i;
  }
  return -1;
}

bool Lowering::has_type() const {
  return std::any_of(modifiers_.begin(), modifiers_.end(),
                     [](std::string_view modifier) { return type_from_name(modifier) != Type::kNone; });
}

Type Lowering::take_type() {
  for (auto modifier = modifiers_.begin(); modifier != modifiers_.end(); ++modifier) {
    const Type type = type_from_name(*modifier);
    if (type == Type::kNone) continue;
    modifiers_.erase(modifier);
    return type;
  }
  fail("a type is missing");
}

Type Lowering::take_type(std::initializer_list<Type> allowed) {
  const Type type = take_type();
  if (std::find(allowed.begin(), allowed.end(), type) == allowed.end())
    fail(std::string("type .") + type_name(type) + " is not supported here");
  return type;
}

void Lowering::take_cache_hints() {
  static constexpr std::string_view kHints[] = {"ca",
                                                "cg",
                                                "cs",
                                                "lu",
                                                "cv",
                                                "wb",
                                                "wt",
                                                "L1::evict_normal",
                                                "L1::evict_unchanged",
                                                "L1::evict_first",
                                                "L1::evict_last",
                                                "L1::no_allocate",
                                                "L2::evict_last",
                                                "L2::evict_normal",
                                                "L2::evict_first",
                                                "L2::64B",
                                                "L2::128B",
                                                "L2::256B"};
  for (std::string_view hint : kHints) take(hint);
  if (take("L2::cache_hint")) hidden_operands_ = 1;
}

Space Lowering::take_space() {
  if (take("global")) return Space::kGlobal;
  if (take("shared") || take("shared::cta")) return Space::kShared;
  if (take("local")) return Space::kLocal;
  if (take("param") || take("param::entry") || take("param::func")) return Space::kParam;
  if (take("const")) return Space::kConst;
  return Space::kGeneric;
}

void Lowering::take_order(Inst& inst) {
  if (take("weak")) {
    inst.order = Order::kWeak;
  } else if (take("volatile") || take("mmio")) {
    inst.order = Order::kVolatile;
    take("relaxed");
  } else if (take("relaxed")) {
    inst.order = Order::kRelaxed;
  } else if (take("acquire")) {
    inst.order = Order::kAcquire;
  } else if (take("release")) {
    inst.order = Order::kRelease;
  } else if (take("acq_rel")) {
    inst.order = Order::kAcquireRelease;
  }
}

bool Lowering::take_scope(Inst& inst) {
  if (take("cta")) {
    inst.scope = Scope::kCta;
  } else if (take("cluster")) {
    inst.scope = Scope::kCluster;
  } else if (take("gpu") || take("gl")) {
    inst.scope = Scope::kGpu;
  } else if (take("sys")) {
    inst.scope = Scope::kSystem;
  } else {
    return false;
  }
  return true;
}

int Lowering::take_vector() {
  if (take("v2")) return 2;
  if (take("v4")) return 4;
  if (take("v8")) return 8;
  return 1;
}

bool Lowering::is_number(std::size_t i) const {
  return operand(i).kind == Operand::Kind::kInteger;
}

std::uint64_t Lowering::number(std::size_t i) const {
  if (!is_number(i)) fail("operand " + std::to_string(i + 1) + " must be an immediate");
  return operand(i).bits;
}

void Lowering::address(std::size_t i, Inst& inst, int src) {
  const Operand& value = operand(i);
  if (value.kind != Operand::Kind::kAddress) fail("an address is expected");
  inst.addr_size = 8;
  Reg& base = inst.src[src];
  if (value.name.empty()) {
    base = constant(value.bits, 8);
    return;
  }
  if (const Register found = find_register(value.name); found.type != Type::kNone) {
    inst.addr_size = static_cast<std::uint8_t>(size_of(found.type));
    if (inst.addr_size != 4 && inst.addr_size != 8) fail("an address has 32 or 64 bits");
    base = found.reg;
    inst.imm = value.offset;
    return;
  }
  const Symbol* symbol = find_symbol(value.name);
  if (!symbol) fail("unknown name " + quoted(value.name));
  base = address_of(*symbol, value.offset, 8);
  if (symbol->space == Space::kShared && inst.space == Space::kGeneric) inst.space = Space::kShared;
  // A function's parameters live in local memory.
  if (symbol->space == Space::kLocal && inst.space == Space::kParam) inst.space = Space::kLocal;
}

std::vector<Operand> Lowering::elements(std::size_t i) const {
  const Operand& value = operand(i);
  if (value.kind == Operand::Kind::kVector) return value.elements;
  return {value};
}

const Reg* Lowering::list(std::vector<Reg> registers) {
  program_.lists.push_back(std::move(registers));
  return program_.lists.back().data();
}

}  // namespace ptx
