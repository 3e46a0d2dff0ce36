#pragma once
// The words that every part of the interpreter shares: PTX's fundamental types, state spaces, and the error that stops
// it.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ptx {

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

enum class Type : std::uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kBF16,
  kTF32,
  kF32,
  kF64,
  kF16x2,
  kBF16x2,
  kF32x2,
  kE4M3,
  kE5M2,
  kE4M3x2,
  kE5M2x2,
};

enum class Space : std::uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam, kConst };

// The type that a modifier such as "f16x2" names, or kNone.
Type type_from_name(std::string_view name);
const char* type_name(Type type);

// Bytes of one value; a predicate counts as none.
std::size_t size_of(Type type);

bool is_signed_integer(Type type);
bool is_unsigned_or_bits(Type type);
bool is_float(Type type);

// What the interpreter cannot run: malformed or unknown PTX. It never guesses.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(what) {}
  Error(int line, const std::string& what) : std::runtime_error("PTX line " + std::to_string(line) + ": " + what) {}
};

}  // namespace ptx
