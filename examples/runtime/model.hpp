// Model: everything that a program reads of a model folder.
#pragma once

#include <string>
#include <utility>

#include "config.hpp"
#include "safetensors.hpp"
#include "weights.hpp"

namespace runtime {

/// Sizes, files and weights of the folder's model; these refer to each other, so that it does not move.
struct Model {
  explicit Model(std::string from, PackedReader reader = nullptr)
      : folder(std::move(from)),
        config(read_config(folder + "/config.json")),
        checkpoint(folder),
        weights(config, checkpoint, reader) {}
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::string folder;
  Config config;
  Checkpoint checkpoint;
  Weights weights;
};

}  // namespace runtime
