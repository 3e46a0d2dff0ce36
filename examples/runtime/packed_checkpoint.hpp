// Packed matrices in safetensors files: the bytes stand as a U8 tensor under the matrix's name, the format, the shape and
// a checksum in the metadata under "decant.packed.<name>": "int4:grid=zero_point,group=128 128 352 0123456789abcdef".
// Altered or truncated bytes are errors.
#pragma once

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
  if (got != expected) bad_format(where, "bytes with checksum " + expected, got);
  return reader(format, rows, cols, bytes, where);
}

/// Writes `to` as a copy of the checkpoint in which these matrices are packed: all of the file, or none of it.
inline void write_packed(const std::string& to, const Checkpoint& checkpoint,
                         const std::map<std::string, PackedMatrix>& packed) {
  std::vector<SafetensorsWriter::Entry> entries;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  // Numbers first, since they must be aligned; packed bytes may stand anywhere.
  const auto is_kept = [&](const std::string& name) { return packed.count(name) == 0; };
  checkpoint.for_each([&](const std::string& name, const Tensor& tensor) {
    if (is_kept(name)) entries.push_back({name, tensor.dtype, tensor.shape, tensor.raw});
  });
  for (const auto& [name, matrix] : packed) {
    entries.push_back({name, DType::e4m3, {matrix.bytes()}, true});
    metadata[packed_metadata + name] = matrix.format() + " " + std::to_string(matrix.rows()) + " " +
                                       std::to_string(matrix.cols()) + " " + packed_checksum(matrix.data());
  }
  SafetensorsWriter writer(to, entries, metadata);
  checkpoint.for_each([&](const std::string& name, const Tensor& tensor) {
    if (is_kept(name)) writer.add(View<const std::byte, 1>(tensor.data, tensor.bytes));
  });
  for (const auto& [name, matrix] : packed) writer.add(matrix.data());
  writer.commit();
}

}  // namespace runtime
