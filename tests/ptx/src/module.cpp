#include "module.hpp"

#include <cstring>

#include "lower.hpp"
#include "memory.hpp"

namespace ptx {

Module::Module(std::string text) : source_(std::move(text)), parsed_(parse_module(source_)) {
  for (std::size_t i = 0; i < parsed_.functions.size(); ++i) {
    const Function& function = parsed_.functions[i];
    // A declaration may come before the definition.
    const auto known = functions_.find(function.name);
    if (known == functions_.end() || !function.body_text.empty()) functions_[function.name] = static_cast<int>(i);
  }
  for (const auto& [alias, name] : parsed_.aliases)
    if (const int number = function_number(name); number >= 0) functions_[alias] = number;
  place_variables();
}

Module::~Module() {
  for (const auto& [name, global] : globals_) memory().release(global.address);
}

void Module::place_variables() {
  for (const Variable& variable : parsed_.variables) {
    if (variable.space == Space::kShared) {
      shared_[std::string(variable.name)] = &variable;
      continue;
    }
    if (variable.is_extern && functions_.count(std::string(variable.name))) continue;
    Global global;
    global.bytes = variable.bytes();
    global.address = memory().allocate(global.bytes, AllocationKind::kModule, std::string(variable.name));
    std::memset(global.address, 0, global.bytes);
    memory().mark_initialised(global.address, global.bytes);
    globals_[std::string(variable.name)] = global;
  }
  // Initial values may name variables that come later.
  for (const Variable& variable : parsed_.variables)
    if (variable.space != Space::kShared && !variable.initial_value.empty())
      fill(variable, globals_.find(variable.name)->second.address);
}

void Module::fill(const Variable& variable, std::byte* memory) {
  const std::size_t size = std::max<std::size_t>(size_of(variable.type), 1);
  std::size_t at = 0;
  for (const Operand& value : variable.initial_value) {
    std::uint64_t bits = value.bits;
    if (value.kind == Operand::Kind::kName) {
      if (const auto target = global(value.name)) {
        bits = reinterpret_cast<std::uint64_t>(target->address) + static_cast<std::uint64_t>(value.offset);
      } else if (const int number = function_number(value.name); number >= 0) {
        bits = function_pointer(number);
      } else {
        throw Error(variable.line, "unknown name '" + std::string(value.name) + "' in an initial value");
      }
    }
    if (at + size > variable.bytes()) throw Error(variable.line, "too many initial values");
    std::memcpy(memory + at, &bits, size);
    at += size;
  }
}

int Module::function_number(std::string_view name) const {
  const auto found = functions_.find(name);
  return found == functions_.end() ? -1 : found->second;
}

std::optional<Module::Global> Module::global(std::string_view name) const {
  const auto found = globals_.find(name);
  if (found == globals_.end()) return std::nullopt;
  return found->second;
}

const Variable* Module::shared(std::string_view name) const {
  const auto found = shared_.find(name);
  return found == shared_.end() ? nullptr : found->second;
}

const Function* Module::find_entry(const std::string& name) const {
  const int number = function_number(name);
  if (number < 0) return nullptr;
  const Function& function = parsed_.functions[static_cast<std::size_t>(number)];
  return function.is_entry && !function.body_text.empty() ? &function : nullptr;
}

const Program* Module::kernel(const std::string& name) {
  if (const auto known = programs_.find(name); known != programs_.end()) return known->second.get();
  const Function* function = find_entry(name);
  if (!function) return nullptr;
  return (programs_[name] = lower_kernel(*this, *function)).get();
}

std::string Module::file_name(int file) const {
  const auto found = parsed_.files.find(file);
  return found == parsed_.files.end() ? std::string() : found->second;
}

}  // namespace ptx
