// DraftHead: what turns a state of a lower layer into logits of a draft: an adapter trained for it (draft.safetensors,
// written by examples/model/train_draft.py), or only the model's own final norm. The output matrix is the model's.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "model.hpp"

namespace runtime {

/// A file with a drafter's weights: its tensors, checked when they are asked for, and above which layer they work.
class DraftFile {
 public:
  /// FormatError: not such a file, or for another model.
  DraftFile(const Model& model, const std::string& path) : file_(path) {
    const auto stated = file_.metadata().find("layers");
    const std::string text = stated == file_.metadata().end() ? "nothing" : stated->second;
    layers_ =
        text.size() <= 4 && text.find_first_not_of("0123456789") == std::string::npos ? std::stol("0" + text) : -1;
    if (layers_ < 1 || layers_ > model.config.layers)
      bad_format(path + ": \"layers\"", "1 to " + std::to_string(model.config.layers), text);
  }

  index_t layers() const { return layers_; }
  bool has(const std::string& name) const { return file_.tensors().count(name) > 0; }

  /// Where the number of rows is the file's to say: at least 1.
  index_t rows(const std::string& name) const {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) bad_format(where(name), "a matrix", "nothing");
    const std::vector<index_t>& shape = found->second.shape;
    if (shape.size() != 2 || shape[0] < 1) bad_format(where(name), "a matrix of at least 1 row", shown(shape));
    return shape[0];
  }

  const Tensor& get(const std::string& name, const std::vector<index_t>& shape) const {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) bad_format(where(name), "shape " + shown(shape), "nothing");
    const Tensor& t = found->second;
    if (t.shape != shape) bad_format(where(name), "shape " + shown(shape), shown(t.shape));
    if (t.raw || (t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16))
      bad_format(where(name), "weights in F32, F16 or BF16", t.raw ? "U8" : decant::name(t.dtype));
    return t;
  }
  Matrix matrix(const std::string& name, index_t rows, index_t columns) const {
    return plain_matrix(get(name, {rows, columns}));
  }
  std::vector<float> vector(const std::string& name, index_t size) const { return widened(get(name, {size})); }

  std::string where(const std::string& name) const { return file_.path() + ": tensor \"" + name + "\""; }

 private:
  SafetensorsFile file_;
  index_t layers_ = 0;
};

class DraftHead {
 public:
  /// The adapter in this file. FormatError: it holds none.
  DraftHead(const Model& model, std::shared_ptr<const DraftFile> file)
      : model_(model), file_(std::move(file)), layers_(file_->layers()) {
    const index_t hidden = model.config.hidden;
    if (file_->has("gate.weight")) {
      const index_t ffn = file_->rows("gate.weight");
      mlp_ = Mlp{file_->vector("norm.weight", hidden), file_->matrix("gate.weight", ffn, hidden),
                 file_->matrix("up.weight", ffn, hidden), file_->matrix("down.weight", hidden, ffn)};
    }
    linear_ = file_->matrix("linear.weight", hidden, hidden);
    norm_ = file_->vector("head_norm.weight", hidden);
  }
  DraftHead(const Model& model, const std::string& path)
      : DraftHead(model, std::make_shared<const DraftFile>(model, path)) {}

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

  const Model& model_;
  std::shared_ptr<const DraftFile> file_;  // where the matrices lie
  index_t layers_ = 0;
  std::optional<Mlp> mlp_;
  std::optional<Matrix> linear_;
  std::vector<float> norm_;
};

}  // namespace runtime
