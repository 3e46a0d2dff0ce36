// decant: SplitZip's decoder on CUDA, of payloads that detail/splitzip_check.cuh has found right. A warp per chunk;
// escapes and raw exponents are put in place before the elements are stored, so that each is stored once. Moves 1.5 + 2
// bytes per bf16 element, 24 bytes per chunk and 3 per escape.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_DECODE_CUH
#define DECANT_CODEC_DETAIL_SPLITZIP_DECODE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "splitzip_check.cuh"

namespace decant::codec::detail {

/// A chunk's escapes, 32 at a time in the lanes of a warp, as the warp comes by their positions.
class EscapeReader {
 public:
  __device__ EscapeReader(const std::byte* side, int escapes) : side_(side), escapes_(escapes) { load(); }

  /// The exponents of the warp's elements, [first, first + warp_elements<T>) of the chunk, with the escaped ones in
  /// place. `shared`: warp_elements<T> bytes of this warp's own.
  template <class T>
  __device__ void apply(int first, std::uint32_t (&exponents)[lane_quads<T>], std::uint8_t* shared) {
    using Own = ::decant::detail::Pack<std::uint32_t, lane_quads<T>>;
    Own* const own = reinterpret_cast<Own*>(shared) + threadIdx.x % 32;
    bool any = false;
    for (;;) {
      const bool here = position_ >= first && position_ < first + warp_elements<T>;
      const unsigned which = __ballot_sync(::decant::detail::whole_warp, here);
      if (which == 0) break;
      if (!any) {
#pragma unroll
        for (int q = 0; q < lane_quads<T>; ++q) own->at[q] = exponents[q];
        __syncwarp();
        any = true;
      }
      if (here) shared[position_ - first] = exponent_;
      if (which >> 31 == 0 || base_ + 32 >= escapes_) break;  // the last lane's escape is not here, or the last of all
      base_ += 32;
      load();
    }
    if (!any) return;
    __syncwarp();
#pragma unroll
    for (int q = 0; q < lane_quads<T>; ++q) exponents[q] = own->at[q];
    __syncwarp();
  }

 private:
  __device__ void load() {
    const int k = base_ + static_cast<int>(threadIdx.x % 32);
    position_ = 0x7fffffff;
    if (k >= escapes_) return;
    position_ = load_le<std::uint16_t>(side_ + 2 * k);
    exponent_ = static_cast<std::uint8_t>(side_[2 * escapes_ + k]);
  }

  const std::byte* side_;
  int escapes_;
  int base_ = 0;
  int position_ = 0;
  std::uint8_t exponent_ = 0;
};

/// A lane's elements to y, of which [begin, end) are wanted. `aligned`: y + i to 16 bytes.
template <class T>
__device__ void store_elements(const std::uint32_t (&words)[4], T* y, int begin, int end, bool aligned) {
  constexpr int per_word = lane_elements<T> / 4;
  if (aligned && begin <= 0 && end >= lane_elements<T>) {
    // Not an assignment: that may become four stores.
    __stwb(reinterpret_cast<uint4*>(y), make_uint4(words[0], words[1], words[2], words[3]));
    return;
  }
#pragma unroll
  for (int j = 0; j < lane_elements<T>; ++j) {
    if (j < begin || j >= end) continue;
    y[j].bits = static_cast<decltype(y[j].bits)>(words[j / per_word] >> (32 / per_word * (j % per_word)));
  }
}

/// What of a layout decoding needs. An offset has two registers: few are kept.
struct SplitZipParts {
  index_t code[2];
  index_t rest[2];
  index_t directory;
  index_t side;
  index_t n;
  int chunk;

  __device__ explicit SplitZipParts(const SplitZipLayout& l)
      : code{l.code[0], l.code[1]},
        rest{l.rest[0], l.rest[1]},
        directory(l.directory),
        side(l.side),
        n(l.n),
        chunk(static_cast<int>(l.chunk)) {}

  /// Elements of chunk c, none behind the last.
  __device__ int length(index_t c) const {
    const index_t left = n - c * chunk;
    return left < chunk ? left > 0 ? static_cast<int>(left) : 0 : chunk;
  }
};

/// A warp decodes chunk c; element i of the payload is y[i - range.first].
template <class F, class T>
__device__ void decode_chunk_in_warp(const CodeExponents<F>& exponent_of, const std::byte* payload,
                                     const SplitZipParts& l, index_t c, unsigned entry, const std::byte* side,
                                     const SplitZipRange& range, T* y, bool aligned, std::uint8_t* shared) {
  const int length = l.length(c);
  const int own = static_cast<int>(threadIdx.x % 32) * lane_elements<T>;  // this lane's place
  const index_t begin = c * l.chunk;
  // The wanted part of the chunk, from this lane's place.
  const int wanted = (range.first > begin ? static_cast<int>(range.first - begin) : 0) - own;
  const int until = (range.last < begin + length ? static_cast<int>(range.last - begin) : length) - own;
  T* const to = y + (begin + own - range.first);
  const bool wide = reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  const bool raw = splitzip_mode(entry) == splitzip_raw_exponents;
  const LanePlace<T, F::code_bits, const std::byte> code_place(payload, l.code, begin + own, aligned);
  const LanePlace<T, F::rest_bits, const std::byte> rest_place(payload, l.rest, begin + own, aligned);
  EscapeReader escapes(side, raw ? 0 : static_cast<int>(splitzip_escapes(entry)));
  for (int first = 0; first < length; first += splitzip_flight<T> * warp_elements<T>) {
    LanePlanes<T, F::code_bits> codes[splitzip_flight<T>];
    LanePlanes<T, F::rest_bits> rests[splitzip_flight<T>];
#pragma unroll
    for (int u = 0; u < splitzip_flight<T>; ++u) {
      const int i = first + u * warp_elements<T>;
      if (i + own >= length) continue;
      codes[u] = code_place.load(static_cast<unsigned>(i));
      rests[u] = rest_place.load(static_cast<unsigned>(i));
    }
#pragma unroll
    for (int u = 0; u < splitzip_flight<T>; ++u) {
      const int i = first + u * warp_elements<T>;
      if (i >= length) break;  // the whole warp
      std::uint32_t exponents[lane_quads<T>], rest[lane_quads<T>], words[4];
      codes[u].unpack(exponents);
      rests[u].unpack(rest);
      if (raw) {
        std::uint32_t high[lane_quads<T>];
        load_high_bits<F, T>(side, i + own, length, high);
#pragma unroll
        for (int q = 0; q < lane_quads<T>; ++q) exponents[q] |= high[q] << F::code_bits;
      } else {
#pragma unroll
        for (int q = 0; q < lane_quads<T>; ++q) exponents[q] = exponent_of(exponents[q]);
        escapes.apply<T>(i, exponents, shared);
      }
#pragma unroll
      for (int q = 0; q < lane_quads<T>; ++q) join_quad<T>(exponents[q], rest[q], q, words);
      store_elements(words, to + i, wanted - i, until - i, wide);
    }
  }
}

/// Blocks on a multiprocessor at once, at least: bf16 with 3-bit codes needs more than 64 registers.
template <class F>
inline constexpr int decode_blocks = F::width == 16 && F::code_bits == 3 ? 3 : splitzip_blocks;

/// A block per tile, from the range's first one on. l: known to the host, unless range.n is -1.
template <class F, class T>
__global__ void __launch_bounds__(splitzip_threads, decode_blocks<F>)
    splitzip_decode_chunks(const std::byte* in, PackedBook book, SplitZipRange range, SplitZipLayout l,
                           const std::uint64_t* tile_sides, T* y, const FaultWord* fault) {
  __shared__ alignas(16) std::uint8_t shared[splitzip_warps][warp_elements<T>];
  if (::decant::detail::faulted(fault)) return;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (in[SplitZipHeader::code_bits] == std::byte{0}) {
    const std::byte* const from = in + splitzip_header_bytes + range.first * index_t{sizeof(T)};
    return copy_bytes(from, reinterpret_cast<std::byte*>(y), (range.last - range.first) * index_t{sizeof(T)},
                      index_t{blockIdx.x} * splitzip_threads + threadIdx.x, index_t{gridDim.x} * splitzip_threads);
  }
  SplitZipParts parts(l);
  if (range.n < 0) {
    const auto n = static_cast<index_t>(load_le<std::uint64_t>(in + SplitZipHeader::n));
    parts = SplitZipParts(splitzip_layout<T>(n, l.chunk, F::code_bits));
  }
  const CodeExponents<F> exponent_of(book);
  const bool aligned = reinterpret_cast<std::uintptr_t>(in) % 8 == 0;
  const index_t first_group = range.first / (splitzip_group * l.chunk);
  const index_t last_chunk = (range.last - 1) / l.chunk;  // the grid is empty for an empty range
  const index_t last_tile = last_chunk / splitzip_warps;
  for (index_t tile = range.first / l.chunk / splitzip_warps + blockIdx.x; tile <= last_tile; tile += gridDim.x) {
    const index_t c = tile * splitzip_warps + warp;
    const index_t held = tile * splitzip_warps + lane;
    unsigned entry = 0;
    int bytes = 0;
    if (lane < splitzip_warps && parts.length(held) > 0) {
      entry = static_cast<unsigned>(load_bits<2>(in + parts.directory + 2 * held, aligned));
      bytes = side_bytes_of<F>(entry, parts.length(held));
    }
    const int before = ::decant::detail::warp_scan_before(bytes);
    const unsigned own_entry = __shfl_sync(::decant::detail::whole_warp, entry, warp);
    const int own_before = __shfl_sync(::decant::detail::whole_warp, before, warp);
    if (c > last_chunk || (c + 1) * l.chunk <= range.first) continue;
    const auto tile_side = tile_sides[tile - first_group * (splitzip_group / splitzip_warps)];
    decode_chunk_in_warp<F>(exponent_of, in, parts, c, own_entry, in + parts.side + tile_side + own_before, range, y,
                            aligned, shared[warp]);
  }
}

}  // namespace decant::codec::detail

#endif
