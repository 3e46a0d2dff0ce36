// decant: whether bytes in device memory are a SplitZip payload: what detail/splitzip_check.hpp checks, with the same
// verdict, in one launch. A block per group of 64 chunks reads the header, then every warp checks the directory of its
// group and the side bytes of 8 chunks. All bytes may be hostile: offsets come from a layout that was found to lie
// inside of them, and side bytes are read once their directory entries are known to add up. Where the side bytes of
// each 8 chunks begin is left for the decoder. Moves the directory 8 times (7 of them from the caches), the side
// stream, and a byte per escape.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_CHECK_CUH
#define DECANT_CODEC_DETAIL_SPLITZIP_CHECK_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../../core/bytes.hpp"
#include "splitzip_encode.cuh"

namespace decant::codec::detail {

/// What is decoded: elements [first, last) of a payload of n, -1: of as many as it says.
struct SplitZipRange {
  index_t n;
  index_t first;
  index_t last;
};

/// The layout that the header states, if that is right for this codec, this range and `extent` bytes; sets len_side.
template <class F, class T>
__device__ bool read_layout(const std::byte* header, index_t extent, index_t chunk, const PackedBook& book,
                            const SplitZipRange& range, SplitZipLayout& l, index_t& len_side, FaultWord* fault) {
  using H = SplitZipHeader;
  const auto code_bits = static_cast<unsigned>(header[H::code_bits]);
  bool right = load_le<std::uint32_t>(header + H::chunk) == static_cast<std::uint64_t>(chunk) &&
               (code_bits == 0 || code_bits == book.code_bits) && header[H::flags] == std::byte{0} &&
               load_le<std::uint16_t>(header + H::zero) == 0 && load_le<std::uint64_t>(header + H::reserved) == 0;
#pragma unroll
  for (int c = 0; c < 16; ++c) {
    right &= static_cast<unsigned>(header[H::codebook + c]) == (code_bits == 0 ? 0u : book.exponent(c));
  }
  const std::uint64_t n = load_le<std::uint64_t>(header + H::n);
  right &=
      range.n >= 0 ? n == static_cast<std::uint64_t>(range.n) : n <= static_cast<std::uint64_t>(splitzip_max_elements);
  if (right && static_cast<std::uint64_t>(range.last) > n) {
    ::decant::detail::report(fault, ::decant::detail::Fault::payload_range, 0, 0, static_cast<index_t>(n));
    return false;
  }
  if (right) {
    l = splitzip_layout<T>(static_cast<index_t>(n), chunk, F::code_bits);
    if (code_bits == 0) l.len_code = l.len_rest = l.code_bits = 0;
    const std::uint64_t side = load_le<std::uint64_t>(header + H::len_side);
    const index_t most = code_bits == 0 ? 0 : l.worst_bytes() - l.side;
    len_side = static_cast<index_t>(side);
    right = load_le<std::uint64_t>(header + H::len_code) == static_cast<std::uint64_t>(l.len_code) &&
            load_le<std::uint64_t>(header + H::len_rest) == static_cast<std::uint64_t>(l.len_rest) &&
            side <= static_cast<std::uint64_t>(most) &&
            (code_bits == 0 ? l.raw_bytes <= extent : l.side + len_side <= extent && l.side + len_side < l.raw_bytes);
  }
  if (!right) ::decant::detail::report(fault, ::decant::detail::Fault::payload_header, 0, 0, 0);
  return right;
}

/// A warp: whether bits [first_bit, 8 * end), less than 128 bytes, are 0, as far as this lane looks.
__device__ inline bool lane_is_zero_from(const std::byte* bytes, index_t first_bit, index_t end) {
  const index_t first = first_bit >> 3;
  bool zero = true;
  for (index_t at = first + threadIdx.x % 32; at < end; at += 32) {
    const unsigned mask = at == first ? 0xffu >> (first_bit & 7) : 0xffu;
    zero &= (static_cast<unsigned>(bytes[at]) & mask) == 0;
  }
  return zero;
}

template <int FieldBits>
__device__ bool lane_planes_padded(const std::byte* payload, const index_t (&planes)[2], index_t n) {
  bool zero = true;
#pragma unroll
  for (int p = 0; p < plane_count(FieldBits); ++p) {
    const int width = plane_width(FieldBits, p);
    zero &= lane_is_zero_from(payload + planes[p], n * width, align_64(plane_bytes(width, n)));
  }
  return zero;
}

/// A warp: the bits between the parts.
template <class F>
__device__ void check_padding_in_warp(const std::byte* payload, const SplitZipLayout& l, FaultWord* fault) {
  const bool zero = lane_planes_padded<F::code_bits>(payload, l.code, l.n) &
                    lane_planes_padded<F::rest_bits>(payload, l.rest, l.n) &
                    lane_is_zero_from(payload + l.directory, 16 * l.chunks, l.super - l.directory) &
                    lane_is_zero_from(payload + l.super, 64 * l.groups, l.side - l.super);
  if (!zero) ::decant::detail::report(fault, ::decant::detail::Fault::payload_padding, 0, 0, 0);
}

/// Directory entries of a group, two a lane: chunk `lane` of it and the one 32 behind, and where their side bytes
/// begin.
struct SplitZipGroup {
  unsigned entries[2];
  index_t side[2];
};

/// A warp: false, and reported, unless the entries of group g are possible and their side bytes lie just where its
/// super entry and the next one say, inside the side stream.
template <class F>
__device__ bool read_group(const std::byte* payload, const SplitZipLayout& l, index_t g, index_t len_side, bool aligned,
                           SplitZipGroup& group, FaultWord* fault) {
  using ::decant::detail::whole_warp;
  const int lane = static_cast<int>(threadIdx.x % 32);
  index_t bytes = 0;
  bool possible = true;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const index_t c = g * splitzip_group + 32 * half + lane;
    index_t own = 0;
    unsigned entry = 0;
    if (c < l.chunks) {
      entry = static_cast<unsigned>(load_bits<2>(payload + l.directory + 2 * c, aligned));
      const unsigned mode = splitzip_mode(entry);
      const index_t escapes = splitzip_escapes(entry);
      const bool right = mode == splitzip_coded ? 3 * escapes <= field_bytes(F::high_bits, l.length(c))
                                                : mode == splitzip_raw_exponents && escapes == 0;
      if (right) {
        own = side_bytes_of<F>(entry, static_cast<int>(l.length(c)));
      } else {
        ::decant::detail::report(fault, ::decant::detail::Fault::payload_chunk, 0, 0, c);
        possible = false;
      }
    }
    const index_t before = ::decant::detail::warp_scan_before(own);
    group.entries[half] = entry;
    group.side[half] = bytes + before;
    bytes += __shfl_sync(whole_warp, before + own, 31);
  }
  if (!__all_sync(whole_warp, possible)) return false;
  const std::uint64_t begin = load_le<std::uint64_t>(payload + l.super + 8 * g);
  const std::uint64_t end =
      g + 1 < l.groups ? load_le<std::uint64_t>(payload + l.super + 8 * (g + 1)) : static_cast<std::uint64_t>(len_side);
  const auto most = static_cast<std::uint64_t>(len_side);
  if (begin > most || (g == 0 && begin != 0) || end > most || begin + static_cast<std::uint64_t>(bytes) != end) {
    if (lane == 0) {
      ::decant::detail::report(fault, ::decant::detail::Fault::payload_chunk, 0, 0, g * splitzip_group);
    }
    return false;
  }
  group.side[0] += static_cast<index_t>(begin);
  group.side[1] += static_cast<index_t>(begin);
  return true;
}

/// Whether element i has code 0.
template <class F>
__device__ bool has_code_zero(const std::byte* payload, const SplitZipLayout& l, index_t i) {
  unsigned code = 0;
#pragma unroll
  for (int p = 0; p < plane_count(F::code_bits); ++p) {
    code |= load_from_plane(payload + l.code[p], plane_width(F::code_bits, p), i);
  }
  return code == 0;
}

/// Escape k of a coded chunk.
template <class F>
__device__ bool is_escape(const ExponentCodes<F>& code_of, const std::byte* payload, const SplitZipLayout& l, index_t c,
                          const std::byte* side, int escapes, int k) {
  const int position = load_le<std::uint16_t>(side + 2 * k);
  const int before = k > 0 ? load_le<std::uint16_t>(side + 2 * k - 2) : -1;
  const auto exponent = static_cast<unsigned>(side[2 * escapes + k]);
  return position > before && position < l.length(c) && exponent >> F::exp_bits == 0 && !code_of.contains(exponent) &&
         has_code_zero<F>(payload, l, c * l.chunk + position);
}

/// A warp: whether a chunk with raw exponents pays, and ends with zeros.
template <class F, class T>
__device__ bool is_raw_chunk(const ExponentCodes<F>& code_of, const std::byte* payload, const SplitZipLayout& l,
                             index_t c, const std::byte* side, bool aligned) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int length = static_cast<int>(l.length(c));
  const LanePlace<T, F::code_bits, const std::byte> code_place(payload, l.code, c * l.chunk, aligned);
  int escapes = 0;
  for (int i = lane * lane_elements<T>; i < length; i += warp_elements<T>) {
    std::uint32_t low[lane_quads<T>], high[lane_quads<T>];
    code_place.load(static_cast<unsigned>(i)).unpack(low);
    load_high_bits<F, T>(side, i, length, high);
    std::uint32_t mask = 0;
#pragma unroll
    for (int q = 0; q < lane_quads<T>; ++q) {
      mask |= quad_mask(without_code<F>(code_of(high[q] << F::code_bits | low[q]))) << (4 * q);
    }
    if (length - i < lane_elements<T>) mask &= (1u << (length - i)) - 1u;
    escapes += __popc(mask);
  }
  escapes = ::decant::detail::warp_reduce(escapes, ::decant::detail::Plus{});
  bool zero = true;
  const std::byte* plane = side;
#pragma unroll
  for (int p = 0; p < plane_count(F::high_bits); ++p) {
    const int bits = length * plane_width(F::high_bits, p);
    zero &= bits % 8 == 0 || (static_cast<unsigned>(plane[bits / 8]) & (0xffu >> (bits % 8))) == 0;
    plane += (bits + 7) / 8;
  }
  return zero && 3 * index_t{escapes} > field_bytes(F::high_bits, length);
}

/// tile_side: gets where the side bytes of each tile begin, from the range's first group on.
template <class F, class T>
__global__ void __launch_bounds__(splitzip_threads, splitzip_blocks)
    splitzip_check_payload(const std::byte* in, index_t extent, index_t chunk, PackedBook book, SplitZipRange range,
                           std::uint64_t* tile_side, FaultWord* fault) {
  using ::decant::detail::whole_warp;
  static_assert(splitzip_group == splitzip_warps * splitzip_warps);
  __shared__ std::byte header[splitzip_header_bytes];
  __shared__ std::uint8_t table[256];
  if (threadIdx.x < splitzip_header_bytes) header[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  SplitZipLayout l;
  index_t len_side = 0;
  const bool right = read_layout<F, T>(header, extent, chunk, book, range, l, len_side, fault);
  if (!right || l.code_bits == 0) return;
  if (blockIdx.x == 0 && threadIdx.x < 32) check_padding_in_warp<F>(in, l, fault);

  const ExponentCodes<F> code_of(book, table);
  const bool aligned = reinterpret_cast<std::uintptr_t>(in) % 8 == 0;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const index_t first_group = range.first / (splitzip_group * chunk);
  const index_t groups = range.first == range.last ? 0 : (range.last - 1) / (splitzip_group * chunk) + 1 - first_group;
  for (index_t g = blockIdx.x; g < groups; g += gridDim.x) {
    SplitZipGroup group;
    if (!read_group<F>(in, l, first_group + g, len_side, aligned, group, fault)) continue;
    // This warp's tile: chunk j of it is held by lane held + j.
    const int half = warp / (splitzip_warps / 2);
    const int held = warp % (splitzip_warps / 2) * splitzip_warps;
    const unsigned entry = half == 0 ? group.entries[0] : group.entries[1];
    const index_t side = half == 0 ? group.side[0] : group.side[1];
    if (lane == held) tile_side[g * splitzip_warps + warp] = static_cast<std::uint64_t>(side);

    constexpr int lanes_each = 32 / splitzip_warps;
    const int from = held + lane / lanes_each;
    const index_t c = (first_group + g) * splitzip_group + 32 * half + from;
    const unsigned k_entry = __shfl_sync(whole_warp, entry, from);
    const std::byte* const k_side = in + l.side + __shfl_sync(whole_warp, side, from);
    const int escapes = c < l.chunks ? static_cast<int>(splitzip_escapes(k_entry)) : 0;
    bool good = true;
    for (int k = lane % lanes_each; k < escapes; k += lanes_each) {
      good &= is_escape(code_of, in, l, c, k_side, escapes, k);
    }
    if (!good) ::decant::detail::report(fault, ::decant::detail::Fault::payload_chunk, 0, 0, c);

    const bool is_raw =
        lane / splitzip_warps == held / splitzip_warps && splitzip_mode(entry) == splitzip_raw_exponents;
    unsigned raw = __ballot_sync(whole_warp, is_raw);
    for (; raw != 0; raw &= raw - 1) {
      const int which = __ffs(static_cast<int>(raw)) - 1;
      const index_t raw_c = (first_group + g) * splitzip_group + 32 * half + which;
      const std::byte* const raw_side = in + l.side + __shfl_sync(whole_warp, side, which);
      if (!is_raw_chunk<F, T>(code_of, in, l, raw_c, raw_side, aligned)) {
        ::decant::detail::report(fault, ::decant::detail::Fault::payload_chunk, 0, 0, raw_c);
      }
    }
  }
}

}  // namespace decant::codec::detail

#endif
