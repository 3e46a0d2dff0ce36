#pragma once
// What the parser makes of PTX text: declarations, functions and instructions, still by name.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "types.hpp"

namespace ptx {

// A place in the CUDA source, from a .loc directive (nvcc -lineinfo). File 0 means unknown.
struct SourcePlace {
  int file = 0;
  int line = 0;
};

struct Operand {
  enum class Kind : std::uint8_t { kName, kInteger, kFloat32, kFloat64, kAddress, kVector, kSink };
  Kind kind = Kind::kSink;
  std::string_view name;          // kName; kAddress: the base, empty where the base is a number
  std::uint64_t bits = 0;         // the number's bits; kAddress: the absolute base
  std::int64_t offset = 0;        // kAddress, and kName written as symbol+offset
  bool negated = false;           // !%p
  std::vector<Operand> elements;  // kVector, and the bracketed coordinates of no other instruction
};

struct Statement {
  std::string_view opcode;                  // "ld"
  std::vector<std::string_view> modifiers;  // "global", "f32"
  std::vector<Operand> operands;            // a second destination (d|p) is the operand after the first
  bool has_second_destination = false;
  std::string_view predicate;  // empty: always
  bool predicate_negated = false;
  int line = 0;
  SourcePlace place;
  std::string_view text;  // as written, for reports
};

// A variable: .global, .const, .shared, .local, .param, or a parameter of a function.
struct Variable {
  std::string_view name;
  Space space = Space::kGeneric;
  Type type = Type::kB8;
  std::size_t count = 1;      // elements; 0 for `extern __shared__ x[]`
  std::size_t alignment = 1;  // bytes
  bool is_extern = false;
  bool is_pointer = false;             // a kernel parameter marked .ptr
  std::vector<Operand> initial_value;  // numbers and names (a name takes the pointer's width)
  int line = 0;

  std::size_t bytes() const { return count * (size_of(type) ? size_of(type) : 1); }
};

struct RegisterDeclaration {
  std::string_view name;
  Type type = Type::kB32;
  int count = -1;  // -1: the name itself; otherwise name0 .. name(count-1)
};

struct CallPrototype {
  std::vector<Variable> returns, parameters;
};

// A body is a flat list: scopes are opened and closed by items of their own.
struct BodyItem {
  enum class Kind : std::uint8_t { kStatement, kLabel, kRegisters, kVariable, kOpen, kClose, kTargets, kPrototype };
  Kind kind = Kind::kStatement;
  Statement statement;
  std::string_view label;  // kLabel, and the name of kTargets and kPrototype
  std::vector<RegisterDeclaration> registers;
  Variable variable;
  std::vector<std::string_view> targets;
  CallPrototype prototype;
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::vector<Variable> returns, parameters;
  std::optional<Dim3> max_threads;       // .maxntid
  std::optional<Dim3> required_threads;  // .reqntid
  std::string_view body_text;            // empty: only declared
  int body_line = 0;
};

struct ModuleText {
  int target = 0;  // 90 of sm_90a
  int version_major = 0, version_minor = 0;
  std::map<int, std::string> files;  // .file
  std::vector<Variable> variables;
  std::vector<Function> functions;
  std::map<std::string, std::string> aliases;
};

// Both keep views into `text`.
ModuleText parse_module(std::string_view text);
std::vector<BodyItem> parse_body(std::string_view body_text, int first_line);

}  // namespace ptx
