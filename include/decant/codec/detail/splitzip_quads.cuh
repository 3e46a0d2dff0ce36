// decant: SplitZip's bit geometry as device code has it: four elements' fields as the bytes of a word (a quad), the
// first element in the lowest one, so that one instruction works on four of them. A lane holds 16 bytes of elements;
// what of a plane belongs to them is at most 8 bytes.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_QUADS_CUH
#define DECANT_CODEC_DETAIL_SPLITZIP_QUADS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>
#include <type_traits>

#include "../../core/detail/device.cuh"
#include "splitzip_layout.hpp"

namespace decant::codec::detail {

/// Elements that a lane holds, and their quads.
template <class T>
inline constexpr int lane_elements = ::decant::detail::per_access<T>;
template <class T>
inline constexpr int lane_quads = lane_elements<T> / 4;

/// The byte b, four times.
__device__ constexpr std::uint32_t each_byte(unsigned b) {
  return b * 0x01010101u;
}

/// Exponents and rests of quad q of a lane's elements.
template <class T>
__device__ inline void split_quad(const std::uint32_t (&words)[4], int q, std::uint32_t& exponents,
                                  std::uint32_t& rests) {
  if constexpr (std::is_same_v<T, bf16>) {
    const std::uint32_t low = __byte_perm(words[2 * q], words[2 * q + 1], 0x6420);
    const std::uint32_t high = __byte_perm(words[2 * q], words[2 * q + 1], 0x7531);
    exponents = (high << 1 & each_byte(0xfe)) | (low >> 7 & each_byte(1));
    rests = (high & each_byte(0x80)) | (low & each_byte(0x7f));
  } else if constexpr (std::is_same_v<T, fp8_e5m2>) {
    exponents = words[q] >> 2 & each_byte(0x1f);
    rests = (words[q] & each_byte(3)) << 1 | (words[q] >> 7 & each_byte(1));
  } else {
    exponents = words[q] >> 3 & each_byte(0x0f);
    rests = (words[q] >> 4 & each_byte(8)) | (words[q] & each_byte(7));
  }
}

/// The elements of a quad, back in their place.
template <class T>
__device__ inline void join_quad(std::uint32_t exponents, std::uint32_t rests, int q, std::uint32_t (&words)[4]) {
  if constexpr (std::is_same_v<T, bf16>) {
    const std::uint32_t low = (exponents & each_byte(1)) << 7 | (rests & each_byte(0x7f));
    const std::uint32_t high = (exponents >> 1 & each_byte(0x7f)) | (rests & each_byte(0x80));
    words[2 * q] = __byte_perm(low, high, 0x5140);
    words[2 * q + 1] = __byte_perm(low, high, 0x7362);
  } else if constexpr (std::is_same_v<T, fp8_e5m2>) {
    words[q] = (rests & each_byte(1)) << 7 | exponents << 2 | (rests >> 1 & each_byte(3));
  } else {
    words[q] = (rests & each_byte(8)) << 4 | exponents << 3 | (rests & each_byte(7));
  }
}

/// The low Width bits of a quad's fields next to each other, as a plane has them: 4 * Width bits.
template <int Width>
__device__ inline std::uint32_t pack_quad(std::uint32_t fields) {
  if constexpr (Width == 8) {
    return fields;
  } else if constexpr (Width == 4) {
    const std::uint32_t pairs = (fields << 4 & each_byte(0xf0)) | (fields >> 8 & each_byte(0x0f));  // in bytes 0 and 2
    return __byte_perm(pairs, 0, 0x4420);
  } else if constexpr (Width == 2) {
    return (fields & each_byte(3)) * 0x40100401u >> 24;  // bits 24 to 31 of the product: nothing overlaps there
  } else {
    return (fields & each_byte(1)) * 0x08040201u >> 24 & 15u;
  }
}

template <int Width>
__device__ inline std::uint32_t unpack_quad(std::uint32_t packed) {
  if constexpr (Width == 8) {
    return packed;
  } else if constexpr (Width == 4) {
    const std::uint32_t twice = __byte_perm(packed, 0, 0x1100);
    return (twice >> 4 & 0x000f000fu) | (twice & 0x0f000f00u);
  } else if constexpr (Width == 2) {
    return (packed >> 6 | packed * 0x01004010u) & each_byte(3);
  } else {
    return (packed >> 3 | packed * 0x01008040u) & each_byte(1);
  }
}

/// Where quad q's bits lie among those of a lane: a byte's first element is in its high bits.
template <int Width>
__device__ constexpr int quad_shift(int q) {
  return Width == 1 ? q / 2 * 8 + (1 - q % 2) * 4 : 4 * Width * q;
}

/// The register type of N bytes, and their type in memory.
template <int N>
using RegisterOf = std::conditional_t<N == 8, std::uint64_t, std::uint32_t>;
template <int N>
using WordOf = std::conditional_t<N == 1, std::uint8_t, std::conditional_t<N == 2, std::uint16_t, RegisterOf<N>>>;

/// N bytes, least significant first; `aligned`: the address is a multiple of N.
template <int N>
__device__ inline RegisterOf<N> load_bits(const std::byte* from, bool aligned) {
  if (aligned) return *reinterpret_cast<const WordOf<N>*>(from);
  RegisterOf<N> bits = 0;
#pragma unroll
  for (int b = 0; b < N; ++b) bits |= static_cast<RegisterOf<N>>(from[b]) << (8 * b);
  return bits;
}
template <int N>
__device__ inline void store_bits(std::byte* to, RegisterOf<N> bits, bool aligned) {
  if (aligned) {
    *reinterpret_cast<WordOf<N>*>(to) = static_cast<WordOf<N>>(bits);
    return;
  }
#pragma unroll
  for (int b = 0; b < N; ++b) to[b] = static_cast<std::byte>(bits >> (8 * b) & 0xffu);
}

/// Bytes of a plane of this width that belong to a lane's elements.
template <class T, int Width>
inline constexpr int lane_bytes = lane_elements<T>* Width / 8;
/// Plane P of a field of FieldBits, of a lane's elements.
template <class T, int FieldBits, int P>
using PlaneBits = RegisterOf<lane_bytes<T, plane_width(FieldBits, P)>>;

template <class T, int FieldBits, int P>
__device__ inline PlaneBits<T, FieldBits, P> pack_plane(const std::uint32_t (&fields)[lane_quads<T>]) {
  constexpr int width = plane_width(FieldBits, P);
  using Bits = PlaneBits<T, FieldBits, P>;
  Bits bits = 0;
#pragma unroll
  for (int q = 0; q < lane_quads<T>; ++q) {
    bits |= static_cast<Bits>(pack_quad<width>(fields[q] >> plane_shift(FieldBits, P))) << quad_shift<width>(q);
  }
  return bits;
}
template <class T, int FieldBits, int P>
__device__ inline void unpack_plane(PlaneBits<T, FieldBits, P> bits, std::uint32_t (&fields)[lane_quads<T>]) {
  constexpr int width = plane_width(FieldBits, P);
#pragma unroll
  for (int q = 0; q < lane_quads<T>; ++q) {
    const auto own = static_cast<std::uint32_t>(bits >> quad_shift<width>(q));
    fields[q] |= unpack_quad<width>(width == 8 ? own : own & ((1u << (4 * width % 32)) - 1u))
                 << plane_shift(FieldBits, P);
  }
}

/// The planes of a field at a lane's elements, as loaded, and as they are to be stored.
template <class T, int FieldBits>
struct LanePlanes {
  static_assert(plane_count(FieldBits) == 1 || plane_count(FieldBits) == 2);
  static constexpr bool two = plane_count(FieldBits) == 2;
  static constexpr int first_width = plane_width(FieldBits, 0);
  static constexpr int second_width = two ? plane_width(FieldBits, 1) : first_width;
  RegisterOf<lane_bytes<T, first_width>> first = 0;
  RegisterOf<lane_bytes<T, second_width>> second = 0;

  LanePlanes() = default;
  __device__ explicit LanePlanes(const std::uint32_t (&fields)[lane_quads<T>])
      : first(pack_plane<T, FieldBits, 0>(fields)) {
    if constexpr (two) second = pack_plane<T, FieldBits, 1>(fields);
  }
  __device__ void unpack(std::uint32_t (&fields)[lane_quads<T>]) const {
#pragma unroll
    for (int q = 0; q < lane_quads<T>; ++q) fields[q] = 0;
    unpack_plane<T, FieldBits, 0>(first, fields);
    if constexpr (two) unpack_plane<T, FieldBits, 1>(second, fields);
  }
};

/// Where a lane's part of a field's planes lies. Offsets from there count elements, multiples of 8.
template <class T, int FieldBits, class Byte>
class LanePlace {
 public:
  using Planes = LanePlanes<T, FieldBits>;

  /// i: the lane's first element. `aligned`: `payload` is at a multiple of 8 bytes.
  __device__ LanePlace(Byte* payload, const index_t (&planes)[2], index_t i, bool aligned)
      : first_(payload + planes[0] + (i >> 3) * Planes::first_width),
        second_(Planes::two ? payload + planes[1] + (i >> 3) * Planes::second_width : nullptr),
        aligned_(aligned) {}

  __device__ Planes load(unsigned offset) const {
    Planes planes;
    planes.first = load_bits<first_bytes>(first_ + offset / 8 * Planes::first_width, aligned_);
    if constexpr (Planes::two) {
      planes.second = load_bits<second_bytes>(second_ + offset / 8 * Planes::second_width, aligned_);
    }
    return planes;
  }
  __device__ void store(unsigned offset, const Planes& planes) const {
    store_bits<first_bytes>(first_ + offset / 8 * Planes::first_width, planes.first, aligned_);
    if constexpr (Planes::two) {
      store_bits<second_bytes>(second_ + offset / 8 * Planes::second_width, planes.second, aligned_);
    }
  }

 private:
  static constexpr int first_bytes = lane_bytes<T, Planes::first_width>;
  static constexpr int second_bytes = lane_bytes<T, Planes::second_width>;
  Byte* first_;
  Byte* second_;
  bool aligned_;
};

/// One plane of a chunk's raw exponents, at any address and no longer than its elements need: i of `length`.
template <class T, int Width>
__device__ inline RegisterOf<lane_bytes<T, Width>> load_high_plane(const std::byte* plane, int i, int length) {
  const int begin = i / 8 * Width;
  const int end = (length * Width + 7) / 8;
  RegisterOf<lane_bytes<T, Width>> bits = 0;
#pragma unroll
  for (int b = 0; b < lane_bytes<T, Width>; ++b) {
    if (begin + b < end) bits |= static_cast<RegisterOf<lane_bytes<T, Width>>>(plane[begin + b]) << (8 * b);
  }
  return bits;
}
template <class T, int Width>
__device__ inline void store_high_plane(std::byte* plane, int i, int length, RegisterOf<lane_bytes<T, Width>> bits) {
  const int begin = i / 8 * Width;
  const int end = (length * Width + 7) / 8;
#pragma unroll
  for (int b = 0; b < lane_bytes<T, Width>; ++b) {
    if (begin + b < end) plane[begin + b] = static_cast<std::byte>(bits >> (8 * b) & 0xffu);
  }
}

/// The high exponent bits of elements i ... of a chunk, from or to its side bytes.
template <class F, class T>
__device__ inline void load_high_bits(const std::byte* side, int i, int length,
                                      std::uint32_t (&fields)[lane_quads<T>]) {
  constexpr int bits = F::high_bits;
  constexpr int first = plane_width(bits, 0);
#pragma unroll
  for (int q = 0; q < lane_quads<T>; ++q) fields[q] = 0;
  unpack_plane<T, bits, 0>(load_high_plane<T, first>(side, i, length), fields);
  if constexpr (plane_count(bits) > 1) {
    const std::byte* const second = side + plane_bytes(first, length);
    unpack_plane<T, bits, 1>(load_high_plane<T, plane_width(bits, 1)>(second, i, length), fields);
  }
}
template <class F, class T>
__device__ inline void store_high_bits(std::byte* side, int i, int length,
                                       const std::uint32_t (&fields)[lane_quads<T>]) {
  constexpr int bits = F::high_bits;
  constexpr int first = plane_width(bits, 0);
  store_high_plane<T, first>(side, i, length, pack_plane<T, bits, 0>(fields));
  if constexpr (plane_count(bits) > 1) {
    std::byte* const second = side + plane_bytes(first, length);
    store_high_plane<T, plane_width(bits, 1)>(second, i, length, pack_plane<T, bits, 1>(fields));
  }
}

/// A lane's elements from x on, of which there are `count` (0 and below: none); those behind are 0. `aligned`: to 16
/// bytes.
template <class T>
__device__ inline void load_elements(const T* x, int count, bool aligned, std::uint32_t (&words)[4]) {
  constexpr int per_word = lane_elements<T> / 4;
  if (aligned && count >= lane_elements<T>) {
    const auto pack = *reinterpret_cast<const ::decant::detail::Pack<std::uint32_t, 4>*>(x);
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = pack.at[w];
    return;
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) words[w] = 0;
#pragma unroll
  for (int j = 0; j < lane_elements<T>; ++j) {
    if (j < count) words[j / per_word] |= std::uint32_t{x[j].bits} << (32 / per_word * (j % per_word));
  }
}

}  // namespace decant::codec::detail

#endif
