// Small random Llamas, written to a temporary folder as a user would find them: config.json and safetensors files.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <decant/core/dtype.hpp>
#include <decant/core/random.hpp>

#include "json.hpp"
#include "temporary_folder.hpp"

namespace runtime_test {

using decant::DType;
using decant::index_t;
using runtime::Json;

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

struct NamedTensor {
  std::string name;
  std::vector<index_t> shape;
  std::vector<float> values;
};

inline std::string stored(const std::vector<float>& values, DType dtype) {
  std::string bytes;
  const auto put = [&bytes](const auto& x) { bytes.append(reinterpret_cast<const char*>(&x), sizeof x); };
  for (const float v : values) {
    if (dtype == DType::f32)
      put(v);
    else if (dtype == DType::f16)
      put(decant::fp16(v));
    else
      put(decant::bf16(v));
  }
  return bytes;
}

/// A file in the safetensors format from a header and the bytes that follow. The header is padded to 8 bytes.
inline std::string safetensors(std::string header, const std::string& body) {
  while (header.size() % 8 != 0) header += ' ';
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + body;
}

inline std::string safetensors(const std::vector<NamedTensor>& tensors, DType dtype) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string body;
  const char* name = dtype == DType::f32 ? "F32" : dtype == DType::f16 ? "F16" : "BF16";
  for (const NamedTensor& t : tensors) {
    const std::size_t begin = body.size();
    body += stored(t.values, dtype);
    header[t.name] = {{"dtype", name}, {"shape", t.shape}, {"data_offsets", {begin, body.size()}}};
  }
  return safetensors(header.dump(), body);
}

/// Sizes of a model for tests.
struct Shape {
  index_t vocab = 256, hidden = 32, ffn = 48, layers = 4, heads = 4, kv_heads = 2, head_dim = 8, context = 512;
  bool tied = true;
};

inline Json config_of(const Shape& s) {
  return {{"model_type", "llama"},
          {"vocab_size", s.vocab},
          {"hidden_size", s.hidden},
          {"intermediate_size", s.ffn},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"num_key_value_heads", s.kv_heads},
          {"head_dim", s.head_dim},
          {"max_position_embeddings", s.context},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", s.tied},
          {"bos_token_id", 0},
          {"hidden_act", "silu"}};
}

/// Every tensor of the model, with values that bf16 holds exactly, so that all dtypes store the same model.
inline std::vector<NamedTensor> tensors_of(const Shape& s, std::uint64_t seed = 1) {
  const decant::Philox random{seed};
  std::vector<NamedTensor> all;
  const auto add = [&](const std::string& name, std::vector<index_t> shape, float centre, float spread) {
    NamedTensor t{name, std::move(shape), {}};
    index_t size = 1;
    for (const index_t n : t.shape) size *= n;
    for (index_t i = 0; i < size; ++i) {
      const float u = random.uniform(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(all.size()));
      // 1/128 steps below 2 have 8 significant bits: the same in bf16, fp16 and float.
      t.values.push_back(std::round((centre + spread * (2 * u - 1)) * 64) / 64);
    }
    all.push_back(std::move(t));
  };
  const index_t q = s.heads * s.head_dim;
  const index_t kv = s.kv_heads * s.head_dim;
  const float in = 1.7f / std::sqrt(static_cast<float>(s.hidden));
  const float down = 1.7f / std::sqrt(static_cast<float>(s.ffn));
  add("model.embed_tokens.weight", {s.vocab, s.hidden}, 0, 1);
  for (index_t l = 0; l < s.layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    add(p + "input_layernorm.weight", {s.hidden}, 1, 0.25f);
    add(p + "self_attn.q_proj.weight", {q, s.hidden}, 0, 2 * in);
    add(p + "self_attn.k_proj.weight", {kv, s.hidden}, 0, 2 * in);
    add(p + "self_attn.v_proj.weight", {kv, s.hidden}, 0, in);
    add(p + "self_attn.o_proj.weight", {s.hidden, q}, 0, in);
    add(p + "post_attention_layernorm.weight", {s.hidden}, 1, 0.25f);
    add(p + "mlp.gate_proj.weight", {s.ffn, s.hidden}, 0, in);
    add(p + "mlp.up_proj.weight", {s.ffn, s.hidden}, 0, in);
    add(p + "mlp.down_proj.weight", {s.hidden, s.ffn}, 0, down);
  }
  add("model.norm.weight", {s.hidden}, 1, 0.25f);
  if (!s.tied) add("lm_head.weight", {s.vocab, s.hidden}, 0, 1);
  return all;
}

inline void write_model(const TemporaryFolder& folder, const Shape& s, DType dtype = DType::bf16) {
  write_file(folder.file("config.json"), config_of(s).dump());
  write_file(folder.file("model.safetensors"), safetensors(tensors_of(s), dtype));
}

/// What an error says; "no error" when there is none.
template <class E, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace runtime_test
