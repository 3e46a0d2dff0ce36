// SafetensorsWriter: a safetensors file, written piece by piece.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <decant/core/bytes.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/view.hpp>

#include "json.hpp"
#include "output.hpp"

namespace runtime {

using decant::DType;
using decant::index_t;
using decant::View;

/// Writes tensors one after another into a file that appears under its name when it is whole.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<index_t> shape;
    bool raw = false;  // bytes that have no dtype: U8
  };

  SafetensorsWriter(const std::string& path, const std::vector<Entry>& entries,
                    const std::map<std::string, std::string>& metadata = {})
      : file_(path) {
    Json header = Json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    for (const Entry& e : entries) {
      index_t size = e.raw ? 1 : decant::size_of(e.dtype);
      for (const index_t n : e.shape) size *= n;
      header[e.name] = {{"dtype", e.raw ? "U8" : dtype_name(e.dtype)},
                        {"shape", e.shape},
                        {"data_offsets", {end_, end_ + size}}};
      end_ += size;
    }
    std::string text = header.dump();
    text.resize((8 + text.size() + 63) / 64 * 64 - 8,
                ' ');  // so that the first tensor is aligned where the file is mapped
    std::byte length[8];
    decant::store_le(length, std::uint64_t{text.size()});
    file_.write(length, sizeof length);
    file_.write(text.data(), text.size());
  }

  /// The next bytes, in the order of the entries.
  void add(View<const std::byte, 1> bytes) {
    file_.write(bytes.data(), static_cast<std::size_t>(bytes.extent(0)));
    written_ += bytes.extent(0);
  }

  /// All tensors have been added.
  void commit() {
    decant::require_equal(written_, end_, "runtime::SafetensorsWriter::commit", "bytes");
    file_.commit();
  }

 private:
  static const char* dtype_name(DType dtype) {
    constexpr const char* names[] = {"F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"};
    return names[static_cast<int>(dtype)];
  }

  OutputFile file_;
  index_t end_ = 0;
  index_t written_ = 0;
};

}  // namespace runtime
