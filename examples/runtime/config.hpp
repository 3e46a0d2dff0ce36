// The sizes of a Llama, from the config.json that Hugging Face writes beside the weights. What this runtime does not
// calculate (biases, other activations, unknown RoPE variants) is refused rather than ignored.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <decant/core/error.hpp>
#include <decant/kv/rope.hpp>

#include "json.hpp"

namespace runtime {

using decant::index_t;

/// What the checkpoint was tuned for under SPEED (config.json's "decant" block, which other programs ignore).
struct SpeedTuning {
  double depth = 0;
  index_t anchors = 1;
  std::string pivot;  // "transient" or "keep"; empty: the checkpoint does not say
};

struct Config {
  index_t vocab = 0;
  index_t hidden = 0;
  index_t ffn = 0;
  index_t layers = 0;
  index_t heads = 0;
  index_t kv_heads = 0;
  index_t head_dim = 0;
  index_t context = 0;
  float norm_eps = 0;
  double rope_theta = 0;
  std::vector<double> rope_frequencies;  // empty: the plain ones of rope_theta
  bool tied = false;                     // the embedding is the output matrix too
  index_t bos = 0;
  SpeedTuning speed;

  decant::kv::Rope rope() const {
    return {.theta = rope_theta, .dim = head_dim, .interleaved = false, .frequencies = rope_frequencies};
  }
};

/// Llama 3's frequencies (Hugging Face's "llama3" rope type): low ones are divided by `factor`, high ones stay, and a
/// linear blend lies between.
inline std::vector<double> llama3_frequencies(const JsonObject& scaling, const Config& config) {
  const double pi = 3.14159265358979323846;
  const double factor = scaling.positive("factor");
  const double low = scaling.positive("low_freq_factor");
  const double high = scaling.positive("high_freq_factor");
  const double old_context = scaling.positive("original_max_position_embeddings");
  if (!(high > low)) scaling.bad("high_freq_factor", "more than low_freq_factor", scaling.json()["high_freq_factor"]);
  decant::kv::Rope plain = config.rope();
  std::vector<double> frequencies;
  for (index_t pair = 0; pair < config.head_dim / 2; ++pair) {
    const double frequency = plain.frequency(pair, config.head_dim);
    const double turns = old_context * frequency / (2 * pi);  // within the context that the model was first trained for
    const double share = std::fmin(1.0, std::fmax(0.0, (turns - low) / (high - low)));
    frequencies.push_back(frequency * (share + (1 - share) / factor));
  }
  return frequencies;
}

inline void read_rope(const JsonObject& json, Config& config) {
  // New files keep everything in "rope_parameters"; old ones have "rope_theta" and "rope_scaling".
  const JsonObject holder = json.has("rope_parameters") ? json.object("rope_parameters") : json;
  config.rope_theta = holder.has("rope_theta") ? holder.positive("rope_theta")
                      : json.has("rope_theta") ? json.positive("rope_theta")
                                               : 10000.0;
  if (!json.has("rope_parameters") && !json.has("rope_scaling")) return;
  const JsonObject scaling = json.has("rope_parameters") ? holder : json.object("rope_scaling");
  const char* name = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.string_or(name, "default");
  if (type == "llama3")
    config.rope_frequencies = llama3_frequencies(scaling, config);
  else if (type != "default")
    scaling.bad(name, "\"default\" or \"llama3\"", type);
}

inline SpeedTuning read_speed_tuning(const JsonObject& json) {
  SpeedTuning tuning;
  if (!json.has("decant")) return tuning;
  const JsonObject decant = json.object("decant");
  if (!decant.has("speed_depth")) return tuning;
  tuning.depth = decant.positive("speed_depth");
  if (tuning.depth > 1) decant.bad("speed_depth", "at most 1", tuning.depth);
  tuning.anchors = decant.integer_or("speed_anchors", 0, 1 << 20, 1);
  tuning.pivot = decant.string("speed_pivot");
  if (tuning.pivot != "transient" && tuning.pivot != "keep") {
    decant.bad("speed_pivot", "\"transient\" or \"keep\"", tuning.pivot);
  }
  return tuning;
}

inline Config read_config(const std::string& path) {
  constexpr std::int64_t most = 1 << 24;  // far above any model; keeps products of two sizes below 2^63
  const JsonObject json = JsonObject::from_file(path);
  const std::string type = json.string("model_type");
  if (type != "llama") json.bad("model_type", "\"llama\"", type);
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    if (json.flag_or(name, false)) json.bad(name, "false", true);
  }
  const std::string activation = json.string_or("hidden_act", "silu");
  if (activation != "silu") json.bad("hidden_act", "\"silu\"", activation);

  Config c;
  c.vocab = json.integer("vocab_size", 1, most);
  c.hidden = json.integer("hidden_size", 1, most);
  c.ffn = json.integer("intermediate_size", 1, most);
  c.layers = json.integer("num_hidden_layers", 1, 4096);
  c.heads = json.integer("num_attention_heads", 1, 65536);
  c.kv_heads = json.integer_or("num_key_value_heads", 1, c.heads, c.heads);
  if (c.heads % c.kv_heads != 0) {
    json.bad("num_key_value_heads", "a divisor of num_attention_heads = " + std::to_string(c.heads), c.kv_heads);
  }
  if (!json.has("head_dim") && c.hidden % c.heads != 0) {
    json.bad("hidden_size", "a multiple of num_attention_heads, or a head_dim", c.hidden);
  }
  c.head_dim = json.integer_or("head_dim", 1, 65536, c.hidden / c.heads);
  if (c.head_dim % 2 != 0 || c.head_dim == 0) json.bad("head_dim", "an even number of at least 2", c.head_dim);
  c.context = json.integer_or("max_position_embeddings", 1, most, 2048);
  c.norm_eps = static_cast<float>(json.positive("rms_norm_eps"));
  c.tied = json.flag_or("tie_word_embeddings", false);
  c.bos = json.integer_or("bos_token_id", 0, c.vocab - 1, 0);
  read_rope(json, c);
  c.speed = read_speed_tuning(json);
  return c;
}

}  // namespace runtime
