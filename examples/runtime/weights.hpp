// A Llama's weights, found by their Hugging Face names in a checkpoint and checked for shape. Matrices stay where the
// file is mapped, in the type or the packed format they are stored in.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <decant/core/cpu.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/view.hpp>
#include <decant/kv/cache_view.hpp>
#include <decant/quant/plain.hpp>

#include "config.hpp"
#include "packed_checkpoint.hpp"
#include "packed_matrix.hpp"
#include "safetensors.hpp"

namespace runtime {

namespace quant = decant::quant;
using decant::View;

/// A weight matrix in one of the types that files store, in the file's memory, or a packed one.
using Matrix = std::variant<quant::Plain<float>, quant::Plain<decant::fp16>, quant::Plain<decant::bf16>, PackedMatrix>;

inline index_t rows_of(const Matrix& w) {
  return std::visit([](const auto& m) { return m.rows(); }, w);
}
inline index_t columns_of(const Matrix& w) {
  return std::visit([](const auto& m) { return m.cols(); }, w);
}
inline index_t bytes_of(const Matrix& w) {
  return std::visit([](const auto& m) { return m.bytes(); }, w);
}

/// y = x * w^T. x [tokens, columns], y [tokens, rows].
inline void linear(decant::Cpu& cpu, const Matrix& w, View<const float, 2> x, View<float, 2> y) {
  std::visit([&](const auto& m) { matmul(cpu, m, x, y); }, w);
}

/// A tensor of two dimensions in F32, F16 or BF16, where it lies.
inline Matrix plain_matrix(const Tensor& tensor) {
  const auto as = [&](auto zero) -> Matrix {
    using T = decltype(zero);
    return quant::Plain<T>{View<const T, 2>(reinterpret_cast<const T*>(tensor.data), tensor.shape[0], tensor.shape[1])};
  };
  if (tensor.dtype == DType::f32) return as(float{});
  if (tensor.dtype == DType::f16) return as(decant::fp16{});
  return as(decant::bf16{});
}

/// A tensor of one dimension in F32, F16 or BF16, as floats.
inline std::vector<float> widened(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape[0]));
  const auto widen = [&](auto zero) {
    decant::kv::load_row(reinterpret_cast<const decltype(zero)*>(tensor.data), tensor.shape[0], values.data());
  };
  if (tensor.dtype == DType::f32)
    widen(float{});
  else if (tensor.dtype == DType::f16)
    widen(decant::fp16{});
  else
    widen(decant::bf16{});
  return values;
}

struct LayerWeights {
  View<const float, 1> attention_norm;  // norms are a few hundred numbers: widened once
  Matrix q, k, v, o;
  View<const float, 1> ffn_norm;
  Matrix gate, up, down;
};

/// Everything that the forward pass reads. Refers to the checkpoint, which must outlive it.
class Weights {
 public:
  /// reader: read_packed, or null where packed matrices are not expected.
  Weights(const Config& c, const Checkpoint& checkpoint, PackedReader reader = nullptr)
      : checkpoint_(checkpoint), reader_(reader) {
    const index_t q = c.heads * c.head_dim;
    const index_t kv = c.kv_heads * c.head_dim;
    embedding = matrix("model.embed_tokens.weight", c.vocab, c.hidden);
    for (index_t i = 0; i < c.layers; ++i) {
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      LayerWeights w;
      w.attention_norm = vector(prefix + "input_layernorm.weight", c.hidden);
      w.q = matrix(prefix + "self_attn.q_proj.weight", q, c.hidden);
      w.k = matrix(prefix + "self_attn.k_proj.weight", kv, c.hidden);
      w.v = matrix(prefix + "self_attn.v_proj.weight", kv, c.hidden);
      w.o = matrix(prefix + "self_attn.o_proj.weight", c.hidden, q);
      w.ffn_norm = vector(prefix + "post_attention_layernorm.weight", c.hidden);
      w.gate = matrix(prefix + "mlp.gate_proj.weight", c.ffn, c.hidden);
      w.up = matrix(prefix + "mlp.up_proj.weight", c.ffn, c.hidden);
      w.down = matrix(prefix + "mlp.down_proj.weight", c.hidden, c.ffn);
      layers.push_back(std::move(w));
    }
    norm = vector("model.norm.weight", c.hidden);
    // Some files state a tied head and store it all the same: then the config decides, as in Hugging Face.
    head = c.tied ? embedding : matrix("lm_head.weight", c.vocab, c.hidden);
  }

  Matrix embedding;
  std::vector<LayerWeights> layers;
  View<const float, 1> norm;
  Matrix head;
  /// Bytes of all the tensors above as stored, a tied head counted once.
  index_t bytes = 0;

  /// Different inputs of the matrices that for_each_matrix() visits: of a layer, those of q, k and v, of o, of gate and
  /// up, and of down.
  index_t inputs() const { return 4 * static_cast<index_t>(layers.size()); }

 private:
  Matrix matrix(const std::string& name, index_t rows, index_t columns) {
    if (const auto packed = find_packed(checkpoint_, name, rows, columns, reader_)) {
      bytes += packed->bytes();
      return *packed;
    }
    return plain_matrix(find(name, {rows, columns}));
  }

  View<const float, 1> vector(const std::string& name, index_t size) {
    widened_.push_back(std::make_shared<std::vector<float>>(widened(find(name, {size}))));
    return *widened_.back();
  }

  const Tensor& find(const std::string& name, const std::vector<index_t>& shape) {
    const Tensor& tensor = checkpoint_.get(name, shape);
    const bool plain =
        !tensor.raw && (tensor.dtype == DType::f32 || tensor.dtype == DType::f16 || tensor.dtype == DType::bf16);
    if (!plain) {
      bad_format("tensor \"" + name + "\"", "weights in F32, F16 or BF16",
                 tensor.raw ? "U8" : decant::name(tensor.dtype));
    }
    bytes += tensor.bytes;
    return tensor;
  }

  const Checkpoint& checkpoint_;
  PackedReader reader_;
  std::vector<std::shared_ptr<const std::vector<float>>> widened_;  // shared by copies
};

/// f(name, input, matrix) for every matrix inside the layers: what is quantised. Embedding and head stay as they are.
template <class F>
void for_each_matrix(Weights& weights, F&& f) {
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    LayerWeights& w = weights.layers[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".";
    const auto input = static_cast<index_t>(4 * l);
    f(prefix + "self_attn.q_proj.weight", input, w.q);
    f(prefix + "self_attn.k_proj.weight", input, w.k);
    f(prefix + "self_attn.v_proj.weight", input, w.v);
    f(prefix + "self_attn.o_proj.weight", input + 1, w.o);
    f(prefix + "mlp.gate_proj.weight", input + 2, w.gate);
    f(prefix + "mlp.up_proj.weight", input + 2, w.up);
    f(prefix + "mlp.down_proj.weight", input + 3, w.down);
  }
}

}  // namespace runtime
