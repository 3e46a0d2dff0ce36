// Reads the safetensors format by memory mapping: 8 bytes of header length, a JSON header that names each tensor's
// dtype, shape and byte range, then the bytes. Every byte of the header is treated as hostile: what a tensor says of
// itself is checked against the file before anyone can follow it. Checkpoint: the one or several files of a model
// folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <decant/core/bytes.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/view.hpp>

#include "json.hpp"
#include "mapped_file.hpp"

namespace runtime {

using decant::DType;
using decant::index_t;

/// A tensor as it lies in the file, row-major.
struct Tensor {
  DType dtype = DType::f32;
  bool raw = false;  // U8: bytes whose meaning stands elsewhere; dtype says nothing
  std::vector<index_t> shape;
  const std::byte* data = nullptr;
  index_t bytes = 0;
};

inline std::string shown(const std::vector<index_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

/// One safetensors file.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path) : path_(path), file_(map_file(path)) {
    const JsonObject header = read_header();
    for (const auto& [name, entry] : header.json().items()) {
      if (name == "__metadata__")
        read_metadata(entry);
      else
        tensors_.emplace(name, read_entry(name, entry));
    }
    check_cover();
  }

  const std::string& path() const { return path_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  static constexpr std::uint64_t max_header = 100'000'000;  // the reference implementation's limit

  JsonObject read_header() {
    const std::byte* const bytes = file_.bytes().data();
    const auto size = static_cast<std::size_t>(file_.bytes().extent(0));
    if (size < 8) bad_format(path_, "at least 8 bytes", std::to_string(size));
    const auto length = decant::load_le<std::uint64_t>(bytes);
    const std::uint64_t room = std::min<std::uint64_t>(size - 8, max_header);
    if (length > room) {
      bad_format(path_ + ": header length", "at most " + std::to_string(room) + " bytes", std::to_string(length));
    }
    const char* text = reinterpret_cast<const char*>(bytes) + 8;
    body_ = bytes + 8 + length;
    body_bytes_ = static_cast<index_t>(size - 8 - length);
    const std::string where = path_ + ": header";
    return {parse_object({text, static_cast<std::size_t>(length)}, where), where};
  }

  std::string named(const std::string& tensor) const { return path_ + ": tensor " + runtime::shown(Json(tensor)); }

  void read_metadata(const Json& entry) {
    bool ok = entry.is_object();
    for (auto it = entry.begin(); ok && it != entry.end(); ++it) ok = it->is_string();
    if (!ok) bad_format(path_ + ": __metadata__", "an object of strings", runtime::shown(entry));
    for (const auto& [name, value] : entry.items()) metadata_.emplace(name, value.get<std::string>());
  }

  Tensor read_entry(const std::string& name, const Json& json) const {
    if (!json.is_object()) bad_format(named(name), "an object", runtime::shown(json));
    const JsonObject entry(json, named(name));
    Tensor tensor;
    tensor.raw = entry.string("dtype") == "U8";
    tensor.dtype = tensor.raw ? DType::e4m3 : parse_dtype(entry);
    index_t elements = 1;
    for (const Json& extent : array(entry, "shape")) {
      const index_t n = whole(entry, "shape", extent);
      if (__builtin_mul_overflow(elements, n, &elements)) entry.bad("shape", "a product below 2^63", json["shape"]);
      tensor.shape.push_back(n);
    }
    index_t bytes = 0;
    if (__builtin_mul_overflow(elements, decant::size_of(tensor.dtype), &bytes)) {
      entry.bad("shape", "fewer than 2^63 bytes", json["shape"]);
    }
    const Json& offsets = array(entry, "data_offsets");
    if (offsets.size() != 2) entry.bad("data_offsets", "two offsets", offsets);
    const index_t begin = whole(entry, "data_offsets", offsets[0]);
    const index_t end = whole(entry, "data_offsets", offsets[1]);
    if (begin > end || end > body_bytes_) {
      entry.bad("data_offsets", "an ascending pair up to the " + std::to_string(body_bytes_) + " bytes that follow",
                offsets);
    }
    if (end - begin != bytes) {
      entry.bad("data_offsets", std::to_string(bytes) + " bytes for shape " + runtime::shown(tensor.shape), offsets);
    }
    tensor.data = body_ + begin;
    tensor.bytes = bytes;
    // Elements are read in place, so they must stand where the processor may read them; writers pad the header for
    // that.
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(decant::size_of(tensor.dtype))) {
      entry.bad("data_offsets", "data aligned to its element size (save the file anew)", offsets);
    }
    return tensor;
  }

  static DType parse_dtype(const JsonObject& entry) {
    const std::string text = entry.string("dtype");
    if (text == "F32") return DType::f32;
    if (text == "F16") return DType::f16;
    if (text == "BF16") return DType::bf16;
    if (text == "F8_E4M3") return DType::e4m3;
    if (text == "F8_E5M2") return DType::e5m2;
    entry.bad("dtype", "F32, F16, BF16, F8_E4M3, F8_E5M2 or U8", text);
  }

  static const Json& array(const JsonObject& entry, const char* name) {
    const auto it = entry.json().find(name);
    if (it == entry.json().end()) bad_format(entry.where() + ": \"" + name + "\"", "an array", "nothing");
    if (!it->is_array()) entry.bad(name, "an array", *it);
    return *it;
  }

  static index_t whole(const JsonObject& entry, const char* name, const Json& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
      entry.bad(name, "whole numbers of at least 0", value);
    }
    return value.get<index_t>();
  }

  /// The tensors must cover the bytes exactly: no overlap, no hole, nothing left.
  void check_cover() const {
    std::vector<std::pair<const std::byte*, const std::string*>> order;
    for (const auto& [name, tensor] : tensors_) order.emplace_back(tensor.data, &name);
    std::sort(order.begin(), order.end(), [this](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : tensors_.at(*a.second).bytes < tensors_.at(*b.second).bytes;
    });
    const std::byte* expected = body_;
    for (const auto& [data, name] : order) {
      if (data != expected) {
        bad_format(named(*name),
                   "data at offset " + std::to_string(expected - body_) + ", where the one before it ends",
                   std::to_string(data - body_));
      }
      expected = data + tensors_.at(*name).bytes;
    }
    if (expected != body_ + body_bytes_) {
      bad_format(path_, std::to_string(expected - body_) + " bytes of tensors", std::to_string(body_bytes_));
    }
  }

  std::string path_;
  MappedFile file_;
  const std::byte* body_ = nullptr;
  index_t body_bytes_ = 0;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// All tensors of a model folder: model.safetensors, or the shards that model.safetensors.index.json names.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder) : folder_(folder) {
    const std::string index = folder + "/model.safetensors.index.json";
    if (::access(index.c_str(), F_OK) == 0)
      open_shards(JsonObject::from_file(index));
    else
      files_.emplace("model.safetensors", SafetensorsFile(folder + "/model.safetensors"));
    for (const auto& [name, file] : files_) {
      for (const auto& [tensor, where] : file.tensors()) {
        if (!owners_.emplace(tensor, &file).second) {
          bad_format(file.path() + ": tensor " + runtime::shown(Json(tensor)), "every tensor in one file",
                     "it is also in " + owners_.at(tensor)->path());
        }
      }
    }
  }

  bool contains(const std::string& name) const { return owners_.count(name) != 0; }

  /// What the files' metadata say of this name, or nothing.
  const std::string* metadata(const std::string& name) const {
    for (const auto& [file, contents] : files_) {
      const auto found = contents.metadata().find(name);
      if (found != contents.metadata().end()) return &found->second;
    }
    return nullptr;
  }

  /// f(name, tensor) for all tensors, by name.
  template <class F>
  void for_each(F&& f) const {
    for (const auto& [name, file] : owners_) f(name, file->tensors().at(name));
  }

  /// The tensor, which must be there.
  const Tensor& get(const std::string& name) const {
    if (!contains(name)) bad_format(folder_ + ": tensor \"" + name + "\"", "a tensor", "nothing");
    return owners_.at(name)->tensors().at(name);
  }

  /// The tensor, which must be there and have this shape.
  const Tensor& get(const std::string& name, const std::vector<index_t>& shape) const {
    if (!contains(name)) bad_format(folder_ + ": tensor \"" + name + "\"", "shape " + runtime::shown(shape), "nothing");
    const Tensor& tensor = get(name);
    if (tensor.shape != shape) {
      bad_format(owners_.at(name)->path() + ": tensor \"" + name + "\"", "shape " + runtime::shown(shape),
                 runtime::shown(tensor.shape));
    }
    return tensor;
  }

 private:
  void open_shards(const JsonObject& index) {
    const JsonObject map = index.object("weight_map");
    for (const auto& [tensor, shard] : map.json().items()) {
      const std::string where = map.where() + ": " + runtime::shown(Json(tensor));
      const bool plain = shard.is_string() && is_plain_file_name(shard.get_ref<const std::string&>());
      if (!plain) bad_format(where, "the name of a file in the same folder", runtime::shown(shard));
      const auto& name = shard.get_ref<const std::string&>();
      if (files_.count(name) == 0) files_.emplace(name, SafetensorsFile(folder_ + "/" + name));
      if (files_.at(name).tensors().count(tensor) == 0)
        bad_format(where, "a tensor of " + name, "no such tensor there");
    }
  }

  static bool is_plain_file_name(const std::string& name) {
    return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos &&
           name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
  }

  std::string folder_;
  std::map<std::string, SafetensorsFile> files_;
  std::map<std::string, const SafetensorsFile*> owners_;
};

}  // namespace runtime
