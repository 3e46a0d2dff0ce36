// decant: products with rows of 4-bit codes, whatever the format: a table of 16 values (or one of several), and a
// scale, perhaps an offset, per group. All formats of sequential nibbles are that, and share these kernels. A block is
// 128 columns, 64 bytes of codes. Lane i of sixteen floats stands for its columns 8i ... 8i + 7: those of the i-th
// 32-bit word of codes, so that codes are used where they lie and activations are permuted instead, once per call.
//
// What decides the structure: rows come from memory at 30 GB/s or so, a line in 8 cycles, and only while they are asked
// for in ascending order. So a panel of rows is multiplied while the next one is fetched into the second-level cache,
// line after line; R rows at once share every load of activations; columns go in chunks whose activations stay in the
// first-level cache.
#ifndef DECANT_QUANT_DETAIL_MATMUL_NIBBLES_HPP
#define DECANT_QUANT_DETAIL_MATMUL_NIBBLES_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../core/bits.hpp"
#include "../../core/bytes.hpp"
#include "../../core/detail/intrinsics.hpp"
#include "../../core/dtype.hpp"
#include "../../core/simd.hpp"
#include "matmul_kernels.hpp"

#if DECANT_X86

namespace decant::quant::detail {

/// How scales are stored.
enum class ScaleType : std::uint8_t { f16, f32, e4m3, e8m0 };

/// A 4-bit format and its layer as numbers: the value of code q in group j is unit * |scale_j| * table[t_j][q] +
/// offset_j.
struct NibbleFormat {
  alignas(64) float table[16][16] = {};
  int tables = 1;
  float unit = 1;
  bool high_first = false;    ///< element 2i is in the high nibble
  bool signs_select = false;  ///< a scale's sign bit is t_j; else scales have signs like any number
  ScaleType scale = ScaleType::f16;
  index_t group = 0;          ///< group_size(cols)
  index_t scales_at = 0;      ///< in a row's bytes, as the others; -1: none
  index_t zeros_at = -1;      ///< bytes z_j: groups of blocks: t_j; smaller ones: offset_j = unit * scale_j * (8 - z_j)
  index_t minima_at = -1;     ///< fp16, the offsets
  index_t selectors_at = -1;  ///< bits: the table of 16 columns
  bool selects_16 = true;     ///< so many columns
};

inline constexpr index_t nibble_block = 128;
/// Columns whose activations stay in the first-level cache, in blocks.
inline constexpr index_t nibble_chunk = 32;

/// Where a block's scales and tables come from.
enum class NibbleKind : std::uint8_t {
  block,      ///< one scale, one table
  lanes,      ///< a scale per group of 16, 32 or 64 columns, one table
  signs,      ///< the same, and table 0 or 1 by its sign
  selectors,  ///< one scale, and table 0 or 1 per 16 columns
};

constexpr bool whole_blocks(const NibbleFormat& f, index_t cols) {
  return f.group >= cols || f.group % nibble_block == 0;
}
/// What a format may need of a kernel, so that a program compiles no more of them than its formats use.
enum class NibbleNeeds : std::uint8_t {
  one_table,  ///< kinds block and lanes
  residue,    ///< the same, with values that have more bits than bf16
  choice,     ///< kinds block, signs and selectors
};

/// Whether these kernels take the format at this width: groups are so many blocks, the whole row, or parts of a block.
/// Bytes from a file may hold any table and unit: a unit below 0 would be taken for a sign that selects, and numbers
/// that are not finite have no int8.
constexpr bool nibbles_fit(const NibbleFormat& f, index_t cols) {
  if (!f.selects_16 || (f.signs_select && !(f.unit >= 0))) return false;
  for (int t = 0; t < f.tables; ++t) {
    for (int q = 0; q < 16; ++q)
      if (!(f.table[t][q] - f.table[t][q] == 0)) return false;
  }
  if (whole_blocks(f, cols)) return true;
  return f.selectors_at < 0 && (f.group == 16 || f.group == 32 || f.group == 64);
}
constexpr NibbleKind nibble_kind(const NibbleFormat& f, index_t cols) {
  if (whole_blocks(f, cols))
    return f.selectors_at >= 0 ? NibbleKind::selectors : NibbleKind::block;
  return f.signs_select ? NibbleKind::signs : NibbleKind::lanes;
}

/// What R rows have beside their codes, over a chunk: per block, or per group where these are smaller.
template <NibbleKind K, int R>
struct NibbleScales {
  static constexpr bool per_block = K == NibbleKind::block || K == NibbleKind::selectors;
  static constexpr index_t room = per_block ? nibble_chunk : 8 * nibble_chunk + 8;
  alignas(64) float scale[R][room];  // signs: negative where the table is 1
  float offset[R][room];
  std::uint32_t table[R][per_block ? room : 1];  // 64 times which one
};

/// A kernel's work: R rows by T tokens over a chunk.
struct NibbleStep {
  const NibbleFormat* format;
  const std::byte* tables;  // as the kernel's own prepare() wrote them
  const std::byte* row;
  index_t row_bytes;        // to the next of the R rows
  index_t cols;
  index_t first_block;      // of the chunk
  index_t blocks;           // in it, the last one of the row included
  const std::byte* x[4];    // of the tokens, at their start
  float* sum;               // [R][T] registers
  const char* next;         // from where to fetch ahead, a line per block and row; null: not
};

/// Blocks that lie alike: those of the rows, or the last and partial one of each, padded with zeros.
struct NibbleSpan {
  const std::byte* codes;  // of block `begin` of the first row
  index_t row_bytes;
  index_t begin;
  index_t end;
};

/// The whole blocks of a step, then what is left, copied to `last`.
template <int R>
inline NibbleSpan nibble_span(const NibbleStep& step, int part, std::byte (&last)[R][64]) {
  const index_t end = step.cols / nibble_block - step.first_block;
  const index_t whole = end < step.blocks ? end : step.blocks;
  const std::byte* const codes = step.row + 64 * step.first_block;
  if (part == 0) return {codes, step.row_bytes, 0, whole};
  if (whole < step.blocks) {
    std::memset(last, 0, sizeof last);
    for (int r = 0; r < R; ++r)
      std::memcpy(last[r], codes + r * step.row_bytes + 64 * whole,
                  static_cast<std::size_t>((step.cols % nibble_block + 1) / 2));
  }
  return {last[0], 64, whole, step.blocks};
}

/// Fetches the next lines of block b into the second-level cache.
template <int R>
DECANT_INLINE void fetch_lines(const NibbleStep& step, index_t b) {
  if (!step.next) return;
  DECANT_UNROLL
  for (int r = 0; r < R; ++r) __builtin_prefetch(step.next + 64 * (R * b + r), 0, 2);
}

/// Sixteen tables of 64 bytes and one of two tables, and as much for the rest of values that have more bits.
inline constexpr index_t nibble_table_bytes = 2 * 17 * 64;

/// Eight scales as floats.
DECANT_TARGET_AVX2 DECANT_INLINE __m256 load_scales(ScaleType type, const std::byte* p) {
  const auto* const at = reinterpret_cast<const __m128i*>(p);
  if (type == ScaleType::f16) return _mm256_cvtph_ps(_mm_loadu_si128(at));
  if (type == ScaleType::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  const __m128i bytes = _mm_loadl_epi64(at);
  if (type == ScaleType::e8m0) {
    const __m256i power = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
    const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi32(power, _mm256_set1_epi32(0x7f800000)),
                                         _mm256_set1_epi32(0x400000));  // byte 255
    return _mm256_castsi256_ps(
        _mm256_or_si256(_mm256_max_epu32(power, _mm256_set1_epi32(0x400000)), nan));  // byte 0 is 2^-127
  }
  // As fp16, whose exponent is then 8 too small.
  const __m128i wide = _mm_cvtepu8_epi16(bytes);
  const __m128i size = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
  const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(size, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
  const __m128i magnitude = _mm_or_si128(_mm_slli_epi16(size, 7), nan);
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(magnitude, sign)), _mm256_set1_ps(256.0f));
}

/// Eight groups whose bytes begin at these addresses.
template <bool PerBlock>
DECANT_TARGET_AVX2 DECANT_INLINE void expand_eight(const NibbleFormat& f, const std::byte* scales,
                                                   const std::byte* zeros, const std::byte* minima, float* scale,
                                                   float* offset, std::uint32_t* table) {
  const __m256 stored = load_scales(f.scale, scales);
  __m256 s = _mm256_mul_ps(stored, _mm256_set1_ps(f.unit));
  __m256i which = _mm256_setzero_si256();
  if (f.signs_select && PerBlock) {
    s = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), s);
    which = _mm256_srli_epi32(_mm256_castps_si256(stored), 31);
  }
  _mm256_storeu_ps(scale, s);
  if (f.zeros_at >= 0) {
    const __m256i z = _mm256_and_si256(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(zeros))), _mm256_set1_epi32(15));
    if (PerBlock) which = z;
    else _mm256_storeu_ps(offset, _mm256_mul_ps(s, _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_set1_epi32(8), z))));
  }
  if (f.minima_at >= 0) _mm256_storeu_ps(offset, load_scales(ScaleType::f16, minima));
  if (PerBlock) _mm256_storeu_si256(reinterpret_cast<__m256i*>(table), _mm256_slli_epi32(which, 6));
}

/// The groups [first, first + count) of a row of `groups`; up to eight more are written, with zeros. Reads nothing
/// beyond the row's own bytes.
template <bool PerBlock>
DECANT_TARGET_AVX2 DECANT_INLINE void expand_groups(const NibbleFormat& f, const std::byte* row, index_t groups,
                                                    index_t first, index_t count, float* scale, float* offset,
                                                    std::uint32_t* table) {
  const index_t size = f.scale == ScaleType::f32 ? 4 : f.scale == ScaleType::f16 ? 2 : 1;
  for (index_t i = 0; i < count; i += 8) {
    const index_t j = first + i;
    std::uint32_t* const to = PerBlock ? table + i : nullptr;
    if (j + 8 <= groups) {
      expand_eight<PerBlock>(f, row + f.scales_at + j * size, row + (f.zeros_at + j), row + (f.minima_at + 2 * j),
                             scale + i, offset + i, to);
      continue;
    }
    std::byte last[3][32] = {};
    const auto left = static_cast<std::size_t>(groups - j);
    std::memcpy(last[0], row + f.scales_at + j * size, left * static_cast<std::size_t>(size));
    if (f.zeros_at >= 0) std::memcpy(last[1], row + f.zeros_at + j, left);
    if (f.minima_at >= 0) std::memcpy(last[2], row + f.minima_at + 2 * j, 2 * left);
    expand_eight<PerBlock>(f, last[0], last[1], last[2], scale + i, offset + i, to);
  }
}

/// The scales of a step's rows.
template <NibbleKind K, int R>
DECANT_TARGET_AVX2 DECANT_NOINLINE void expand_rows(const NibbleStep& step, NibbleScales<K, R>& to) {
  using Scales = NibbleScales<K, R>;
  const NibbleFormat& f = *step.format;
  const index_t groups = (step.cols + f.group - 1) / f.group;
  for (int r = 0; r < R; ++r) {
    const std::byte* const row = step.row + r * step.row_bytes;
    if constexpr (!Scales::per_block) {
      const index_t each = nibble_block / f.group;
      const index_t first = step.first_block * each;
      const index_t count = groups - first < step.blocks * each ? groups - first : step.blocks * each;
      expand_groups<false>(f, row, groups, first, count, to.scale[r], to.offset[r], nullptr);
    } else if (f.group == nibble_block) {
      expand_groups<true>(f, row, groups, step.first_block, step.blocks, to.scale[r], to.offset[r], to.table[r]);
    } else {
      // Each block has its group's. At most so many groups begin in a chunk; the first may have begun before.
      float scale[nibble_chunk + 8], offset[nibble_chunk + 8];
      std::uint32_t table[nibble_chunk + 8];
      const index_t each = f.group >= step.cols ? step.first_block + step.blocks : f.group / nibble_block;
      const index_t first = step.first_block / each;
      const index_t count = (step.first_block + step.blocks - 1) / each - first + 1;
      expand_groups<true>(f, row, groups, first, count, scale, offset, table);
      for (index_t b = 0; b < step.blocks; ++b) {
        const index_t j = (step.first_block + b) / each - first;
        to.scale[r][b] = scale[j];
        to.table[r][b] = table[j];
        if (f.minima_at >= 0) to.offset[r][b] = offset[j];
      }
    }
  }
}

/// Scales times those of activations, per block.
template <NibbleKind K, int R>
DECANT_TARGET_AVX2 DECANT_INLINE void scale_blocks(NibbleScales<K, R>& scales, const float* x, index_t blocks) {
  for (index_t b = 0; b < blocks; b += 8) {
    const __m256i left = _mm256_set1_epi32(static_cast<int>(blocks - b));
    const __m256i mask = _mm256_cmpgt_epi32(left, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256 s = _mm256_maskload_ps(x + b, mask);
    for (int r = 0; r < R; ++r)
      _mm256_store_ps(scales.scale[r] + b, _mm256_mul_ps(_mm256_load_ps(scales.scale[r] + b), s));
  }
}

constexpr bool has_offsets(const NibbleFormat& f, bool per_block) {
  return f.minima_at >= 0 || (f.zeros_at >= 0 && !per_block);
}

// Activations as int8. Of a block 192 bytes: the columns of the low nibbles, those of the high ones, and -128 times the
// sum of each lane's as int32, which undoes weights that are 128 too large. After all blocks, their scales as floats.
// Or, where signs are moved, 320: the magnitudes of the codes after the rest.

template <bool Magnitudes>
index_t int8_x_bytes(const NibbleFormat&, index_t cols) {
  return (cols + nibble_block - 1) / nibble_block * ((Magnitudes ? 320 : 192) + 4);
}

template <bool Magnitudes>
DECANT_TARGET_AVX2 void arrange_int8_nibbles(const NibbleFormat& f, index_t cols, const float* x, std::byte* to) {
  constexpr index_t x_block = Magnitudes ? 320 : 192;
  const index_t blocks = (cols + nibble_block - 1) / nibble_block;
  for (index_t b = 0; b < blocks; ++b) {
    alignas(32) float v[nibble_block] = {};
    const index_t left = cols - b * nibble_block;
    const index_t count = left < nibble_block ? left : nibble_block;
    std::memcpy(v, x + b * nibble_block, sizeof(float) * static_cast<std::size_t>(count));
    __m256 top = _mm256_setzero_ps();
    __m256 odd = _mm256_setzero_ps();
    for (int i = 0; i < nibble_block; i += 8) {
      const __m256 eight = _mm256_load_ps(v + i);
      top = _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), eight), top);
      odd = _mm256_or_ps(odd, _mm256_cmp_ps(eight, eight, _CMP_UNORD_Q));
    }
    alignas(32) float tops[8];
    _mm256_store_ps(tops, _mm256_or_ps(top, odd));  // all bits set are a NaN
    const float scale = int8_scale(tops, 8);
    std::memcpy(to + x_block * blocks + 4 * b, &scale, 4);
    const __m256 inverse = _mm256_set1_ps(int8_inverse(scale));
    std::int8_t q[nibble_block];
    std::int32_t sum[16];
    for (int i = 0; i < nibble_block; i += 8) {
      const __m256i wide = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(v + i), inverse));
      const __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(q + i), _mm_packs_epi16(narrow, narrow));
      const __m128i pairs = _mm_madd_epi16(narrow, _mm_set1_epi16(1));
      const __m128i twos = _mm_add_epi32(pairs, _mm_shuffle_epi32(pairs, 0x4e));
      sum[i / 8] = -128 * _mm_cvtsi128_si32(_mm_add_epi32(twos, _mm_shuffle_epi32(twos, 0xb1)));
    }
    auto* const codes = reinterpret_cast<std::int8_t*>(to + x_block * b);
    const int low = f.high_first ? 1 : 0;
    for (int i = 0; i < 64; ++i) {
      codes[i] = q[2 * i + low];
      codes[64 + i] = q[2 * i + 1 - low];
    }
    std::memcpy(to + x_block * b + 128, sum, sizeof sum);
    for (int i = 0; i < 128 && Magnitudes; i += 32) {
      const __m256i code = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + i));
      _mm256_store_si256(reinterpret_cast<__m256i*>(codes + 192 + i), _mm256_abs_epi8(code));
    }
  }
}

/// The unit of a format's values as int8: 1 where they are integers, a power of two where that makes them such, else
/// what takes the largest to 127.
inline float int8_unit(const NibbleFormat& f) {
  float top = 0;
  for (int t = 0; t < f.tables; ++t)
    for (int q = 0; q < 16; ++q) top = std::abs(f.table[t][q]) > top ? std::abs(f.table[t][q]) : top;
  const auto exact = [&](float unit) {
    for (int t = 0; t < f.tables; ++t)
      for (int q = 0; q < 16; ++q)
        if (f.table[t][q] / unit != round_even(f.table[t][q] / unit)) return false;
    return top <= 127 * unit;
  };
  if (exact(1)) return 1;
  int exponent = 0;
  std::frexp(top / 127, &exponent);
  const float power = std::ldexp(1.0f, exponent);
  return !(top > 0) ? 1 : exact(power) ? power : top / 127;
}

/// Tables of int8 plus `bias`, four times each, and those of 0 and 1 in turns; the format with their unit in its own.
inline NibbleFormat prepare_int8_nibbles(const NibbleFormat& f, int bias, std::byte* to) {
  const float unit = int8_unit(f);
  for (int t = 0; t < 17; ++t) {
    for (int i = 0; i < 64 && (t < f.tables || t == 16); ++i) {
      const float v = f.table[t == 16 ? i / 16 % 2 : t][i % 16];
      to[64 * t + i] = static_cast<std::byte>(static_cast<int>(round_even(v / unit)) + bias);
    }
  }
  NibbleFormat scaled = f;
  scaled.unit *= unit;
  return scaled;
}

/// Rows of a matrix: where its first lies, and which to multiply.
struct NibbleRows {
  const std::byte* rows;
  index_t row_bytes;
  index_t cols;
  index_t first;
  index_t last;
};

/// y[t * y_stride + r] for these rows and all tokens.
using NibbleProduct = void (*)(const NibbleFormat& f, const NibbleRows& w, const std::byte* x, index_t x_stride,
                               index_t tokens, float* y, index_t y_stride);

/// A kernel K has: rows R and tokens T that it does at once; lanes, floats in a register of sums; run(step); and
/// finish(sums, count, out): the sums over lanes of `count` registers, a multiple of 4.
/// All rows by all tokens, in panels.
template <class K>
void nibble_product(const NibbleFormat& f, const NibbleRows& w, const std::byte* tables, const std::byte* x,
                    index_t x_stride, index_t tokens, float* y, index_t y_stride) {
  const auto [rows, row_bytes, cols, first, last] = w;
  constexpr index_t R = K::R, T = K::T;
  // Measured on a core that reads 32 GB/s: of 4, 8 and 16 rows ahead, 8 of one chunk are best, by a tenth over 4.
  constexpr index_t panel_rows = 16;
  alignas(64) float sums[panel_rows * T * K::lanes];
  const index_t blocks = (cols + nibble_block - 1) / nibble_block;
  const index_t panel = blocks <= nibble_chunk && tokens <= T ? panel_rows / 2 : panel_rows;
  for (index_t r = first; r < last; r += panel) {
    const index_t count = last - r < panel ? last - r : panel;
    const char* next = r + count < last ? reinterpret_cast<const char*>(rows + (r + count) * row_bytes) : nullptr;
    const index_t steps = (count / R + count % R) * ((blocks + nibble_chunk - 1) / nibble_chunk);
    const index_t extra = (count * row_bytes / 64 - count * blocks) / steps + 1;
    for (index_t t = 0; t < tokens; t += T) {
      const index_t registers = (count * T + 3) / 4 * 4;
      for (index_t i = 0; i < registers * K::lanes; ++i) sums[i] = 0;
      for (index_t b = 0; b < blocks; b += nibble_chunk) {
        for (index_t i = 0; i < count;) {
          // The last few rows go alone, each in the place of all R: the same operations.
          const bool whole = count - i >= R;
          alignas(64) float alone[R * T * K::lanes];
          NibbleStep step{&f, tables, rows + (r + i) * row_bytes, whole ? row_bytes : 0, cols, b,
                          blocks - b < nibble_chunk ? blocks - b : nibble_chunk, {}, sums + i * T * K::lanes, next};
          for (index_t k = 0; k < T; ++k) step.x[k] = x + (t + k < tokens ? t + k : t) * x_stride;
          if (!whole) {
            std::memcpy(alone, step.sum, sizeof(float) * static_cast<std::size_t>(T * K::lanes));
            std::memset(alone + T * K::lanes, 0, sizeof alone - sizeof(float) * static_cast<std::size_t>(T * K::lanes));
            step.sum = alone;
            step.next = nullptr;
          }
          K::run(step);
          if (!whole)
            std::memcpy(sums + i * T * K::lanes, alone, sizeof(float) * static_cast<std::size_t>(T * K::lanes));
          i += whole ? R : 1;
          if (next) {
            next += 64 * R * step.blocks;
            for (index_t line = 0; line < extra; ++line, next += 64) __builtin_prefetch(next, 0, 2);
          }
        }
      }
      next = nullptr;
      float out[panel_rows * T];
      K::finish(sums, registers, out);
      for (index_t i = 0; i < count; ++i)
        for (index_t k = 0; k < T && t + k < tokens; ++k) y[(t + k) * y_stride + r + i] = out[i * T + k];
    }
  }
}

/// One token by four rows, or four tokens by two.
template <template <NibbleKind, int, int> class Kernel, NibbleKind K>
void nibble_product_of(const NibbleFormat& f, const NibbleRows& w, const std::byte* tables, const std::byte* x,
                       index_t x_stride, index_t tokens, float* y, index_t y_stride) {
  if (tokens == 1) nibble_product<Kernel<K, 4, 1>>(f, w, tables, x, x_stride, tokens, y, y_stride);
  else nibble_product<Kernel<K, 2, 4>>(f, w, tables, x, x_stride, tokens, y, y_stride);
}
template <template <NibbleKind, int, int> class Kernel, NibbleNeeds N>
void nibble_product_of_kind(const NibbleFormat& f, const NibbleRows& w, const std::byte* tables, const std::byte* x,
                            index_t x_stride, index_t tokens, float* y, index_t y_stride) {
  const NibbleKind kind = nibble_kind(f, w.cols);
  if (kind == NibbleKind::block)
    return nibble_product_of<Kernel, NibbleKind::block>(f, w, tables, x, x_stride, tokens, y, y_stride);
  if constexpr (N == NibbleNeeds::choice) {
    if (kind == NibbleKind::signs)
      return nibble_product_of<Kernel, NibbleKind::signs>(f, w, tables, x, x_stride, tokens, y, y_stride);
    if (kind == NibbleKind::selectors)
      return nibble_product_of<Kernel, NibbleKind::selectors>(f, w, tables, x, x_stride, tokens, y, y_stride);
  } else {
    nibble_product_of<Kernel, NibbleKind::lanes>(f, w, tables, x, x_stride, tokens, y, y_stride);
  }
}

}  // namespace decant::quant::detail

#endif

#endif
