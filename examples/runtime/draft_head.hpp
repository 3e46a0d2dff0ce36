// DraftHead: what turns a state of a lower layer into logits of a draft: an adapter trained for it (draft.safetensors,
// written by examples/model/train_draft.py), or only the model's own final norm. The output matrix is the model's.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "backend.hpp"
#include "model.hpp"

namespace runtime {

class DraftHead {
 public:
  /// The adapter in this file, which says for the state of which layer it was trained. FormatError: not such a file.
  DraftHead(const Model& model, const std::string& path) : model_(model), file_(std::in_place, path) {
    const auto stated = file_->metadata().find("layers");
    const std::string text = stated == file_->metadata().end() ? "nothing" : stated->second;
    layers_ =
        text.size() <= 4 && text.find_first_not_of("0123456789") == std::string::npos ? std::stol("0" + text) : -1;
    if (layers_ < 1 || layers_ > model.config.layers)
      bad_format(path + ": \"layers\"", "1 to " + std::to_string(model.config.layers), text);
    const index_t hidden = model.config.hidden;
    if (file_->tensors().count("gate.weight") > 0) {
      const std::vector<index_t>& shape = file_->tensors().at("gate.weight").shape;
      const index_t ffn = shape.empty() ? 0 : shape[0];
      mlp_ = Mlp{widened(tensor("norm.weight", {hidden})), plain_matrix(tensor("gate.weight", {ffn, hidden})),
                 plain_matrix(tensor("up.weight", {ffn, hidden})), plain_matrix(tensor("down.weight", {hidden, ffn}))};
    }
    linear_ = plain_matrix(tensor("linear.weight", {hidden, hidden}));
    norm_ = widened(tensor("head_norm.weight", {hidden}));
  }

  /// No adapter: the state of this layer under the final norm.
  DraftHead(const Model& model, index_t layers)
      : model_(model),
        layers_(layers),
        norm_(model.weights.norm.data(), model.weights.norm.data() + model.config.hidden) {
    decant::require(layers >= 1 && layers <= model.config.layers, "runtime::DraftHead", "layers",
                    "1 to " + std::to_string(model.config.layers), layers);
  }

  index_t layers() const { return layers_; }

  /// states [tokens, hidden] above layer layers(); logits [tokens, vocab].
  void operator()(decant::Cpu& cpu, View<const float, 2> states, View<float, 2> logits) const {
    decant::Workspace::Scope scope(cpu.workspace());
    const index_t tokens = states.extent(0);
    const Config& c = model_.config;
    const auto take = [&](index_t width) { return cpu.workspace().take_view<float>(tokens, width); };
    const View<float, 2> x = take(c.hidden);
    const View<float, 2> y = take(c.hidden);
    std::copy_n(states.data(), states.size(), x.data());
    if (mlp_) {
      const index_t ffn = rows_of(mlp_->gate);
      const View<float, 2> gate = take(ffn);
      const View<float, 2> up = take(ffn);
      rms_norm(cpu, x, mlp_->norm, c.norm_eps, y);
      linear(cpu, mlp_->gate, y, gate);
      linear(cpu, mlp_->up, y, up);
      swiglu(cpu, gate, up);
      linear(cpu, mlp_->down, gate, y);
      add(cpu, x, y);
    }
    if (linear_) linear(cpu, *linear_, x, y);
    const View<float, 2> adapted = linear_ ? y : x;
    rms_norm(cpu, adapted, norm_, c.norm_eps, adapted);
    linear(cpu, model_.weights.head, adapted, logits);
  }

 private:
  struct Mlp {
    std::vector<float> norm;
    Matrix gate, up, down;
  };

  const Tensor& tensor(const std::string& name, const std::vector<index_t>& shape) const {
    const auto found = file_->tensors().find(name);
    const std::string where = file_->path() + ": tensor \"" + name + "\"";
    if (found == file_->tensors().end()) bad_format(where, "shape " + shown(shape), "nothing");
    const Tensor& t = found->second;
    if (t.shape != shape) bad_format(where, "shape " + shown(shape), shown(t.shape));
    if (t.raw || (t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16))
      bad_format(where, "weights in F32, F16 or BF16", t.raw ? "U8" : decant::name(t.dtype));
    return t;
  }

  const Model& model_;
  std::optional<SafetensorsFile> file_;
  index_t layers_ = 0;
  std::optional<Mlp> mlp_;
  std::optional<Matrix> linear_;
  std::vector<float> norm_;
};

}  // namespace runtime
