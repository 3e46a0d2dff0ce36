#pragma once
// A loaded PTX module: its text, its variables with their memory, and its kernels, lowered at their first launch.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ast.hpp"
#include "program.hpp"

namespace ptx {

// Function pointers are numbers in this window, which no allocation can reach.
constexpr std::uint64_t kFunctionWindow = 0x7d0000000000ull;

class Module {
 public:
  explicit Module(std::string text);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const ModuleText& text() const { return parsed_; }
  int target() const { return parsed_.target; }
  std::string_view source() const { return source_; }

  // The kernel's executable form, or nullptr where the module has no such kernel.
  const Program* kernel(const std::string& name);
  const Function* find_entry(const std::string& name) const;

  // The number of a function (an index into text().functions), or -1.
  int function_number(std::string_view name) const;
  static std::uint64_t function_pointer(int number) {
    return kFunctionWindow + 16 * static_cast<std::uint64_t>(number);
  }

  struct Global {
    std::byte* address = nullptr;
    std::size_t bytes = 0;
  };
  // A .global or .const variable.
  std::optional<Global> global(std::string_view name) const;
  // A .shared variable of module scope.
  const Variable* shared(std::string_view name) const;

  std::string file_name(int file) const;

 private:
  void place_variables();
  void fill(const Variable& variable, std::byte* memory);

  std::string source_;
  ModuleText parsed_;
  std::map<std::string, int, std::less<>> functions_;
  std::map<std::string, Global, std::less<>> globals_;
  std::map<std::string, const Variable*, std::less<>> shared_;
  std::map<std::string, std::unique_ptr<Program>> programs_;
};

// The PTX texts of a fat binary as __cudaRegisterFatBinary passes it.
std::vector<std::string> ptx_of_fatbin(const void* fatbin);

}  // namespace ptx
