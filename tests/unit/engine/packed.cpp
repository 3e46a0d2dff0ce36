// Packed models: what is written comes back to the bit, in every recipe's format; what is altered or cut off on the way is
// refused by name; calibration sees what the matrices see; a search for bit widths ends at a choice that it measured.
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "catch_compat.hpp"
#include "generate.hpp"
#include "packed_checkpoint.hpp"
#include "packer.hpp"
#include "../runtime/loaded_model.hpp"

namespace runtime_test {
namespace {

using decant::ArgumentError;
using decant::FormatError;
using decant::View;
using runtime::CalibrationList;
using runtime::PackedMatrix;
using runtime::Weights;

std::vector<float> logits_of(const Loaded& model, const Weights& weights, const runtime::Tokens& prompt) {
  decant::Cpu cpu;
  const auto engine = runtime::make_engine(cpu, model.config, weights, {}, {});
  return copy(engine->prefill(prompt, 0, runtime::Logits::all));
}

CalibrationList sums_of(const Loaded& model) {
  decant::Cpu cpu;
  return runtime::calibrate(cpu, model.config, model.weights, {random_prompt(200, 256, 7), random_prompt(100, 256, 8)},
                            [](std::size_t, std::size_t) {});
}

std::map<std::string, PackedMatrix> packed_by(const std::string& recipe, const Loaded& model, const CalibrationList& sums) {
  decant::Cpu cpu;
  return runtime::pack(cpu, model.weights, runtime::find_recipe(recipe), sums, [](std::size_t, std::size_t) {});
}

/// A copy of the model's folder with these matrices packed.
void write_packed_model(const TemporaryFolder& from, const TemporaryFolder& to, const Loaded& model,
                        const std::map<std::string, PackedMatrix>& packed) {
  std::filesystem::copy_file(from.file("config.json"), to.file("config.json"));
  runtime::write_packed(to.file("model.safetensors"), model.checkpoint, packed);
}

TEST_CASE("packed: a model in any recipe's format is written and read back to the bit", "[packed]") {
  const TemporaryFolder small_folder, wide_folder;
  write_model(small_folder, {.ffn = 64, .layers = 1});
  write_model(wide_folder, {.hidden = 256, .ffn = 256, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 128, .context = 256});
  const Loaded small(small_folder), wide(wide_folder);
  const CalibrationList sums = sums_of(small);
  const auto prompt = random_prompt(20);
  for (const runtime::Recipe& recipe : runtime::known_recipes()) {
    INFO(recipe.name);
    const bool blocks_of_256 = recipe.name == "q4_k" || recipe.name == "q6_k";
    const TemporaryFolder& folder = blocks_of_256 ? wide_folder : small_folder;
    const Loaded& model = blocks_of_256 ? wide : small;
    const auto packed = packed_by(recipe.name, model, recipe.needs_text() ? sums : CalibrationList{});
    const Weights before = runtime::with_packed(model.weights, packed);
    const TemporaryFolder copied;
    write_packed_model(folder, copied, model, packed);
    const runtime::Checkpoint checkpoint(copied.path());
    const Weights after(model.config, checkpoint, runtime::read_packed);
    CHECK(after.bytes == before.bytes);
    CHECK(after.bytes < model.weights.bytes);
    const auto first = logits_of(model, before, prompt);
    CHECK(first == logits_of(model, after, prompt));
    CHECK(std::isfinite(first.back()));
  }
}

TEST_CASE("packed: bytes that were altered or cut off, and metadata that do not fit, are refused by name", "[packed]") {
  const TemporaryFolder folder;
  write_model(folder, {.layers = 1});
  const Loaded model(folder);
  const auto packed = packed_by("rtn4", model, {});
  const TemporaryFolder copied;
  write_packed_model(folder, copied, model, packed);
  const std::string path = copied.file("model.safetensors");
  const std::string good = runtime::read_text_file(path);
  const auto verdict = [&](const std::string& bytes, runtime::PackedReader reader = runtime::read_packed) {
    write_file(path, bytes);
    return error_of<FormatError>([&] {
      const runtime::Checkpoint checkpoint(copied.path());
      Weights(model.config, checkpoint, reader);
    });
  };
  const auto with = [&](const std::string& what, const std::string& by) {
    std::string bytes = good;
    const std::size_t at = bytes.find(what);
    REQUIRE(at != std::string::npos);
    REQUIRE(what.size() == by.size());  // offsets stay right
    return bytes.replace(at, what.size(), by);
  };
  CHECK(verdict(good) == "no error");
  // The last byte belongs to the last packed matrix by name.
  std::string flipped = good;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  CHECK_THAT(verdict(flipped), catch_compat::contains("v_proj.weight\": expected bytes with checksum \""));
  for (const std::size_t size : {good.size() - 1, good.size() / 2, std::size_t{100}, std::size_t{7}})
    CHECK_THAT(verdict(good.substr(0, size)), catch_compat::contains("model.safetensors"));
  CHECK_THAT(verdict(good, nullptr), catch_compat::contains("expected weights that this program reads"));
  CHECK_THAT(verdict(with("int4:", "int9:")), catch_compat::contains("expected a known format"));
  CHECK_THAT(verdict(with("int4:", "int5:")), catch_compat::contains("bytes"));
  CHECK_THAT(verdict(with("group=128", "group=1x8")), catch_compat::contains("a format whose group is a number"));
  CHECK_THAT(verdict(with("grid=zero_point", "grid=zero_pomnt")), catch_compat::contains("a known grid"));
  CHECK_THAT(verdict(with("grid=zero_point,", "grix=zero_point,")), catch_compat::contains("\"grid=...\""));
  CHECK_THAT(verdict(with(" 32 32 ", " 32 33 ")), catch_compat::contains("the shape 32 32"));
}

TEST_CASE("packed: what is packed already stays so in a further copy", "[packed]") {
  const TemporaryFolder folder;
  write_model(folder, {.layers = 1});
  const Loaded model(folder);
  const auto packed = packed_by("mxfp4", model, {});
  const TemporaryFolder first, second;
  write_packed_model(folder, first, model, packed);
  const runtime::Checkpoint once(first.path());
  std::filesystem::copy_file(folder.file("config.json"), second.file("config.json"));
  runtime::write_packed(second.file("model.safetensors"), once, {});
  const runtime::Checkpoint twice(second.path());
  const auto prompt = random_prompt(20);
  CHECK(logits_of(model, Weights(model.config, twice, runtime::read_packed), prompt) ==
        logits_of(model, runtime::with_packed(model.weights, packed), prompt));
}

TEST_CASE("packed: calibration sums what enters each matrix, once per input", "[packed]") {
  const TemporaryFolder folder;
  write_model(folder, {.layers = 2});
  const Loaded model(folder);
  const CalibrationList sums = sums_of(model);
  REQUIRE(sums.size() == 8);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    CHECK(sums[i]->tokens() == 300);
    CHECK(sums[i]->cols() == (i % 4 == 3 ? 48 : 32));
  }
  // The first layer's input is the normed embedding: its mean square over columns is 1, but for the norm's weights.
  decant::Cpu cpu;
  std::vector<double> square(32);
  for (const auto& text : {random_prompt(200, 256, 7), random_prompt(100, 256, 8)}) {
    for (const runtime::Token t : text) {
      std::vector<float> row(32);
      std::visit([&](const auto& w) { dequantize_row(cpu, w, t, View<float, 1>(row)); }, model.weights.embedding);
      double mean = 0;
      for (const float x : row) mean += static_cast<double>(x) * static_cast<double>(x) / 32;
      for (std::size_t k = 0; k < 32; ++k) {
        const double normed = static_cast<double>(row[k]) / std::sqrt(mean + 1e-5) *
                              static_cast<double>(model.weights.layers[0].attention_norm[static_cast<index_t>(k)]);
        square[k] += normed * normed / 300;
      }
    }
  }
  const auto importance = sums[0]->view().importance;
  for (index_t k = 0; k < 32; ++k)
    CHECK(static_cast<double>(importance[k]) == Approx(square[static_cast<std::size_t>(k)]).epsilon(1e-4));
}

TEST_CASE("packed: a judge finds the stored model at distance 0, and more bits nearer to it", "[packed]") {
  const TemporaryFolder folder;
  write_model(folder, {.layers = 2});
  const Loaded model(folder);
  const CalibrationList sums = sums_of(model);
  const std::vector<runtime::Tokens> text = {random_prompt(250, 256, 9)};
  decant::Cpu cpu;
  const runtime::Judge judge(cpu, model.config, model.weights, text);
  const auto kl = [&](const std::string& recipe) {
    return judge(runtime::with_packed(model.weights, packed_by(recipe, model, sums))).distance.kl;
  };
  CHECK(judge(model.weights).distance.kl == 0);
  CHECK(judge(model.weights).distance.ear == 1);
  CHECK(judge.positions() == 249);
  CHECK(kl("gptq8") < 0.1 * kl("gptq4"));
}

TEST_CASE("packed: a search for bit widths meets its target with fewer bits than the widest", "[packed]") {
  const TemporaryFolder folder;
  write_model(folder, {.layers = 2});
  const Loaded model(folder);
  decant::Cpu cpu;
  const CalibrationList sums = sums_of(model);
  const std::vector<runtime::Tokens> text = {random_prompt(100, 256, 9)};
  const runtime::Judge judge(cpu, model.config, model.weights, text);
  const double widest = judge(runtime::with_packed(model.weights, packed_by("gptq8", model, sums))).distance.ear;
  const auto target = runtime::parse_bit_search("slq:ear=" + std::to_string(1 - 8 * (1 - widest)));
  const auto found = runtime::search_bits(cpu, model.weights, target, sums, judge,
                                          [](const std::string&, std::size_t, std::size_t) {});
  CHECK(found.result.bits.size() == 8);
  CHECK(found.result.average_bits < 8);
  CHECK(found.result.average_bits > 2);
  CHECK(found.result.measured.ear == judge(runtime::with_packed(model.weights, found.packed)).distance.ear);
  CHECK(found.packed.size() == 14);
}

TEST_CASE("packed: names of recipes and searches", "[packed]") {
  CHECK(runtime::parse_bit_search("slq:ear=0.98").ear == 0.98);
  CHECK(runtime::parse_bit_search("slq:ear=0.98,permutations=5").permutations == 5);
  for (const char* text : {"slq:ear=1", "slq:ear=0", "slq:ear", "slq:bits=4", "slqq", "slq:ear=0.9,permutations=1.5", "slq:ear=0.9,permutations=1e14",
                           "slq:ear=0.9,permutations=0"}) {
    INFO(text);
    CHECK_THAT(error_of<ArgumentError>([&] { runtime::require_weights_name(text); }), catch_compat::contains("slq:ear=SHARE"));
  }
  CHECK_THAT(error_of<ArgumentError>([] { runtime::require_weights_name("gptq9"); }),
             catch_compat::contains("one of: rtn2, rtn3"));
  CHECK(error_of<ArgumentError>([] { runtime::require_weights_name("stored"); }) == "no error");
}

}  // namespace
}  // namespace runtime_test
