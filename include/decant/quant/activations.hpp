// decant: what products with packed weights make of their activations before they multiply.
#ifndef DECANT_QUANT_ACTIVATIONS_HPP
#define DECANT_QUANT_ACTIVATIONS_HPP

#include <cstdint>

#include "../core/error.hpp"

namespace decant::quant {

enum class Activations : std::uint8_t {
  bf16,  ///< rounded to bf16, with any instruction set; the products are exact and added up in fp32
  fp32,  ///< as they are
  int8,  ///< blocks of 128 columns (ggml's formats: of 32), each with a scale of its own: see round_activations
};

constexpr const char* name(Activations a) {
  constexpr const char* names[] = {"bf16", "fp32", "int8"};
  return names[static_cast<int>(a)];
}

/// Columns that share a scale as Activations::int8.
inline constexpr index_t activation_block = 128;

}  // namespace decant::quant

#endif
