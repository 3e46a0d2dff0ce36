// decant: rows copied or converted on the device by accesses of up to 16 bytes, as far as addresses and dims allow.
// Conversions are those of dtype.hpp, so the CPU's bits.
#ifndef DECANT_KV_DETAIL_ROW_COPY_CUH
#define DECANT_KV_DETAIL_ROW_COPY_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <type_traits>

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"
#include "../cache_view.hpp"

namespace decant::kv::detail {

using ::decant::detail::Pack;

/// How many elements one access moves when rows are aligned: 16 bytes of the wider type.
template <class From, class To>
inline constexpr int row_unit = 16 / static_cast<int>(sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));

/// Whether every row of a view begins at a multiple of `elements` and is a multiple of them long.
template <class T, int Rank>
bool rows_aligned(const View<T, Rank>& rows, int elements) {
  bool aligned = reinterpret_cast<std::uintptr_t>(rows.data()) % (sizeof(T) * static_cast<std::size_t>(elements)) == 0;
  for (int r = 0; r + 1 < Rank; ++r) aligned = aligned && rows.stride(r) % elements == 0;
  return aligned && rows.extent(Rank - 1) % elements == 0;
}

/// Both keys and values; a cache of a type unknown here is moved element by element.
template <class C>
bool cache_aligned(const C& cache, int elements) {
  if constexpr (requires { cache.keys.data(); cache.values.data(); }) {
    return rows_aligned(cache.keys, elements) && rows_aligned(cache.values, elements);
  } else {
    return false;
  }
}

/// The element type of a plain cache's rows.
template <class C>
using element_of = std::remove_cv_t<std::remove_pointer_t<row_t<C>>>;

/// What holds 16, 4, 2 or 1 bytes in registers: a Pack of small elements would be taken apart.
template <int Bytes>
struct WordOf;
template <>
struct WordOf<16> {
  using type = uint4;
};
template <>
struct WordOf<4> {
  using type = std::uint32_t;
};
template <>
struct WordOf<2> {
  using type = std::uint16_t;
};
template <>
struct WordOf<1> {
  using type = std::uint8_t;
};
template <class T, int Unit>
using word_of = typename WordOf<static_cast<int>(sizeof(T)) * Unit>::type;

template <int Unit, class From, class To>
__device__ void copy_unit(const From* from, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    *reinterpret_cast<word_of<To, Unit>*>(to) = *reinterpret_cast<const word_of<From, Unit>*>(from);
  } else {
    const auto in = *reinterpret_cast<const Pack<From, Unit>*>(from);
    Pack<To, Unit> out;
#pragma unroll
    for (int i = 0; i < Unit; ++i) out.at[i] = To(static_cast<float>(in.at[i]));
    *reinterpret_cast<Pack<To, Unit>*>(to) = out;
  }
}

inline constexpr int copy_threads = 256;
inline constexpr int copy_items = 4;

/// How many rows of `units` units a block copies.
inline index_t copy_rows_per_block(index_t units) {
  const index_t rows = copy_threads * copy_items / units;
  return rows > 0 ? rows : 1;
}

/// Copies `rows` rows of `units`: row(r) gives {from, to} of a row. For a block.
template <int Unit, class Row>
__device__ void copy_block(index_t rows, int units, const Row& row) {
  const int all = static_cast<int>(rows) * units;
  for (int e = static_cast<int>(threadIdx.x); e < all; e += copy_threads) {
    const int r = e / units;
    const auto pair = row(r);
    const int at = (e - r * units) * Unit;
    copy_unit<Unit>(pair.from + at, pair.to + at);
  }
}

template <class From, class To>
struct RowPair {
  const From* from;
  To* to;
};

}  // namespace decant::kv::detail

#endif
