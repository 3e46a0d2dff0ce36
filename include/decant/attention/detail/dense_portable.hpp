// decant: the kernels of dense attention in plain C++, and the table through which a path is chosen. A kernel works on
// a block of at most 64 keys given by row pointers, so it does not know how a cache is laid out. Whatever the path, an
// element of a result is formed in one order that depends neither on how many rows are worked on at once nor on where
// in a register a key stands.
#ifndef DECANT_ATTENTION_DETAIL_DENSE_PORTABLE_HPP
#define DECANT_ATTENTION_DETAIL_DENSE_PORTABLE_HPP

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../../core/dtype.hpp"
#include "../../core/view.hpp"

namespace decant::attention::detail {

/// Keys per block. One word of mask bits covers a block.
inline constexpr int dense_block = 64;

/// Turns the raw products of one block into probabilities, and moves the running maximum and sum of each row.
struct SoftmaxBlock {
  float* s;                   // [rows][dense_block], in: q.k, out: exp(logit - new maximum), 0 where not allowed
  const std::uint64_t* bits;  // [rows / group], bit j: key j is allowed; bits past the block's end are 0
  index_t rows;
  index_t group;
  float scale;
  float soft_cap;  // 0: none
  float* m;        // [rows] running maximum
  float* l;        // [rows] running sum
  float* alpha;    // [rows] out: what the accumulated output must be multiplied with
};

/// Rows that will be read soon: kernels ask the memory for them, evenly, while they work on others. May be empty.
template <class T>
struct Ahead {
  const T* const* rows = nullptr;
  index_t count = 0;
  index_t bytes = 0;  // of a row
  index_t every = 1;  // one is asked for at each `every`-th row of work

  /// Part i of n.
  Ahead part(index_t i, index_t n) const {
    const index_t first = count * i / n;
    return {rows + first, count * (i + 1) / n - first, bytes, n};
  }

  /// Row j, and those after it.
  DECANT_INLINE void fetch([[maybe_unused]] index_t j, [[maybe_unused]] index_t some = 1) const {
#if defined(__GNUC__) || defined(__clang__)
    const index_t last = j + some < count ? j + some : count;
    for (; j < last; ++j) {
      const char* const row = reinterpret_cast<const char*>(rows[j]);
      for (index_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);  // into L2: a block would fill L1
    }
#endif
  }
};

/// The types whose rows are widened two elements at a time, the even and the odd ones of a vector; and what the numbers
/// so widened are still to be multiplied with, which is done once to a sum.
template <class T>
inline constexpr bool in_pairs = std::is_same_v<T, bf16> || sizeof(T) == 1;
template <class T>
inline constexpr float pairs_scale = std::is_same_v<T, fp8_e4m3> ? 256.0f : 1.0f;

/// One path's kernels over rows of T.
template <class T>
struct DenseKernels {
  /// Puts q, zero-padded to a multiple of 16, into the order in which scores() wants it. In place, once.
  void (*arrange)(float* q, index_t q_stride, index_t rows, index_t dim);
  /// s[r][j] = q[r] . keys[j] for j < count, q arranged. Other columns may be overwritten.
  void (*scores)(const float* q, index_t q_stride, index_t rows, const T* const* keys, index_t count, index_t dim,
                 float* s, const Ahead<T>& ahead);
  /// Transposes keys to packed[dim][dense_block]; columns from count on are 0.
  void (*pack)(const T* const* keys, index_t count, index_t dim, float* packed);
  /// Rows to floats: out[j][stride].
  void (*widen)(const T* const* rows, index_t count, index_t dim, float* out, index_t stride);
  /// o[r] = o[r] * alpha[r] + sum over j < count, ascending, of p[r][j] * values[j].
  void (*values)(const float* p, const float* alpha, index_t rows, const T* const* values, index_t count, index_t dim,
                 float* o, index_t o_stride, Ahead<T> ahead);
  /// Calls of up to as many rows read memory in order and are faster without Ahead.
  index_t in_order_rows = 0;
};

/// The kernels over floats only.
struct DenseFloatKernels {
  /// s[r][j] = q[r] . packed[.][j] for all columns.
  void (*scores_packed)(const float* q, index_t q_stride, index_t rows, const float* packed, index_t dim, float* s);
  void (*softmax)(const SoftmaxBlock& b);
};

/// exp for x <= 0 (or NaN): 2^n times a polynomial of degree 6 on |r| <= ln 2 / 2. Relative error at most 1.3e-7;
/// exactly 1 at 0 and 0 below -87.3.
namespace exp_constants {
inline constexpr float log2e = 1.44269502f;
inline constexpr float ln2_high = 0.693359375f;
inline constexpr float ln2_low = -2.12194440e-4f;
inline constexpr float lowest = -87.3f;
inline constexpr float c2 = 0.5f;
inline constexpr float c3 = 0.166665777564048770f;
inline constexpr float c4 = 0.041666556149721146f;
inline constexpr float c5 = 0.008363173343241215f;
inline constexpr float c6 = 0.001392617588862777f;
inline constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
}  // namespace exp_constants

/// tanh up to `limit` is x + x^3 (t0 + t1 x^2 + ...), relative error of the polynomial 1.4e-8.
namespace tanh_constants {
inline constexpr float limit = 0.6f;
inline constexpr float t0 = -0.3333333134651184f;
inline constexpr float t1 = 0.13332915306091309f;
inline constexpr float t2 = -0.053873948752880096f;
inline constexpr float t3 = 0.021110959351062775f;
inline constexpr float t4 = -0.006269119679927826f;
}  // namespace tanh_constants

inline float exp_portable(float x) {
  using namespace exp_constants;
  if (x < lowest) return 0.0f;
  const float shifted = x * log2e + round_magic;
  const float n = shifted - round_magic;
  const float r = (x - n * ln2_high) - n * ln2_low;
  const float tail = c2 + r * (c3 + r * (c4 + r * (c5 + r * c6)));
  const float e = 1.0f + (r + r * r * tail);
  std::uint32_t bits;
  std::memcpy(&bits, &shifted, 4);
  std::uint32_t power = (bits + 127u) << 23;  // the low byte of `shifted` is n
  float scale;
  std::memcpy(&scale, &power, 4);
  return e * scale;
}

inline void softmax_portable(const SoftmaxBlock& b) {
  for (index_t r = 0; r < b.rows; ++r) {
    float* s = b.s + r * dense_block;
    const std::uint64_t bits = b.bits[r / b.group];
    float high = b.m[r];
    for (int j = 0; j < dense_block; ++j) {
      float x = s[j] * b.scale;
      if (b.soft_cap > 0) x = b.soft_cap * std::tanh(x / b.soft_cap);
      x = ((bits >> j) & 1) != 0 ? x : -INFINITY;
      s[j] = x;
      high = x > high ? x : high;  // a NaN is passed over here and comes out through exp
    }
    const float reference = high == -INFINITY ? 0.0f : high;
    const float alpha = exp_portable(b.m[r] - reference);
    float sum[16] = {};
    for (int j = 0; j < dense_block; ++j) {
      s[j] = exp_portable(s[j] - reference);
      sum[j % 16] += s[j];
    }
    for (int width = 8; width >= 1; width /= 2)
      for (int j = 0; j < width; ++j) sum[j] += sum[j + width];
    b.l[r] = b.l[r] * alpha + sum[0];
    b.m[r] = high;
    b.alpha[r] = alpha;
  }
}

/// DenseKernels::scores of kernels that take four keys and four, two or one rows of queries.
template <class T, auto One, auto Two, auto Four>
void scores_by_four(const float* q, index_t q_stride, index_t rows, const T* const* keys, index_t count, index_t dim,
                    float* s, const Ahead<T>& ahead) {
  for (index_t j = 0; j < count; j += 4) {
    const index_t end = count - 1;  // past the last key its row stands in; those columns are masked
    const T* const four[4] = {keys[j], keys[j + 1 < end ? j + 1 : end], keys[j + 2 < end ? j + 2 : end],
                              keys[j + 3 < end ? j + 3 : end]};
    ahead.fetch(j, 4);
    const float* from = q;
    float* to = s + j;
    index_t left = rows;
    for (; left >= 4; left -= 4, from += 4 * q_stride, to += 4 * dense_block) Four(from, q_stride, four, dim, to);
    for (; left >= 2; left -= 2, from += 2 * q_stride, to += 2 * dense_block) Two(from, q_stride, four, dim, to);
    if (left > 0) One(from, q_stride, four, dim, to);
  }
}

template <class T>
void arrange_portable(float*, index_t, index_t, index_t) {}

template <class T>
void scores_portable(const float* q, index_t q_stride, index_t rows, const T* const* keys, index_t count, index_t dim,
                     float* s, const Ahead<T>&) {
  const index_t whole = dim / 16 * 16;
  for (index_t j = 0; j < count; ++j) {
    const T* key = keys[j];
    for (index_t r = 0; r < rows; ++r) {
      const float* row = q + r * q_stride;
      float sum[16] = {};
      for (index_t d = 0; d < whole; d += 16)
        for (int i = 0; i < 16; ++i) sum[i] += row[d + i] * static_cast<float>(key[d + i]);
      for (index_t d = whole; d < dim; ++d) sum[d - whole] += row[d] * static_cast<float>(key[d]);
      for (int width = 8; width >= 1; width /= 2)
        for (int i = 0; i < width; ++i) sum[i] += sum[i + width];
      s[r * dense_block + j] = sum[0];
    }
  }
}

template <class T>
void pack_portable(const T* const* keys, index_t count, index_t dim, float* packed) {
  for (index_t j = 0; j < dense_block; ++j)
    for (index_t d = 0; d < dim; ++d) packed[d * dense_block + j] = j < count ? static_cast<float>(keys[j][d]) : 0.0f;
}

template <class T>
void widen_portable(const T* const* rows, index_t count, index_t dim, float* out, index_t stride) {
  for (index_t j = 0; j < count; ++j)
    for (index_t d = 0; d < dim; ++d) out[j * stride + d] = static_cast<float>(rows[j][d]);
}

template <class T>
void values_portable(const float* p, const float* alpha, index_t rows, const T* const* values, index_t count,
                     index_t dim, float* o, index_t o_stride, Ahead<T>) {
  for (index_t r = 0; r < rows; ++r) {
    float* out = o + r * o_stride;
    for (index_t d = 0; d < dim; ++d) out[d] *= alpha[r];
    for (index_t j = 0; j < count; ++j) {
      const float weight = p[r * dense_block + j];
      const T* value = values[j];
      for (index_t d = 0; d < dim; ++d) out[d] += weight * static_cast<float>(value[d]);
    }
  }
}

inline void scores_packed_portable(const float* q, index_t q_stride, index_t rows, const float* packed, index_t dim,
                                   float* s) {
  for (index_t r = 0; r < rows; ++r) {
    float sum[dense_block] = {};
    for (index_t d = 0; d < dim; ++d) {
      const float x = q[r * q_stride + d];
      const float* column = packed + d * dense_block;
      for (int j = 0; j < dense_block; ++j) sum[j] += x * column[j];
    }
    std::memcpy(s + r * dense_block, sum, sizeof sum);
  }
}

template <class T>
inline constexpr DenseKernels<T> dense_portable{arrange_portable<T>, scores_portable<T>, pack_portable<T>,
                                                widen_portable<T>, values_portable<T>};
inline constexpr DenseFloatKernels dense_float_portable{scores_packed_portable, softmax_portable};

}  // namespace decant::attention::detail

#endif
