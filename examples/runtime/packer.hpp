// Packer: packs a model's weights by the names that command lines give: "stored", a recipe's name, or a search for bit
// widths. It reads the calibration text when the first name that needs one comes.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bit_search.hpp"
#include "model.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "quantize.hpp"

namespace runtime {

inline std::string weights_help() {
  return "stored, slq:ear=SHARE[,permutations=COUNT] (the fewest bits of GPTQ whose EAR is at least so much), or one "
         "of " +
         recipe_names();
}

/// ArgumentError when nothing is called so.
inline void require_weights_name(const std::string& name) {
  if (names_bit_search(name))
    parse_bit_search(name);
  else if (name != "stored")
    find_recipe(name);
}

class Packer {
 public:
  /// calibration: a file, by default calibration.txt in the model's folder, cut into windows of so many tokens.
  /// Everything must outlive the packer.
  Packer(decant::Cpu& cpu, const Model& model, std::string calibration, index_t window, Progress& progress)
      : cpu_(cpu), model_(model), calibration_(std::move(calibration)), window_(window), progress_(progress) {}

  /// The packed matrices by name; none for "stored".
  std::map<std::string, PackedMatrix> operator()(const std::string& name) {
    if (name == "stored") return {};
    if (names_bit_search(name)) {
      calibrate();
      // The search measures hundreds of times: on the first window.
      const std::vector<Tokens> some(text_.begin(), text_.begin() + 1);
      const Judge judge(cpu_, model_.config, model_.weights, some);
      FoundBits found = search_bits(cpu_, model_.weights, parse_bit_search(name), sums_, judge, progress_);
      note_ = told(name, found);
      return std::move(found.packed);
    }
    const Recipe& recipe = find_recipe(name);
    if (recipe.needs_text()) calibrate();
    return pack(cpu_, model_.weights, recipe, recipe.needs_text() ? sums_ : CalibrationList{},
                [&](std::size_t done, std::size_t total) { progress_(recipe.name + ", matrix", done, total); });
  }

  /// What the last search for bit widths found, in words; empty when there was none.
  const std::string& note() const { return note_; }

 private:
  void calibrate() {
    if (!sums_.empty()) return;
    const std::string path = calibration_.empty() ? model_.folder + "/calibration.txt" : calibration_;
    text_ = windows_of(model_.config, read_text_file(path), window_);
    sums_ = runtime::calibrate(cpu_, model_.config, model_.weights, text_, [&](std::size_t done, std::size_t total) {
      progress_("calibration, window", done, total);
    });
  }

  static std::string told(const std::string& name, const FoundBits& found) {
    const auto& r = found.result;
    std::string text = name + ": " + fixed(r.average_bits, 3) + " bits on average, scales not counted; EAR " +
                       fixed(r.measured.ear, 4) + " on the search's text, the target " + (r.met ? "met" : "not met") +
                       " less two standard errors; " + std::to_string(found.evaluations) +
                       " measurements; bits of q k v, o, gate up and down in each layer:";
    for (std::size_t m = 0; m < r.bits.size(); ++m) text += (m % 4 == 0 ? " " : "") + std::to_string(r.bits[m]);
    return text;
  }

  decant::Cpu& cpu_;
  const Model& model_;
  std::string calibration_;
  index_t window_;
  Progress& progress_;
  std::vector<Tokens> text_;
  CalibrationList sums_;
  std::string note_;
};

}  // namespace runtime
