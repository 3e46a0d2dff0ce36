// decant: DeviceDecode<F>, eight neighbouring weights of a packed row as floats, on the device, to the bit as
// dequantize_row has them. Loading and decoding are two steps, so that many loads can be on their way. Formats whose
// codes lie in planes (Int, Nf4, the FP4s, If4, Codebook2x16, Fp8) read as many bytes at once as addresses allow; those
// whose codes stand for sixteen values look them up in shared memory, where every lane has its own copy in its own
// bank. Any other format is decoded by its own functions, which must then be DECANT_HD.
#ifndef DECANT_QUANT_DETAIL_DEVICE_DECODE_CUH
#define DECANT_QUANT_DETAIL_DEVICE_DECODE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../core/bits.hpp"
#include "../../core/bytes.hpp"
#include "../../core/detail/device.cuh"
#include "../codebook.hpp"
#include "../fp4.hpp"
#include "../fp8.hpp"
#include "../if4.hpp"
#include "../int_group.hpp"
#include "../nf4.hpp"
#include "../packed.hpp"

namespace decant::quant::detail {

/// k / by for columns k < 2^30, by a shift where `by` is a power of two.
class ColumnDivider {
 public:
  explicit ColumnDivider(index_t by) : by_(static_cast<std::uint32_t>(by)) {
    for (int s = 0; s < 31; ++s)
      if (by == index_t{1} << s) shift_ = s;
  }
  __device__ index_t operator()(index_t k) const {
    const auto column = static_cast<std::uint32_t>(k);
    return shift_ >= 0 ? column >> shift_ : column / by_;
  }

 private:
  std::uint32_t by_;
  int shift_ = -1;
};

// ---- loads

__device__ inline std::uint32_t load_u32(const std::byte* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % 4 == 0) return *reinterpret_cast<const std::uint32_t*>(p);
  return load_le<std::uint32_t>(p);
}
__device__ inline std::uint16_t load_u16(const std::byte* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % 2 == 0) return *reinterpret_cast<const std::uint16_t*>(p);
  return load_le<std::uint16_t>(p);
}

/// Bytes (a power of two) from p on as little-endian words; those from `left` on are 0 and not read.
template <int Bytes>
__device__ void load_words(const std::byte* p, index_t left, std::uint32_t* to) {
  constexpr int step = Bytes < 16 ? Bytes : 16;
  using Whole = std::conditional_t<
      step == 1, std::uint8_t,
      std::conditional_t<step == 2, std::uint16_t, ::decant::detail::Pack<std::uint32_t, (step > 4 ? step / 4 : 1)>>>;
  if (left >= Bytes && reinterpret_cast<std::uintptr_t>(p) % step == 0) {
#pragma unroll
    for (int i = 0; i < Bytes / step; ++i) {
      const Whole whole = reinterpret_cast<const Whole*>(p)[i];
      if constexpr (step <= 2) {
        to[i] = whole;
      } else {
#pragma unroll
        for (int j = 0; j < step / 4; ++j) to[i * (step / 4) + j] = whole.at[j];
      }
    }
    return;
  }
#pragma unroll
  for (int word = 0; word < (Bytes + 3) / 4; ++word) {
    constexpr int most = Bytes < 4 ? Bytes : 4;
    if (left >= 4 * word + 4 && reinterpret_cast<std::uintptr_t>(p) % 4 == 0) {
      to[word] = *reinterpret_cast<const std::uint32_t*>(p + 4 * word);
      continue;
    }
    std::uint32_t bits = 0;
#pragma unroll 1
    for (int b = 0; b < most && 4 * word + b < left; ++b)
      bits |= static_cast<std::uint32_t>(p[4 * word + b]) << (8 * b);
    to[word] = bits;
  }
}

// ---- what codes mean

/// Of a format with its codes in planes: where a group's scale lies and what a code is with it.
///   entries          of the table that codes are looked up in; 0: none, the code's own value
///   flip             i ^ flip: the place of the i-th weight among the codes
///   entry(head, i)   of the table
///   whole(head)      the matrix's scale
///   load(row, k, j)  what a weight in column k, of group j, needs, as stored
///   part(raw, whole) and as numbers; part.first: where in the table the weight's values begin
///   value(part, x)   the weight, x the table's entry or the code
/// The general case: no such format.
template <class F>
struct DeviceScale {
  static constexpr bool planes = false;
  DeviceScale(const F&, index_t) {}
};

template <>
struct DeviceScale<Nf4> {
  static constexpr bool planes = true;
  static constexpr int entries = 16;
  static constexpr int flip = 1;
  using Raw = std::uint32_t;
  struct Part {
    float scale;
    int first = 0;
  };
  index_t at;

  DeviceScale(const Nf4& f, index_t cols) : at(f.scales_at(cols)) {}
  __device__ static float entry(const std::byte*, int i) { return Nf4::level(i); }
  __device__ static float whole(const std::byte*) { return 1; }
  __device__ Raw load(const std::byte* row, index_t, index_t j) const { return load_u32(row + at + 4 * j); }
  __device__ static Part part(Raw raw, float) { return {__uint_as_float(raw)}; }
  __device__ static float value(const Part& p, float x) { return x * p.scale; }
};

template <>
struct DeviceScale<MxFp4> {
  static constexpr bool planes = true;
  static constexpr int entries = 16;
  static constexpr int flip = 0;
  using Raw = std::uint8_t;
  struct Part {
    float scale;
    int first = 0;
  };
  index_t at;

  DeviceScale(const MxFp4& f, index_t cols) : at(f.scales_at(cols)) {}
  __device__ static float entry(const std::byte*, int i) { return e2m1_value(static_cast<std::uint8_t>(i)); }
  __device__ static float whole(const std::byte*) { return 1; }
  __device__ Raw load(const std::byte* row, index_t, index_t j) const { return static_cast<Raw>(row[at + j]); }
  __device__ static Part part(Raw raw, float) {
    return {__uint_as_float(raw == 0 ? 0x400000u : raw == 255 ? 0x7fc00000u : std::uint32_t{raw} << 23)};
  }
  __device__ static float value(const Part& p, float x) { return x * p.scale; }
};

/// NvFp4 and If4.
template <class F, int Entries>
struct DeviceE4m3Scale {
  static constexpr bool planes = true;
  static constexpr int entries = Entries;
  static constexpr int flip = 0;
  using Raw = std::uint8_t;
  struct Part {
    float scale;
    float whole;
    int first;
  };
  index_t at;

  DeviceE4m3Scale(const F& f, index_t cols) : at(f.scales_at(cols)) {}
  __device__ static float entry(const std::byte*, int i) {
    const auto code = static_cast<std::uint8_t>(i & 15);
    return i < 16 ? e2m1_value(code) : If4::integer_value(code);
  }
  __device__ static float whole(const std::byte* head) { return __uint_as_float(load_u32(head)); }
  __device__ Raw load(const std::byte* row, index_t, index_t j) const { return static_cast<Raw>(row[at + j]); }
  __device__ static Part part(Raw raw, float whole) {
    const float scale = ::decant::detail::widen(fp8_e4m3::from_bits(raw));
    const bool integers = Entries > 16 && scale < 0;
    return {integers ? -scale : scale, whole, integers ? 16 : 0};
  }
  /// Rounded twice, as value() is.
  __device__ static float value(const Part& p, float x) { return x * p.scale * p.whole; }
};
template <>
struct DeviceScale<NvFp4> : DeviceE4m3Scale<NvFp4, 16> {
  using DeviceE4m3Scale::DeviceE4m3Scale;
};
template <>
struct DeviceScale<If4> : DeviceE4m3Scale<If4, 32> {
  using DeviceE4m3Scale::DeviceE4m3Scale;
};

template <class Scale>
struct DeviceScale<Codebook2x16<Scale>> {
  using F = Codebook2x16<Scale>;
  static constexpr bool planes = true;
  static constexpr int entries = 32;
  static constexpr int flip = 0;
  using Bits = decltype(Scale::bits);
  struct Raw {
    Bits scale;
    std::uint8_t selectors;
  };
  struct Part {
    float scale;
    float zero;
    int first;
  };
  static constexpr Bits sign = static_cast<Bits>(1u << (8 * sizeof(Bits) - 1));
  index_t at;
  index_t selectors;  // 0: the scale's sign
  ColumnDivider by_select;

  DeviceScale(const F& f, index_t cols)
      : at(f.scales_at(cols)),
        selectors(f.selects_by_sign() ? 0 : f.selectors_at(cols)),
        by_select(f.select < cols ? f.select : cols) {}
  __device__ static float entry(const std::byte* head, int i) {
    return bf16::from_bits(load_u16(head + 2 * i)) + 0.0f;  // never -0
  }
  __device__ static float whole(const std::byte* head) {
    return F::two_scales ? __uint_as_float(load_u32(head + 64)) : 1.0f;
  }
  __device__ Raw load(const std::byte* row, index_t k, index_t j) const {
    Raw raw;
    if constexpr (sizeof(Bits) == 2) {
      raw.scale = load_u16(row + at + 2 * j);
    } else {
      raw.scale = static_cast<Bits>(row[at + j]);
    }
    if (selectors == 0) {
      raw.selectors = (raw.scale & sign) != 0;
    } else {
      const index_t s = by_select(k);
      raw.selectors = static_cast<std::uint8_t>(static_cast<unsigned>(row[selectors + s / 8]) >> (s % 8));
    }
    return raw;
  }
  __device__ static Part part(const Raw& raw, float whole) {
    const float scale = ::decant::detail::widen(Scale::from_bits(static_cast<Bits>(raw.scale & (sign - 1))));
    return {F::two_scales ? whole * scale : scale, scale == 0 ? 0.0f : -0.0f, (raw.selectors & 1) != 0 ? 16 : 0};
  }
  /// The product, but +0 in a group of zeros: adding -0 changes nothing.
  __device__ static float value(const Part& p, float x) { return fmaf(p.scale, x, p.zero); }
};

template <int Bits>
struct DeviceScale<Int<Bits>> {
  static constexpr bool planes = true;
  static constexpr int entries = 0;
  static constexpr int flip = 0;
  struct Raw {
    std::uint16_t scale;
    std::uint16_t origin;
  };
  struct Part {
    float scale;
    float zero;
    float plus;
    int first = 0;
  };
  static constexpr float two23 = 8388608.0f;
  IntGrid grid;
  index_t at;
  index_t origins;

  DeviceScale(const Int<Bits>& f, index_t cols)
      : grid(f.grid), at(f.scales_at(cols)), origins(at + 2 * f.groups(cols)) {}
  __device__ static float whole(const std::byte*) { return 1; }
  __device__ Raw load(const std::byte* row, index_t, index_t j) const {
    Raw raw{load_u16(row + at + 2 * j), std::uint16_t{1} << (Bits - 1)};
    if (grid == IntGrid::zero_point)
      raw.origin = static_cast<std::uint16_t>(static_cast<unsigned>(row[origins + j]) & ((1u << Bits) - 1u));
    if (grid == IntGrid::minimum) raw.origin = load_u16(row + origins + 2 * j);
    return raw;
  }
  __device__ Part part(const Raw& raw, float) const {
    using ::decant::detail::widen;
    const float scale = widen(fp16::from_bits(raw.scale));
    if (grid == IntGrid::minimum) return {scale, two23, widen(fp16::from_bits(raw.origin))};
    return {scale, two23 + static_cast<float>(raw.origin), -0.0f};
  }
  /// scale * (code - zero) or scale * code + origin: the products are exact. 2^23 + code is a float with the code in
  /// its low bits, which is faster than a conversion.
  __device__ static float value(const Part& p, std::uint32_t code) {
    return fmaf(p.scale, __uint_as_float(0x4b000000u | code) - p.zero, p.plus);
  }
};

template <class T>
struct DeviceScale<Fp8<T>> {
  static constexpr bool planes = true;
  static constexpr int entries = 0;
  static constexpr int flip = 0;
  using Raw = std::uint32_t;
  struct Part {
    float scale;
    int first = 0;
  };
  index_t at;

  DeviceScale(const Fp8<T>& f, index_t cols) : at(f.scales_at(cols)) {}
  __device__ static float whole(const std::byte*) { return 1; }
  __device__ Raw load(const std::byte* row, index_t, index_t) const { return load_u32(row + at); }
  __device__ static Part part(Raw raw, float) { return {__uint_as_float(raw)}; }
  __device__ static float value(const Part& p, std::uint32_t code) {
    return ::decant::detail::widen(T::from_bits(static_cast<std::uint8_t>(code))) * p.scale;
  }
};

// ---- the matrix

/// Weights from a multiple of this on that share everything, at least.
template <class F>
index_t shared_run(const F& f, index_t cols) {
  index_t run = f.group_size(cols);
  if constexpr (requires { f.select; }) run = f.select < run ? f.select : run;
  return run;
}

/// A Packed matrix as kernels take it. It has at least one row and one column.
template <class F>
struct DeviceMatrix {
  F format;
  index_t rows;
  index_t cols;
  index_t row_bytes;
  const std::byte* head;   // what the matrix shares
  const std::byte* first;  // the first row
  ColumnDivider group;
  bool eights;   // no eight weights from a multiple of 8 on straddle two scales
  bool wides;    // nor 32 from a multiple of 32 on
  DeviceScale<F> scale;

  explicit DeviceMatrix(const Packed<F>& w)
      : format(w.format()),
        rows(w.rows()),
        cols(w.cols()),
        row_bytes(w.row_bytes()),
        head(w.data()),
        first(w.row(0)),
        group(w.format().group_size(w.cols())),
        eights(shared_run(w.format(), w.cols()) % 8 == 0 || shared_run(w.format(), w.cols()) >= w.cols()),
        wides(shared_run(w.format(), w.cols()) % 32 == 0 || shared_run(w.format(), w.cols()) >= w.cols()),
        scale(w.format(), w.cols()) {}
  __device__ const std::byte* row(index_t r) const { return first + r * row_bytes; }
};

// ---- decoding

/// A format with its codes in planes.
template <class F, bool Planes = DeviceScale<F>::planes>
class DeviceDecode {
  using Scale = DeviceScale<F>;
  static constexpr bool has_table = Scale::entries > 0;
  /// Words of the plane of `width` bits, 0 where there is none, for N * 8 codes.
  DECANT_HD static constexpr int words(int width, int n) { return (F::bits & width) != 0 ? (n * width + 3) / 4 : 0; }
  /// Of the wider planes.
  DECANT_HD static constexpr int words_before(int width, int n) {
    int sum = 0;
    for (int w = 8; w > width; w /= 2) sum += words(w, n);
    return sum;
  }

 public:
  /// Floats of shared memory.
  static constexpr int shared_floats = has_table ? 32 * Scale::entries : 1;

  /// N * 8 weights as they were loaded.
  template <int N>
  struct Chunk {
    std::uint32_t codes[words_before(0, N)];
    typename Scale::Raw scale[N];
  };

  /// By all threads of a block, whole warps; they meet. `shared` stays theirs.
  __device__ DeviceDecode(const DeviceMatrix<F>& w, float* shared)
      : w_(w), table_(shared + threadIdx.x % 32), whole_(Scale::whole(w.head)) {
    if constexpr (has_table) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const float mine = Scale::entry(w.head, lane % Scale::entries);
      const int warps = static_cast<int>(blockDim.x) / 32;
      for (int i = static_cast<int>(threadIdx.x) / 32; i < Scale::entries; i += warps)
        shared[32 * i + lane] = __shfl_sync(::decant::detail::whole_warp, mine, i);
      __syncthreads();
    }
  }

  /// Columns k to k + 8 N - 1 of a row, k a multiple of 8 N. Nothing is read of columns that are not there.
  template <int N>
  __device__ void fetch(const std::byte* row, index_t k, Chunk<N>& to) const {
    if (k >= w_.cols) return;
    const std::byte* plane = row;
#pragma unroll
    for (int width = 8; width >= 1; width /= 2) {
      if ((F::bits & width) == 0) continue;
      const index_t bytes = plane_bytes(width, w_.cols);
      fetch_plane<N>(plane + k * width / 8, bytes - k * width / 8, width, to.codes);
      plane += bytes;
    }
    if (N == 1 || w_.wides) {
      const auto raw = w_.scale.load(row, k, w_.group(k));
#pragma unroll
      for (int n = 0; n < N; ++n) to.scale[n] = raw;
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const index_t c = k + 8 * n < w_.cols ? k + 8 * n : w_.cols - 1;
        to.scale[n] = w_.scale.load(row, c, w_.group(c));
      }
    }
  }

  /// The n-th eight of them, which begin at column k of the row; 0 behind the last column, where nothing was fetched.
  template <int N>
  __device__ void decode(const Chunk<N>& from, int n, const std::byte* row, index_t k, float (&out)[8]) const {
    if (!w_.eights) {
      // Rare: one by one, in a loop that moves them along, as registers have no index.
#pragma unroll 1
      for (index_t i = k; i < k + 8; ++i) {
#pragma unroll
        for (int j = 0; j < 7; ++j) out[j] = out[j + 1];
        if (i >= w_.cols) continue;
        const auto part = w_.scale.part(w_.scale.load(row, i, w_.group(i)), whole_);
        out[7] = value(part, w_.format.load_code(row, w_.cols, i));
      }
    } else {
      const auto part = w_.scale.part(from.scale[n], whole_);
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = value(part, code_at<N>(from.codes, 8 * n + (i ^ Scale::flip)));
    }
    if (k + 8 > w_.cols) {
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = k + i < w_.cols ? out[i] : 0.0f;
    }
  }

 private:
  __device__ float value(const typename Scale::Part& part, std::uint32_t code) const {
    if constexpr (has_table) {
      return Scale::value(part, table_[32 * (part.first + static_cast<int>(code))]);
    } else {
      return Scale::value(part, code);
    }
  }

  template <int N>
  __device__ static void fetch_plane(const std::byte* p, index_t left, int width, std::uint32_t* to) {
    if (width == 8) load_words<8 * N>(p, left, to);
    if (width == 4) load_words<4 * N>(p, left, to + words_before(4, N));
    if (width == 2) load_words<2 * N>(p, left, to + words_before(2, N));
    if (width == 1) load_words<N>(p, left, to + words_before(1, N));
  }

  template <int N>
  __device__ static std::uint32_t code_at(const std::uint32_t* words, int i) {
    std::uint32_t code = 0;
    int low = 0;
#pragma unroll
    for (int width = 8; width >= 1; width /= 2) {
      if ((F::bits & width) == 0) continue;
      const std::uint32_t word = words[words_before(width, N) + i * width / 32];
      code |= (word >> (i * width % 32) & ((1u << width) - 1u)) << low;
      low += width;
    }
    return code;
  }

  const DeviceMatrix<F>& w_;
  const float* table_;
  float whole_;
};

/// Any other: by its own functions.
template <class F>
class DeviceDecode<F, false> {
 public:
  static constexpr int shared_floats = 1;

  template <int N>
  struct Chunk {};

  __device__ DeviceDecode(const DeviceMatrix<F>& w, float*) : w_(w), layer_(w.format.load_layer(w.head)) {}

  template <int N>
  __device__ void fetch(const std::byte*, index_t, Chunk<N>&) const {}

  template <int N>
  __device__ void decode(const Chunk<N>&, int, const std::byte* row, index_t k, float (&out)[8]) const {
    const F& f = w_.format;
    const index_t cols = w_.cols;
    const index_t size = f.group_size(cols);
    const index_t j = w_.group(k);
    if (w_.eights && k + 8 <= cols) {
      const auto group = f.load_group(layer_, row, cols, j);
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = f.value(layer_, group, k - j * size + i, f.load_code(row, cols, k + i));
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = 0;
      if (k + i >= cols) continue;
      const index_t at = w_.group(k + i);
      out[i] = f.value(layer_, f.load_group(layer_, row, cols, at), k + i - at * size, f.load_code(row, cols, k + i));
    }
  }

 private:
  const DeviceMatrix<F>& w_;
  typename F::Layer layer_;
};

}  // namespace decant::quant::detail

#endif
