// decant: SplitZip's encoder on the CPU: chunk by chunk, parts of the chunks on as many threads as the context has.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_ENCODE_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_ENCODE_HPP

#include <cstring>

#include "../../core/bytes.hpp"
#include "../../core/cpu.hpp"
#include "splitzip_kernels.hpp"
#include "splitzip_stream.hpp"

namespace decant::codec::detail {

/// Writes a chunk's escapes to its side bytes.
inline void store_escapes(const SplitZipEscapes& escapes, std::byte* side) {
  for (index_t k = 0; k < escapes.count; ++k) store_le<std::uint16_t>(side + 2 * k, escapes.position[k]);
  for (index_t k = 0; k < escapes.count; ++k) side[2 * escapes.count + k] = static_cast<std::byte>(escapes.exponent[k]);
}

/// One chunk of `length` elements; writes its directory entry and returns its side bytes.
template <class F, class T>
index_t encode_chunk(const EncodeKernels<T>& kernels, const SplitZipTables& tables, const T* x, index_t length,
                     index_t raw_side, const SplitZipPlanes<std::byte>& planes, SplitZipEscapes& escapes,
                     std::byte* entry_at, std::byte* side) {
  escapes.count = 0;
  kernels.coded(tables, x, length, planes, escapes, raw_side / 3);
  const std::uint16_t entry = splitzip_entry_for(escapes.count, raw_side);
  store_le<std::uint16_t>(entry_at, entry);
  if (splitzip_mode(entry) == splitzip_coded) {
    store_escapes(escapes, side);
    return 3 * escapes.count;
  }
  kernels.raw(x, length, planes, side);
  return raw_side;
}

/// Chunks [first, last), their side bytes one after another from `side` on.
template <class F, class T>
void encode_chunks(const EncodeKernels<T>& kernels, const SplitZipTables& tables, const T* x, const SplitZipLayout& l,
                   index_t first, index_t last, std::byte* payload, std::byte* side) {
  const index_t raw_side = l.raw_side(l.chunk);
  SplitZipEscapes escapes;
  for (index_t c = first; c < last; ++c) {
    const index_t length = l.length(c);
    side += encode_chunk<F>(kernels, tables, x + c * l.chunk, length, length == l.chunk ? raw_side : l.raw_side(length),
                            planes_at<F>(l, payload, c * l.chunk), escapes, payload + l.directory + 2 * c, side);
  }
}

/// Writes all of a coded payload but the header; returns its size. Room for l.worst_bytes(), as each part of the chunks
/// first puts its side bytes where they would be if all before them were as large as can be. stream: around the caches,
/// if the payload is at a line.
template <class F, class T>
index_t encode_coded(Cpu& cpu, bool stream, const SplitZipTables& tables, const T* x, const SplitZipLayout& l,
                     std::byte* payload) {
  each_plane<F>(l, [&](index_t offset, int width) {
    const index_t bytes = plane_bytes(width, l.n);
    std::memset(payload + offset + bytes, 0, static_cast<std::size_t>(align_64(bytes) - bytes));
  });
  stream = stream && is_line(payload);
  const EncodeKernels<T> kernels = encode_kernels<F, T>(cpu.isa(), stream);
  const index_t grain = 1 + splitzip_grain / l.chunk;
  cpu.parallel_ranges(l.chunks, grain, [&](index_t first, index_t last, index_t) {
    encode_chunks<F>(kernels, tables, x, l, first, last, payload, payload + l.side + l.worst_side(first));
    if (stream) stream_fence();
  });

  // Close the gaps between the parts. What moves goes down, so ascending order never overwrites what is still to move.
  const index_t parts = cpu.parts(l.chunks, grain);
  index_t side_at = 0;
  for (index_t part = 0; part < parts; ++part) {
    const index_t first = l.chunks * part / parts;  // as parallel_ranges splits
    const index_t last = l.chunks * (part + 1) / parts;
    index_t bytes = 0;
    for (index_t c = first; c < last; ++c) {
      if (c % splitzip_group == 0) {
        store_le<std::uint64_t>(payload + l.super + c / splitzip_group * 8,
                                static_cast<std::uint64_t>(side_at + bytes));
      }
      bytes += l.side_bytes(load_le<std::uint16_t>(payload + l.directory + 2 * c), l.length(c));
    }
    std::memmove(payload + l.side + side_at, payload + l.side + l.worst_side(first), static_cast<std::size_t>(bytes));
    side_at += bytes;
  }
  std::memset(payload + l.directory + 2 * l.chunks, 0, static_cast<std::size_t>(l.super - l.directory - 2 * l.chunks));
  std::memset(payload + l.super + 8 * l.groups, 0, static_cast<std::size_t>(l.side - l.super - 8 * l.groups));
  return l.side + side_at;
}

/// The header of a payload of these parts; a raw one has no book.
inline void store_header(const SplitZipLayout& l, const Codebook& book, index_t len_side, std::byte* payload) {
  using H = SplitZipHeader;
  std::memset(payload, 0, static_cast<std::size_t>(splitzip_header_bytes));
  store_le<std::uint32_t>(payload + H::chunk, static_cast<std::uint32_t>(l.chunk));
  payload[H::code_bits] = static_cast<std::byte>(book.code_bits);
  for (int c = 0; c < 16; ++c) payload[H::codebook + c] = static_cast<std::byte>(book.exponents[c]);
  store_le<std::uint64_t>(payload + H::n, static_cast<std::uint64_t>(l.n));
  store_le<std::uint64_t>(payload + H::len_code, static_cast<std::uint64_t>(l.len_code));
  store_le<std::uint64_t>(payload + H::len_rest, static_cast<std::uint64_t>(l.len_rest));
  store_le<std::uint64_t>(payload + H::len_side, static_cast<std::uint64_t>(len_side));
}

}  // namespace decant::codec::detail

#endif
