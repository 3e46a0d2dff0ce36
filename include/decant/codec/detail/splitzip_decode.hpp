// decant: SplitZip's decoder on the CPU, of payloads that splitzip_check.hpp has found right.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_DECODE_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_DECODE_HPP

#include <cstring>

#include "../../core/bytes.hpp"
#include "../../core/cpu.hpp"
#include "splitzip_kernels.hpp"
#include "splitzip_stream.hpp"

namespace decant::codec::detail {

/// Writes a chunk's elements to y. Its side bytes begin at `side`; returns their end.
template <class F, class T>
const std::byte* decode_chunk(const DecodeKernels<T>& kernels, const SplitZipTables& tables, const std::byte* payload,
                              const SplitZipLayout& l, index_t c, const std::byte* side, T* y) {
  const index_t length = l.length(c);
  const unsigned entry = load_le<std::uint16_t>(payload + l.directory + 2 * c);
  const SplitZipPlanes<const std::byte> planes = planes_at<F>(l, payload, c * l.chunk);
  if (splitzip_mode(entry) == splitzip_raw_exponents) {
    kernels.raw(planes, side, length, y);
  } else {
    kernels.coded(tables, planes, length, SplitZipList{side, splitzip_escapes(entry)}, y);
  }
  return side + l.side_bytes(entry, length);
}

/// Where chunk c's side bytes begin.
inline const std::byte* find_side(const std::byte* payload, const SplitZipLayout& l, index_t c) {
  const index_t g = c / splitzip_group;
  const std::byte* side = payload + l.side + static_cast<index_t>(load_le<std::uint64_t>(payload + l.super + 8 * g));
  for (index_t before = g * splitzip_group; before < c; ++before) {
    side += l.side_bytes(load_le<std::uint16_t>(payload + l.directory + 2 * before), l.chunk);
  }
  return side;
}

/// Elements [first, last) of a coded payload, to y[0 ... last - first). stream: around the caches, if the chunks are at
/// lines of y.
template <class F, class T>
void decode_coded(Cpu& cpu, bool stream, const SplitZipTables& tables, const std::byte* payload,
                  const SplitZipLayout& l, index_t first, index_t last, T* y) {
  if (first == last) return;
  const DecodeKernels<T> kernels = decode_kernels<F, T>(cpu.isa(), false);
  const index_t first_chunk = first / l.chunk;
  stream = stream && is_line(y, (first_chunk * l.chunk - first) * index_t{sizeof(T)});
  const DecodeKernels<T> whole_kernels = decode_kernels<F, T>(cpu.isa(), stream);
  const index_t chunks = (last - 1) / l.chunk + 1 - first_chunk;
  cpu.parallel_ranges(chunks, 1 + splitzip_grain / l.chunk, [&](index_t part_first, index_t part_last, index_t) {
    const std::byte* side = find_side(payload, l, first_chunk + part_first);
    for (index_t c = first_chunk + part_first; c < first_chunk + part_last; ++c) {
      const index_t begin = c * l.chunk;
      const index_t end = begin + l.length(c);
      if (begin >= first && end <= last) {
        side = decode_chunk<F>(whole_kernels, tables, payload, l, c, side, y + (begin - first));
        continue;
      }
      T scratch[splitzip_max_chunk];
      side = decode_chunk<F>(kernels, tables, payload, l, c, side, scratch);
      const index_t from = begin < first ? first : begin;
      const index_t until = end < last ? end : last;
      std::memcpy(y + (from - first), scratch + (from - begin), static_cast<std::size_t>(until - from) * sizeof(T));
    }
    if (stream) stream_fence();
  });
}

}  // namespace decant::codec::detail

#endif
