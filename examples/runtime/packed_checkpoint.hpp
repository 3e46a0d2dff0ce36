// Packed matrices in safetensors files: the bytes stand as a U8 tensor under the matrix's name, the format, the shape
// and a checksum in the metadata under "decant.packed.<name>": "int4:grid=zero_point,group=128 128 352
// 0123456789abcdef". Altered or truncated bytes are errors.
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <decant/codec/xxh3.hpp>

#include "packed_matrix.hpp"
#include "safetensors.hpp"
#include "safetensors_writer.hpp"

namespace runtime {

inline const char* const packed_metadata = "decant.packed.";

inline std::string packed_checksum(View<const std::byte, 1> bytes) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, decant::codec::xxh3_64(bytes));
  return text;
}

/// The packed matrix of this name, if the checkpoint has one; FormatError unless it is whole and has this shape, or
/// without a reader.
inline std::optional<PackedMatrix> find_packed(const Checkpoint& checkpoint, const std::string& name, index_t rows,
                                               index_t cols, PackedReader reader) {
  const std::string* const entry = checkpoint.metadata(packed_metadata + name);
  if (!entry) return std::nullopt;
  const std::string where = "tensor \"" + name + "\"";
  if (!reader) bad_format(where, "weights that this program reads: F32, F16 or BF16", "packed ones");
  const std::size_t space = entry->find(' ');
  const std::string shape = " " + std::to_string(rows) + " " + std::to_string(cols) + " ";
  if (space == std::string::npos || entry->size() != space + shape.size() + 16 ||
      entry->compare(space, shape.size(), shape) != 0) {
    bad_format(where + ": metadata", "a format, the shape" + shape + "and a checksum", shown(Json(*entry)));
  }
  const std::string format = entry->substr(0, space);
  const Tensor& tensor = checkpoint.get(name);
  if (!tensor.raw) bad_format(where, "packed bytes in U8", decant::name(tensor.dtype));
  const View<const std::byte, 1> bytes(tensor.data, tensor.bytes);
  const std::string expected = entry->substr(entry->size() - 16);
  const std::string got = packed_checksum(bytes);
  if (got != expected) bad_format(where, "bytes with checksum " + shown(Json(expected)), got);
  return reader(format, rows, cols, bytes, where);
}

/// Writes `to` as a copy of the checkpoint in which these matrices are packed: all of the file, or none of it. What is
/// packed in the checkpoint already, and not here, stays as it is.
inline void write_packed(const std::string& to, const Checkpoint& checkpoint,
                         const std::map<std::string, PackedMatrix>& packed) {
  struct Stored {
    SafetensorsWriter::Entry entry;
    View<const std::byte, 1> bytes;
    index_t alignment() const { return entry.raw ? 0 : decant::size_of(entry.dtype); }
  };
  std::vector<Stored> stored;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  checkpoint.for_each([&](const std::string& name, const Tensor& tensor) {
    if (packed.count(name) != 0) return;
    stored.push_back(
        {{name, tensor.dtype, tensor.shape, tensor.raw}, View<const std::byte, 1>(tensor.data, tensor.bytes)});
    if (const std::string* const entry = checkpoint.metadata(packed_metadata + name))
      metadata[packed_metadata + name] = *entry;
  });
  for (const auto& [name, matrix] : packed) {
    stored.push_back({{name, DType::e4m3, {matrix.bytes()}, true}, matrix.data()});
    metadata[packed_metadata + name] = matrix.format() + " " + std::to_string(matrix.rows()) + " " +
                                       std::to_string(matrix.cols()) + " " + packed_checksum(matrix.data());
  }
  // Wide numbers first, since they must be aligned; packed bytes may stand anywhere.
  std::stable_sort(stored.begin(), stored.end(),
                   [](const Stored& a, const Stored& b) { return a.alignment() > b.alignment(); });
  std::vector<SafetensorsWriter::Entry> entries;
  for (const Stored& s : stored) entries.push_back(s.entry);
  SafetensorsWriter writer(to, entries, metadata);
  for (const Stored& s : stored) writer.add(s.bytes);
  writer.commit();
}

}  // namespace runtime
