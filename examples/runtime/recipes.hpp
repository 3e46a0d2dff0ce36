// Recipes: the weight quantizers by the names that command lines give them: an algorithm, or several, and a format.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <decant/core/cpu.hpp>
#include <decant/quant/calibration.hpp>

#include "packed_matrix.hpp"

namespace runtime {

struct Recipe {
  std::string name;
  /// What it wants to know of a matrix's inputs; none of it: it needs no calibration text.
  decant::quant::Needs needs;
  std::function<PackedMatrix(decant::Cpu&, View<const float, 2> w, const decant::quant::Calibration&)> pack;

  bool needs_text() const { return needs.importance || needs.magnitude || needs.hessian || needs.inputs; }
};

/// All of them, in the order of the help text.
const std::vector<Recipe>& known_recipes();

/// ArgumentError, with the names that there are, when `name` is none.
const Recipe& find_recipe(const std::string& name);

std::string recipe_names();

}  // namespace runtime
