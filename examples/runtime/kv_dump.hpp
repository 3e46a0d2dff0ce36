// KV dumps: safetensors files with the tensors "layers.N.k" and "layers.N.v", each [tokens, kv_heads, dim], of all
// layers of one sequence. KVDump reads one, SafetensorsWriter writes one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kv_rows.hpp"
#include "safetensors.hpp"
#include "safetensors_writer.hpp"

namespace runtime {

inline std::string dump_name(index_t layer, dkvc::Kind kind) {
  return "layers." + std::to_string(layer) + (kind == dkvc::Kind::key ? ".k" : ".v");
}

/// Keys and values of every layer, found by name and checked to fit together.
class KVDump {
 public:
  /// FormatError when the file is no such dump.
  explicit KVDump(const std::string& path) : file_(path) {
    const auto& tensors = file_.tensors();
    shape_.layers = static_cast<index_t>(tensors.size()) / 2;
    if (tensors.empty()) bad_format(path, "a tensor \"layers.0.k\"", "no tensor");
    const Tensor& keys = find(0, dkvc::Kind::key);
    const Tensor& values = find(0, dkvc::Kind::value);
    for (const Tensor* t : {&keys, &values}) {
      if (t->raw) bad_format(path + ": layer 0", "elements that are numbers", "U8");
      if (t->shape.size() != 3) bad_format(path + ": layer 0", "shape [tokens, kv_heads, dim]", shown(t->shape));
    }
    shape_ = {keys.dtype, shape_.layers, keys.shape[0], keys.shape[1], keys.shape[2], values.shape[2]};
    for (index_t layer = 0; layer < shape_.layers; ++layer) {
      for (const dkvc::Kind kind : both_kinds) check(layer, kind);
    }
    if (tensors.size() % 2 != 0) {
      bad_format(path, "nothing but the keys and values of " + std::to_string(shape_.layers) + " layers",
                 std::to_string(tensors.size()) + " tensors");
    }
  }

  const KVShape& shape() const { return shape_; }

  /// One layer's keys or values; T is the type of the dump.
  template <class T>
  View<const T, 1> rows(index_t layer, dkvc::Kind kind) const {
    return {reinterpret_cast<const T*>(find(layer, kind).data), shape_.elements(kind)};
  }

 private:
  const Tensor& find(index_t layer, dkvc::Kind kind) const {
    const auto tensor = file_.tensors().find(dump_name(layer, kind));
    if (tensor == file_.tensors().end()) {
      bad_format(file_.path(),
                 "a tensor \"" + dump_name(layer, kind) + "\" among " + std::to_string(file_.tensors().size()), "none");
    }
    return tensor->second;
  }

  void check(index_t layer, dkvc::Kind kind) const {
    const Tensor& t = find(layer, kind);
    const std::string where = file_.path() + ": tensor \"" + dump_name(layer, kind) + "\"";
    if (t.raw || t.dtype != shape_.dtype)
      bad_format(where, decant::name(shape_.dtype), t.raw ? "U8" : decant::name(t.dtype));
    const std::vector<index_t> expected = {shape_.tokens, shape_.kv_heads, shape_.dim(kind)};
    if (t.shape != expected) bad_format(where, "shape " + shown(expected), shown(t.shape));
  }

  SafetensorsFile file_;
  KVShape shape_;
};

/// The entries of a dump of this shape, in the order of DKVC's sections.
inline std::vector<SafetensorsWriter::Entry> dump_entries(const KVShape& shape) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (index_t layer = 0; layer < shape.layers; ++layer) {
    for (const dkvc::Kind kind : both_kinds) {
      entries.push_back({dump_name(layer, kind), shape.dtype, {shape.tokens, shape.kv_heads, shape.dim(kind)}});
    }
  }
  return entries;
}

}  // namespace runtime
