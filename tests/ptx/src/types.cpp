#include "types.hpp"

#include <array>

namespace ptx {
namespace {

struct TypeRow {
  Type type;
  std::string_view name;
  std::size_t size;
};

constexpr std::array kTypes = {
    TypeRow{Type::kPred, "pred", 0},     TypeRow{Type::kB8, "b8", 1},         TypeRow{Type::kB16, "b16", 2},
    TypeRow{Type::kB32, "b32", 4},       TypeRow{Type::kB64, "b64", 8},       TypeRow{Type::kB128, "b128", 16},
    TypeRow{Type::kU8, "u8", 1},         TypeRow{Type::kU16, "u16", 2},       TypeRow{Type::kU32, "u32", 4},
    TypeRow{Type::kU64, "u64", 8},       TypeRow{Type::kS8, "s8", 1},         TypeRow{Type::kS16, "s16", 2},
    TypeRow{Type::kS32, "s32", 4},       TypeRow{Type::kS64, "s64", 8},       TypeRow{Type::kF16, "f16", 2},
    TypeRow{Type::kBF16, "bf16", 2},     TypeRow{Type::kTF32, "tf32", 4},     TypeRow{Type::kF32, "f32", 4},
    TypeRow{Type::kF64, "f64", 8},       TypeRow{Type::kF16x2, "f16x2", 4},   TypeRow{Type::kBF16x2, "bf16x2", 4},
    TypeRow{Type::kF32x2, "f32x2", 8},   TypeRow{Type::kE4M3, "e4m3", 1},     TypeRow{Type::kE5M2, "e5m2", 1},
    TypeRow{Type::kE4M3x2, "e4m3x2", 2}, TypeRow{Type::kE5M2x2, "e5m2x2", 2},
};

const TypeRow* row_of(Type type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type) return &row;
  return nullptr;
}

}  // namespace

Type type_from_name(std::string_view name) {
  for (const TypeRow& row : kTypes)
    if (row.name == name) return row.type;
  return Type::kNone;
}

const char* type_name(Type type) {
  const TypeRow* row = row_of(type);
  return row ? row->name.data() : "none";
}

std::size_t size_of(Type type) {
  const TypeRow* row = row_of(type);
  return row ? row->size : 0;
}

bool is_signed_integer(Type type) {
  return type == Type::kS8 || type == Type::kS16 || type == Type::kS32 || type == Type::kS64;
}

bool is_unsigned_or_bits(Type type) {
  return type >= Type::kB8 && type <= Type::kU64;
}

bool is_float(Type type) {
  return type >= Type::kF16;
}

}  // namespace ptx
