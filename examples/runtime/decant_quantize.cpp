// decant-quantize: packs a checkpoint's weights, and tells what that costs: bits per weight, and the distance from the
// stored model on a text that calibration has not seen.
//   decant-quantize --model examples/model --compare rtn4 --compare gptq4 --compare gptq+aaac4
//   decant-quantize --model examples/model --weights gptq4 --out packed-model
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "options.hpp"
#include "output.hpp"
#include "packer.hpp"
#include "progress.hpp"
#include "quality.hpp"

namespace {

using namespace runtime;

struct Options : ModelOptions {
  std::string calibration;
  std::string evaluation;
  index_t window = 0;
  std::string weights;
  std::string out;
  std::vector<std::string> compare;
};

struct Result {
  std::string name;
  double seconds = 0;  // of packing
  index_t weight_bytes = 0;
  double bits = 0;  // per weight, over the matrices inside the layers
  Quality quality;
  std::string note;  // what a search found
};

Json to_json(const Result& r) {
  const auto& d = r.quality.distance;
  return {{"weights", r.name},          {"bits_per_weight", r.bits}, {"weight_bytes", r.weight_bytes},
          {"pack_seconds", r.seconds},  {"kl", d.kl},                {"ear", d.ear},
          {"ear_stderr", d.standard_error}, {"top1_agreement", d.top1_agreement},
          {"bits_per_byte", r.quality.bits_per_byte}};
}

void print_table(const std::vector<Result>& results) {
  std::vector<std::vector<std::string>> table = {{"weights", "bits per weight", "KL (nats)", "EAR", "std. error",
                                                  "top-1 agreement", "bits per byte", "packed in s"}};
  for (const Result& r : results) {
    const auto& d = r.quality.distance;
    table.push_back({r.name, fixed(r.bits, 3), fixed(d.kl, 5), fixed(d.ear, 4), fixed(d.standard_error, 4),
                     fixed(100 * d.top1_agreement, 1) + " %", fixed(r.quality.bits_per_byte, 4), fixed(r.seconds, 1)});
  }
  std::cout << markdown_table(table);
}

/// Before long work: the folder for the packed model can be made and written to, and is not the model's own.
void prepare_folder(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(to, error);
  const bool usable = !error && !fs::equivalent(from, to, error) && !error;
  decant::require(usable, "runtime", "--out", "a folder other than --model's that can be written to", to);
  // Readers would take the shards that it names for the model.
  decant::require(!fs::exists(to + "/model.safetensors.index.json", error), "runtime", "--out",
                  "a folder without another model's shards", to);
  require_writable(to + "/model.safetensors", "--out");
}

/// The weights, then the small files beside them.
void write_model(const std::string& from, const std::string& to, const Checkpoint& checkpoint,
                 const std::map<std::string, PackedMatrix>& packed) {
  namespace fs = std::filesystem;
  write_packed(to + "/model.safetensors", checkpoint, packed);
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json"}) {
    std::error_code error;
    const bool there = fs::exists(from + "/" + name, error);
    if (there) fs::copy_file(from + "/" + name, to + "/" + name, fs::copy_options::overwrite_existing, error);
    if (error) throw decant::Error("cannot write " + to + "/" + name);
  }
}

void run(const Options& o) {
  decant::require(o.weights.empty() != o.compare.empty(), "runtime", "--weights and --compare", "one of them",
                  o.weights.empty() ? "none" : "both");
  decant::require(o.weights.empty() == o.out.empty(), "runtime", "--weights and --out", "both or none", "one");
  decant::require(o.json.empty() || o.out.empty(), "runtime", "--json", "a table to write, which --out has not",
                  o.json);
  if (!o.json.empty()) require_writable(o.json, "--json");
  const std::vector<std::string> names = o.weights.empty() ? o.compare : std::vector{o.weights};
  for (const std::string& name : names) require_weights_name(name);
  decant::Cpu cpu(parallel_for_threads(o.threads));
  const Model model(o.model, read_packed);
  require_byte_vocabulary(model.config);
  if (!o.out.empty()) prepare_folder(o.model, o.out);
  const index_t window = o.window > 0 ? o.window : std::min<index_t>(1024, model.config.context);
  Progress progress(o.progress);
  Packer packer(cpu, model, o.calibration, window, progress);
  if (!o.out.empty()) {
    const auto packed = packer(o.weights);
    write_model(o.model, o.out, model.checkpoint, packed);
    progress.clear();
    if (!packer.note().empty()) std::cout << packer.note() << "\n";
    const Weights after = with_packed(model.weights, packed);
    std::cout << o.out << ": " << after.bytes << " bytes of weights, " << fixed(bits_per_weight(after), 3)
              << " bits per packed weight\n";
    return;
  }

  const std::string evaluation = o.evaluation.empty() ? o.model + "/evaluation.txt" : o.evaluation;
  const std::vector<Tokens> text = windows_of(model.config, read_text_file(evaluation), window);
  const Judge judge(cpu, model.config, model.weights, text);
  std::vector<Result> results;
  for (const std::string& name : names) {
    Result r;
    r.name = name;
    const auto start = std::chrono::steady_clock::now();
    const auto packed = packer(name);
    if (names_bit_search(name)) r.note = packer.note();
    r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const Weights weights = with_packed(model.weights, packed);
    r.weight_bytes = weights.bytes;
    r.bits = bits_per_weight(weights);
    progress("quality of " + r.name, results.size() + 1, names.size());
    r.quality = judge(weights);
    results.push_back(r);
  }
  progress.clear();
  print_table(results);
  std::cout << "\n" << judge.positions() << " positions of text that calibration has not seen, in windows of " << window
            << "; KL, EAR (over the whole vocabulary) and agreement against the stored model.\n";
  for (const Result& r : results)
    if (!r.note.empty()) std::cout << r.note << "\n";
  if (!o.json.empty()) {
    Json all = Json::array();
    for (const Result& r : results) all.push_back(to_json(r));
    write_json(o.json, all);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Packs a checkpoint's weights, or tells what packing them costs.", "decant-quantize");
  o.add_to(app);
  app.add_option("--calibration", o.calibration,
                 "Text that quantizers look at; by default the model's calibration.txt");
  app.add_option("--evaluation", o.evaluation, "Text that --compare judges on; by default the model's evaluation.txt");
  app.add_option("--window", o.window, "Tokens of text at a time; 0: 1024, or the model's context where that is less")
      ->capture_default_str();
  app.add_option("--weights", o.weights, "How to pack, for --out: " + weights_help());
  app.add_option("--out", o.out, "Folder for the packed model");
  app.add_option("--compare", o.compare, "A row of the table: what --weights takes; repeat it")
      ->allow_extra_args(false);
  return run_program(app, argc, argv, [&] { run(o); });
}
