// The search for bit widths on a model: SLQ over GPTQ. Matrices that read the same input share a width. The model is
// quantised once at every width; every further measurement only exchanges matrices.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <decant/quant/slq.hpp>

#include "any_policy.hpp"
#include "quality.hpp"
#include "quantize.hpp"

namespace runtime {

/// "slq:ear=0.99" or "slq:ear=0.99,permutations=8": the fewest bits of GPTQ whose EAR is at least so much.
struct BitSearch {
  double ear = 0.99;
  int permutations = 2;
  std::string name;
};

inline bool names_bit_search(const std::string& text) {
  return text.compare(0, 3, "slq") == 0;
}

inline BitSearch parse_bit_search(const std::string& text) {
  const char* expected = "slq:ear=SHARE[,permutations=COUNT], as slq:ear=0.99";
  const std::vector<std::string> parts = detail::split(text, ":,");
  BitSearch search;
  search.name = text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t equals = parts[i].find('=');
    const std::string key = parts[i].substr(0, equals);
    if (i == 0 && text.substr(0, text.find(':')) == "slq") continue;
    if (equals == std::string::npos || (key != "ear" && key != "permutations"))
      detail::refuse("weights", expected, text);
    const double value = detail::parse_number(parts[i].substr(equals + 1), "weights", expected);
    if (key == "ear") {
      search.ear = value;
    } else {
      if (!(value <= 1024) || value != std::floor(value)) detail::refuse("weights", expected, text);
      search.permutations = static_cast<int>(value);
    }
  }
  if (parts.empty() || parts[0] != "slq" || search.ear <= 0 || search.ear >= 1 || search.permutations < 1)
    detail::refuse("weights", expected, text);
  return search;
}

struct FoundBits {
  std::map<std::string, PackedMatrix> packed;
  decant::quant::SlqResult result;
  decant::index_t evaluations = 0;  // of the model, the sensitivities' included
};

/// judge: on text for the search, which is not what the result is reported on. progress(what, done, total).
template <class Progress>
FoundBits search_bits(decant::Cpu& cpu, const Weights& weights, const BitSearch& wanted, const CalibrationList& sums,
                      const Judge& judge, Progress&& progress) {
  namespace quant = decant::quant;
  quant::SlqSearch search;
  search.permutations = wanted.permutations;
  std::map<int, std::map<std::string, PackedMatrix>> bank;
  for (const int bits : search.options) {
    const Recipe& recipe = find_recipe("gptq" + std::to_string(bits));
    bank[bits] = pack(cpu, weights, recipe, sums, [&](std::size_t done, std::size_t total) {
      progress(wanted.name + ", " + recipe.name + ", matrix", done, total);
    });
  }
  Weights copy = weights;
  std::vector<quant::SlqGroup> groups(static_cast<std::size_t>(copy.inputs()));
  for_each_matrix(copy, [&](const std::string&, index_t input, Matrix& w) {
    quant::SlqGroup& group = groups[static_cast<std::size_t>(input)];
    group.rows += rows_of(w);
    group.cols = columns_of(w);
  });
  const auto choose = [&](View<const int, 1> bits) {
    std::map<std::string, PackedMatrix> packed;
    for_each_matrix(copy, [&](const std::string& name, index_t input, Matrix&) {
      packed.emplace(name, bank.at(bits[input]).at(name));
    });
    return packed;
  };
  FoundBits found;
  const auto group_count = static_cast<std::size_t>(copy.inputs());
  // Games of one width against the widest, then checks of results.
  const std::size_t total =
      1 + (search.options.size() - 1) * ((group_count - 1) * static_cast<std::size_t>(wanted.permutations) + 1) +
      static_cast<std::size_t>(search.checks);
  const auto evaluate = [&](View<const int, 1> bits) {
    const auto distance = judge(with_packed(weights, choose(bits))).distance;
    progress(wanted.name + ", measurement", static_cast<std::size_t>(++found.evaluations), total);
    return quant::Fidelity{distance.ear, distance.kl, distance.standard_error};
  };
  const quant::SlqTable table = quant::shapley_sensitivities(search, evaluate, copy.inputs());
  found.result =
      quant::distribution_lossless(cpu, search, table, View<const quant::SlqGroup, 1>(groups), wanted.ear, evaluate);
  found.packed = choose(View<const int, 1>(found.result.bits));
  return found;
}

}  // namespace runtime
