#pragma once
// The KV cache of the example checkpoint on its own text, in bf16.

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <decant/stack.hpp>

#include "json.hpp"
#include "llama.hpp"

namespace bench {

/// Elements in the order [passage][kv_head][token][dim].
struct LayerKv {
  std::vector<decant::bf16> keys, values;
};

/// Of every layer, for `count` passages of recall.jsonl from number `first` on.
inline std::vector<LayerKv> model_kv(const std::string& folder, int first, int count) {
  using Llama = runtime::Llama<decant::Stack<>, runtime::DenseCache<decant::bf16>>;
  const runtime::Config config = runtime::read_config(folder + "/config.json");
  const runtime::Checkpoint checkpoint(folder);
  const runtime::Weights weights(config, checkpoint);
  decant::Cpu cpu;
  Llama llama(cpu, config, weights, {});
  std::ifstream lines(folder + "/recall.jsonl");
  std::vector<LayerKv> layers(static_cast<std::size_t>(config.layers));
  std::string line;
  for (int passage = 0; passage < first + count; ++passage) {
    if (!std::getline(lines, line)) throw std::runtime_error("recall.jsonl: not so many passages");
    if (passage < first) continue;
    const std::string text = runtime::parse_object(line, "recall.jsonl").at("prompt");
    llama.prefill(runtime::prompt_tokens(config, text), 0);
    for (decant::index_t l = 0; l < config.layers; ++l) {
      const auto cache = llama.cache(l).view();
      LayerKv& layer = layers[static_cast<std::size_t>(l)];
      for (decant::index_t h = 0; h < config.kv_heads; ++h) {
        const decant::index_t elements = cache.length(0, h) * config.head_dim;
        layer.keys.insert(layer.keys.end(), cache.key(0, h, 0), cache.key(0, h, 0) + elements);
        layer.values.insert(layer.values.end(), cache.value(0, h, 0), cache.value(0, h, 0) + elements);
      }
    }
  }
  return layers;
}

}  // namespace bench
