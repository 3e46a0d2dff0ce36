// What the command lines of the programs share: the model folder, the cache layout, threads, and how errors end a
// program.
#pragma once

#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>
#include <decant/core/cpu.hpp>
#if RUNTIME_OPENMP
#include <decant/interop/openmp.hpp>
#endif

#include "engine.hpp"
#include "model.hpp"

namespace runtime {

struct ModelOptions {
  std::string model;
  int threads = 1;
  std::string json;
  bool progress = false;

  void add_to(CLI::App& app) {
    app.add_option("--model", model, "Folder with config.json and model.safetensors (or shards)")->required();
    app.add_option("--threads", threads, "Threads for the arithmetic")->capture_default_str();
    app.add_option("--json", json, "Also write the results to this file");
    app.add_flag("--progress", progress, "Progress lines on standard error even when it is no terminal");
  }
};

/// And of those that decode.
struct CommonOptions : ModelOptions {
  std::string cache = "ragged";
  std::string kv_dtype = "f32";

  void add_to(CLI::App& app) {
    ModelOptions::add_to(app);
    app.add_option("--cache", cache, "KV layout: dense, paged[:PAGE_SIZE] or ragged")->capture_default_str();
    app.add_option("--kv-dtype", kv_dtype, "Type of KV rows: f32, f16 or bf16")->capture_default_str();
  }
};

/// How to run on so many threads; ArgumentError when this build cannot.
inline decant::ParallelFor parallel_for_threads(int threads) {
#if RUNTIME_OPENMP
  decant::require(threads >= 1 && threads <= 1024, "runtime", "--threads", "1 to 1024", threads);
  return decant::openmp(threads);
#else
  decant::require(threads == 1, "runtime", "--threads", "1 (this build has no OpenMP)", threads);
  return {};
#endif
}

/// Runs a program: 2 for wrong options and arguments, 1 for files that are not what they should be, with the reason on
/// standard error.
template <class F>
int run_program(CLI::App& app, int argc, char** argv, F&& program) {
  try {
    app.parse(argc, argv);
    program();
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const decant::ArgumentError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace runtime
