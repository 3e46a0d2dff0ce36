// decant: SplitZip's encoder on CUDA. Three launches, nothing read twice but the chunks with raw exponents:
//   encode   a warp per chunk: codes, rests, directory; escapes to slots of scratch; side bytes of each 8 chunks
//   sum      one block: where each tile's side bytes begin, super entries, header, size, and whether coding gains
//   place    four lanes per chunk: escapes from the slots to the side stream; raw exponents, which need x again, as do
//            chunks with more escapes than slots; or, if coding gains nothing, a copy of x
// Moves 2 + 1.5 bytes per bf16 element, a few dozen bytes per chunk, and 8 bytes more per escape. Where an element goes
// depends on counts alone, so the bytes are the CPU's.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_ENCODE_CUH
#define DECANT_CODEC_DETAIL_SPLITZIP_ENCODE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../../core/bytes.hpp"
#include "copy_bytes.cuh"
#include "splitzip_book.cuh"

namespace decant::codec::detail {

inline constexpr int splitzip_warps = 8;  // chunks, and warps of a block
inline constexpr int splitzip_threads = 32 * splitzip_warps;
inline constexpr int splitzip_blocks = 4;  // on a multiprocessor at once, at least: 64 registers
inline constexpr int splitzip_sum_threads = 1024;

/// A header as a kernel's parameter.
struct PackedHeader {
  std::uint64_t words[splitzip_header_bytes / 8];

  /// Word w, which the compiler need not know.
  __device__ std::uint64_t operator[](index_t w) const {
    std::uint64_t word = 0;
#pragma unroll
    for (int i = 0; i < splitzip_header_bytes / 8; ++i) word = w == i ? words[i] : word;
    return word;
  }
};

/// SplitZipLayout::side_bytes, for a geometry that the compiler knows.
template <class F>
__device__ constexpr int side_bytes_of(unsigned entry, int length) {
  return splitzip_mode(entry) == splitzip_coded ? 3 * static_cast<int>(splitzip_escapes(entry))
                                                : static_cast<int>(field_bytes(F::high_bits, length));
}

/// In the workspace.
struct SplitZipScratch {
  std::uint32_t* escapes;  // [chunks][slots]: position, exponent << 16
  int slots;
  std::uint32_t* tile_bytes;  // side bytes of each tile
  std::uint64_t* tile_side;   // where they begin
  std::uint64_t* len_side;
};

/// A lane's elements, coded. Elements that there are not have code 0.
template <class F, class T>
struct LaneCodes {
  std::uint32_t exponents[lane_quads<T>];
  std::uint32_t codes[lane_quads<T>];
  std::uint32_t rests[lane_quads<T>];
  std::uint32_t escapes = 0;  // bit j: element j has no code

  /// `count`: elements that there are, which may be below 0 or above what a lane holds.
  __device__ LaneCodes(const ExponentCodes<F>& code_of, const std::uint32_t (&words)[4], int count) {
    std::uint32_t odd = 0;
#pragma unroll
    for (int q = 0; q < lane_quads<T>; ++q) {
      split_quad<T>(words, q, exponents[q], rests[q]);
      codes[q] = code_of(exponents[q]);
      odd |= codes[q] & no_code_bits<F>();
    }
    if (odd == 0) return;
#pragma unroll
    for (int q = 0; q < lane_quads<T>; ++q) {
      const std::uint32_t ones = without_code<F>(codes[q]);
      codes[q] &= ~(ones * 0xffu);
      escapes |= quad_mask(ones) << (4 * q);
    }
    if (count < lane_elements<T>) escapes &= count > 0 ? (1u << count) - 1u : 0u;
  }
};

/// Hands a warp's escapes to sink(k, position, exponent), k counting on from `count`, in the order of the elements.
template <class T, class Sink>
__device__ void each_escape(std::uint32_t escapes, const std::uint32_t (&exponents)[lane_quads<T>], int position,
                            int& count, const Sink& sink) {
  if (!__any_sync(::decant::detail::whole_warp, escapes != 0)) return;
  const int own = __popc(escapes);
  const int before = ::decant::detail::warp_scan_before(own);
  int k = count + before;
#pragma unroll
  for (int j = 0; j < lane_elements<T>; ++j) {
    if ((escapes >> j & 1u) != 0) sink(k++, position + j, exponents[j / 4] >> (8 * (j % 4)) & 0xffu);
  }
  count += __shfl_sync(::decant::detail::whole_warp, before + own, 31);
}

/// Escapes to slots; those that find none are only counted.
struct SlotSink {
  std::uint32_t* slots;
  int size;
  __device__ void operator()(int k, int position, std::uint32_t exponent) const {
    if (k < size) slots[k] = static_cast<std::uint32_t>(position) | exponent << 16;
  }
};

/// Escapes to a chunk's side bytes; `escapes`: how many there are.
struct SideSink {
  std::byte* side;
  int escapes;
  __device__ void operator()(int k, int position, std::uint32_t exponent) const {
    side[2 * k] = static_cast<std::byte>(position & 0xff);
    side[2 * k + 1] = static_cast<std::byte>(position >> 8);
    side[2 * escapes + k] = static_cast<std::byte>(exponent);
  }
};

template <class T>
__device__ bool aligned_to_access(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

/// Elements that a warp takes at once, and how many times before it stores the first: 1024 elements in all.
template <class T>
inline constexpr int warp_elements = 32 * lane_elements<T>;
template <class T>
inline constexpr int splitzip_flight = 1024 / warp_elements<T>;

/// A warp codes a chunk; returns its directory entry.
template <class F, class T>
__device__ std::uint16_t encode_chunk_in_warp(const ExponentCodes<F>& code_of, const T* x, const SplitZipLayout& l,
                                              index_t c, std::byte* payload, bool aligned, const SlotSink& sink) {
  const int length = static_cast<int>(l.length(c));
  const int own = static_cast<int>(threadIdx.x % 32) * lane_elements<T>;  // this lane's place
  const index_t begin = c * l.chunk + own;
  const bool wide = aligned_to_access(x);
  const T* const from = x + begin;
  const LanePlace<T, F::code_bits, std::byte> code_place(payload, l.code, begin, aligned);
  const LanePlace<T, F::rest_bits, std::byte> rest_place(payload, l.rest, begin, aligned);
  int count = 0;
  for (int first = 0; first < length; first += splitzip_flight<T> * warp_elements<T>) {
    std::uint32_t words[splitzip_flight<T>][4];
#pragma unroll
    for (int u = 0; u < splitzip_flight<T>; ++u) {
      const int i = first + u * warp_elements<T>;
      load_elements(from + i, length - i - own, wide, words[u]);
    }
#pragma unroll
    for (int u = 0; u < splitzip_flight<T>; ++u) {
      const int i = first + u * warp_elements<T>;
      if (i >= length) break;  // the whole warp
      const LaneCodes<F, T> coded(code_of, words[u], length - i - own);
      each_escape<T>(coded.escapes, coded.exponents, i + own, count, sink);
      if (i + own < length) {
        code_place.store(static_cast<unsigned>(i), LanePlanes<T, F::code_bits>(coded.codes));
        rest_place.store(static_cast<unsigned>(i), LanePlanes<T, F::rest_bits>(coded.rests));
      }
    }
  }
  return splitzip_entry_for(count, field_bytes(F::high_bits, length));
}

template <class F, class T>
__global__ void __launch_bounds__(splitzip_threads, splitzip_blocks)
    splitzip_encode_chunks(const T* x, SplitZipLayout l, PackedBook book, std::byte* payload, SplitZipScratch scratch,
                           const FaultWord* fault) {
  __shared__ std::uint8_t table[256];
  __shared__ std::uint16_t entries[splitzip_warps];
  if (::decant::detail::faulted(fault)) return;
  const ExponentCodes<F> code_of(book, table);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool aligned = reinterpret_cast<std::uintptr_t>(payload) % 8 == 0;
  const index_t tiles = (l.chunks + splitzip_warps - 1) / splitzip_warps;
  for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const index_t own = tile * splitzip_warps + warp;
    if (own < l.chunks) {
      const SlotSink sink{scratch.escapes + own * scratch.slots, scratch.slots};
      const std::uint16_t entry = encode_chunk_in_warp<F>(code_of, x, l, own, payload, aligned, sink);
      if (lane == 0) entries[warp] = entry;
    }
    __syncthreads();
    if (warp == 0) {
      const index_t c = tile * splitzip_warps + lane;
      unsigned bytes = 0;
      if (lane < splitzip_warps && c < l.chunks) {
        store_bits<2>(payload + l.directory + 2 * c, entries[lane], aligned);
        bytes = static_cast<unsigned>(side_bytes_of<F>(entries[lane], static_cast<int>(l.length(c))));
      }
      bytes = ::decant::detail::warp_reduce<splitzip_warps>(bytes, ::decant::detail::Plus{});
      if (lane == 0) scratch.tile_bytes[tile] = bytes;
    }
    __syncthreads();
  }
}

/// Zeros from the plane's end on.
template <int FieldBits>
__device__ void pad_planes(std::byte* payload, const index_t (&planes)[2], index_t n) {
#pragma unroll
  for (int p = 0; p < plane_count(FieldBits); ++p) {
    const index_t bytes = plane_bytes(plane_width(FieldBits, p), n);
    const index_t at = bytes + threadIdx.x;
    if (at < align_64(bytes)) payload[planes[p] + at] = std::byte{0};
  }
}

/// One block. Headers: of the coded payload, without len_side, and of the raw one.
template <class F>
__global__ void __launch_bounds__(splitzip_sum_threads)
    splitzip_sum_tiles(SplitZipLayout l, SplitZipScratch scratch, PackedHeader coded, PackedHeader raw,
                       std::byte* payload, index_t* size, const FaultWord* fault) {
  __shared__ std::uint64_t shared[32];
  if (::decant::detail::faulted(fault)) return;
  const index_t tiles = (l.chunks + splitzip_warps - 1) / splitzip_warps;
  const index_t each = (tiles + splitzip_sum_threads - 1) / splitzip_sum_threads;
  const index_t first = each * threadIdx.x < tiles ? each * threadIdx.x : tiles;
  const index_t last = first + each < tiles ? first + each : tiles;
  std::uint64_t own = 0;
#pragma unroll 8
  for (index_t t = first; t < last; ++t) own += scratch.tile_bytes[t];
  std::uint64_t len_side = 0;
  std::uint64_t before = ::decant::detail::block_scan_before(own, len_side, shared);
  const index_t bytes = l.side + static_cast<index_t>(len_side);
  const bool is_coded = bytes < l.raw_bytes;
#pragma unroll 8
  for (index_t t = first; t < last; ++t) {
    constexpr index_t tiles_of_group = splitzip_group / splitzip_warps;
    scratch.tile_side[t] = before;
    if (is_coded && t % tiles_of_group == 0)
      store_le<std::uint64_t>(payload + l.super + 8 * (t / tiles_of_group), before);
    before += scratch.tile_bytes[t];
  }
  if (threadIdx.x < splitzip_header_bytes / 8) {
    const bool is_length = is_coded && threadIdx.x == SplitZipHeader::len_side / 8;
    const std::uint64_t word = is_coded ? coded[threadIdx.x] : raw[threadIdx.x];
    store_le<std::uint64_t>(payload + 8 * threadIdx.x, is_length ? len_side : word);
  }
  if (threadIdx.x == 0) {
    *scratch.len_side = len_side;
    *size = is_coded ? bytes : l.raw_bytes;
  }
  if (!is_coded) return;
  pad_planes<F::code_bits>(payload, l.code, l.n);
  pad_planes<F::rest_bits>(payload, l.rest, l.n);
  const index_t directory_end = l.directory + 2 * l.chunks + threadIdx.x;
  if (directory_end < l.super) payload[directory_end] = std::byte{0};
  const index_t super_end = l.super + 8 * l.groups + threadIdx.x;
  if (super_end < l.side) payload[super_end] = std::byte{0};
}

/// A warp writes a chunk's side bytes from x: all escapes, or raw exponents, whose low bits replace the codes.
template <class F, class T>
__device__ void place_from_elements(const ExponentCodes<F>& code_of, const T* x, const SplitZipLayout& l, index_t c,
                                    unsigned entry, std::byte* side, std::byte* payload, bool aligned) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int length = static_cast<int>(l.length(c));
  const index_t begin = c * l.chunk;
  const bool wide = aligned_to_access(x);
  const bool raw = splitzip_mode(entry) == splitzip_raw_exponents;
  const SideSink sink{side, static_cast<int>(splitzip_escapes(entry))};
  const LanePlace<T, F::code_bits, std::byte> code_place(payload, l.code, begin + lane * lane_elements<T>, aligned);
  int count = 0;
  for (int first = 0; first < length; first += warp_elements<T>) {
    const int i = first + lane * lane_elements<T>;
    std::uint32_t words[4];
    load_elements(x + begin + i, length - i, wide, words);
    if (raw) {
      std::uint32_t low[lane_quads<T>], high[lane_quads<T>];
#pragma unroll
      for (int q = 0; q < lane_quads<T>; ++q) {
        std::uint32_t exponents = 0, rests = 0;
        split_quad<T>(words, q, exponents, rests);
        low[q] = exponents & ~no_code_bits<F>();
        high[q] = exponents >> F::code_bits & each_byte((1u << F::high_bits) - 1u);
      }
      if (i < length) {
        code_place.store(static_cast<unsigned>(first), LanePlanes<T, F::code_bits>(low));
        store_high_bits<F, T>(side, i, length, high);
      }
    } else {
      const LaneCodes<F, T> coded(code_of, words, length - i);
      each_escape<T>(coded.escapes, coded.exponents, i, count, sink);
    }
  }
}

template <class F, class T>
__global__ void __launch_bounds__(splitzip_threads, splitzip_blocks)
    splitzip_place_sides(const T* x, SplitZipLayout l, PackedBook book, std::byte* payload, SplitZipScratch scratch,
                         const FaultWord* fault) {
  __shared__ std::uint8_t table[256];
  if (::decant::detail::faulted(fault)) return;
  const index_t tiles = (l.chunks + splitzip_warps - 1) / splitzip_warps;
  const index_t warp = index_t{blockIdx.x} * splitzip_warps + threadIdx.x / 32;
  const index_t warps = index_t{gridDim.x} * splitzip_warps;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (l.side + static_cast<index_t>(*scratch.len_side) >= l.raw_bytes) {
    return copy_bytes(reinterpret_cast<const std::byte*>(x), payload + splitzip_header_bytes, l.n * index_t{sizeof(T)},
                      32 * warp + lane, 32 * warps);
  }
  const ExponentCodes<F> code_of(book, table);
  const bool aligned = reinterpret_cast<std::uintptr_t>(payload) % 8 == 0;
  constexpr int lanes_each = 32 / splitzip_warps;
  for (index_t tile = warp; tile < tiles; tile += warps) {
    const index_t own = tile * splitzip_warps + lane;  // of the first lanes
    const bool has = lane < splitzip_warps && own < l.chunks;
    const unsigned entry = has ? static_cast<unsigned>(load_bits<2>(payload + l.directory + 2 * own, aligned)) : 0;
    const int bytes = has ? side_bytes_of<F>(entry, static_cast<int>(l.length(own))) : 0;
    const int before = ::decant::detail::warp_scan_before(bytes);
    std::byte* const side = payload + l.side + scratch.tile_side[tile];

    const int k_chunk = lane / lanes_each;
    const unsigned k_entry = __shfl_sync(::decant::detail::whole_warp, entry, k_chunk);
    const int k_before = __shfl_sync(::decant::detail::whole_warp, before, k_chunk);
    const int escapes = static_cast<int>(splitzip_escapes(k_entry));  // 0 where exponents are raw
    if (escapes <= scratch.slots) {
      const SideSink sink{side + k_before, escapes};
      const std::uint32_t* const slots = scratch.escapes + (tile * splitzip_warps + k_chunk) * scratch.slots;
      for (int k = lane % lanes_each; k < escapes; k += lanes_each) {
        sink(k, static_cast<int>(slots[k] & 0xffffu), slots[k] >> 16);
      }
    }

    const bool again =
        splitzip_mode(entry) == splitzip_raw_exponents || static_cast<int>(splitzip_escapes(entry)) > scratch.slots;
    unsigned rest = __ballot_sync(::decant::detail::whole_warp, has && again);
    for (; rest != 0; rest &= rest - 1) {
      const int which = __ffs(static_cast<int>(rest)) - 1;
      const unsigned of_it = __shfl_sync(::decant::detail::whole_warp, entry, which);
      const int at = __shfl_sync(::decant::detail::whole_warp, before, which);
      place_from_elements<F>(code_of, x, l, tile * splitzip_warps + which, of_it, side + at, payload, aligned);
    }
  }
}

/// A raw payload. The whole grid.
template <class T>
__global__ void __launch_bounds__(copy_threads)
    splitzip_store_raw(const T* x, index_t n, PackedHeader header, std::byte* payload, index_t* size,
                       const FaultWord* fault) {
  if (::decant::detail::faulted(fault)) return;
  const index_t at = index_t{blockIdx.x} * copy_threads + threadIdx.x;
  const index_t bytes = n * index_t{sizeof(T)};
  copy_bytes(reinterpret_cast<const std::byte*>(x), payload + splitzip_header_bytes, bytes, at,
             index_t{gridDim.x} * copy_threads);
  if (at < splitzip_header_bytes / 8) store_le<std::uint64_t>(payload + 8 * at, header[at]);
  if (at == 0) *size = splitzip_header_bytes + bytes;
}

}  // namespace decant::codec::detail

#endif
