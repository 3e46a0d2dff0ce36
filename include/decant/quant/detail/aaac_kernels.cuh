// decant: the kernels of AAAC's fit on CUDA. A half-warp is the 16 lanes of detail/aaac_rows.hpp and takes a chunk of
// rows, so that every sum is the CPU's to the bit, and so are tables, choices, scales and codes. What decides how the
// fit goes on lies in device memory; kernels that have nothing to do return at once.
#ifndef DECANT_QUANT_DETAIL_AAAC_KERNELS_CUH
#define DECANT_QUANT_DETAIL_AAAC_KERNELS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../../core/cuda.cuh"
#include "../../core/detail/device.cuh"
#include "../aaac.hpp"

namespace decant::quant::detail {

inline constexpr int aaac_threads = 128;
inline constexpr int aaac_halves = aaac_threads / 16;

/// What the fit knows, in device memory.
template <class F>
struct AaacControl {
  float matrix;          // the matrix's scale
  bool nothing;          // no weight but zeros
  AaacTables tables;     // being fitted
  AaacTables start;      // what each descent of a start begins with
  AaacDescent descent;
  int seed;              // the table to be seeded, or -1
  double least;          // the best candidate's error
  typename F::Layer best;
  AaacTables best_tables;  // as floats
  typename F::Layer candidate;
  typename F::Layer if4;
  double candidate_error;
};

/// A matrix that is being fitted to. Weights are divided by their scales each time.
template <class F>
struct AaacDevice {
  F format;
  AaacControl<F>* control;
  AaacShape shape;
  View<const float, 2> w;
  bool squares;
  const float* importance;  // [cols]
  float* scale;             // [rows, scales]
  float* square;            // [rows, selects]
  float* error;             // [rows, selects]
  std::uint8_t* chosen;     // [rows, selects]
  double* sums;             // [chunks, 64]
  double* errors;           // [chunks]

  DECANT_HD index_t rows() const { return w.extent(0); }
  DECANT_HD index_t chunks() const { return (rows() + shape.chunk_rows() - 1) / shape.chunk_rows(); }
};

struct AaacDevicePass {
  bool choose = false;
  bool refit = false;
  bool accumulate = false;
  AaacTail tail = AaacTail::plain;
  int forced = -1;    // a table that all selection groups have
  bool asks = false;  // scales are refitted if the best candidate's are
};

/// 16 lanes of a warp.
struct AaacHalf {
  int lane;
  unsigned mask;

  __device__ static AaacHalf mine() {
    return {static_cast<int>(threadIdx.x % 16), 0xffffu << (threadIdx.x & 16u)};
  }
  /// The sum that fold16() gives, in all lanes.
  __device__ float sum(float x) const {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) x += __shfl_xor_sync(mask, x, offset);
    return x;
  }
  template <class Op>
  __device__ float reduce(float x, Op op) const {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(mask, x, offset));
    return x;
  }
};

__device__ inline void aaac_copy_tables(const AaacTables& from, AaacTables& to) {
  for (unsigned i = threadIdx.x; i < 32; i += blockDim.x) {
    to.table[i / 16][i % 16] = from.table[i / 16][i % 16];
    to.limit[i / 16][i % 16] = from.limit[i / 16][i % 16];
  }
  __syncthreads();
}

/// One scale's group in the hands of a half-warp.
struct AaacGroup {
  const AaacTables& t;
  const AaacShape& s;
  const float* w;           // [cols]
  const float* importance;  // [cols]
  index_t first, last;      // selection groups
  AaacHalf half;

  __device__ static float normalised(float w, float step) { return step > 0 ? w / step : 0.0f; }

  /// Each selection group's table as bits, and the sum of their errors; error and chosen, if there, receive each one's.
  /// running, if there, receives each error times square.
  __device__ double choose(float step, std::uint32_t& second, float* error, std::uint8_t* chosen, double square,
                           double* running) const {
    double sum = 0;
    second = 0;
    for (index_t i = first; i < last; ++i) {
      float lanes[2] = {};
      const index_t begin = i * s.select;
#pragma unroll 1
      for (index_t k = begin + half.lane; k < begin + s.count(i); k += 16) {
        const float u = normalised(w[k], step);
        const float each = importance[k];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float d = u - t.table[r][nearest_entry(t.limit[r], u)];
          lanes[r] = fmaf(__fmul_rn(each, d), d, lanes[r]);
        }
      }
      const float one = half.sum(lanes[0]);
      const float two = half.sum(lanes[1]);
      const float least = two < one ? two : one;
      if (two < one) second |= 1u << (i - first);
      sum += static_cast<double>(least);
      if (running) *running = add_product(*running, static_cast<double>(least), square);
      if (error && half.lane == 0) {
        error[i] = least;
        chosen[i] = two < one ? 1 : 0;
      }
    }
    return sum;
  }

  /// The scale that fits the codes of this one best.
  template <class F>
  __device__ float refitted(float scale, float step, std::uint32_t second) const {
    double product = 0;
    double square = 0;
    for (index_t i = first; i < last; ++i) {
      const unsigned r = second >> (i - first) & 1u;
      const index_t begin = i * s.select;
      float with_u = 0;
      float with_c = 0;
#pragma unroll 1
      for (index_t k = begin + half.lane; k < begin + s.count(i); k += 16) {
        const float u = normalised(w[k], step);
        const float c = t.table[r][nearest_entry(t.limit[r], u)];
        const float each = __fmul_rn(importance[k], c);
        with_u = fmaf(each, u, with_u);
        with_c = fmaf(each, c, with_c);
      }
      product += static_cast<double>(half.sum(with_u));
      square += static_cast<double>(half.sum(with_c));
    }
    return F::refitted(scale, product, square);
  }

  /// The largest magnitude.
  __device__ float largest() const {
    float top = 0;
    for (index_t k = first * s.select + half.lane; k < (last - 1) * s.select + s.count(last - 1); k += 16) {
      const float a = fabsf(w[k]);
      top = a > top ? a : top;
    }
    return half.reduce(top, ::decant::detail::Larger{});
  }
};

__device__ inline double aaac_squared(double sum, float scale) {
  return rounded_product(sum, static_cast<double>(scale) * static_cast<double>(scale));
}

/// Weights that are not finite; the largest magnitude of each row.
template <class F>
__global__ void __launch_bounds__(aaac_threads) aaac_look(View<const float, 2> w, float* largest, FaultWord* fault) {
  __shared__ float shared[32];
  for (index_t r = blockIdx.x; r < w.extent(0); r += gridDim.x) {
    float top = 0;
    for (index_t k = threadIdx.x; k < w.extent(1); k += blockDim.x) {
      const float a = fabsf(w(r, k));
      if (!isfinite(a)) ::decant::detail::report(fault, ::decant::detail::Fault::weights, 0, 0, r);
      top = a > top ? a : top;
    }
    top = ::decant::detail::block_reduce(top, ::decant::detail::Larger{}, 0.0f, shared);
    if (threadIdx.x == 0) largest[r] = top;
  }
}

/// The matrix's scale, and the importance as it is and over its mean. One warp.
template <class F>
__global__ void aaac_prepare(AaacControl<F>* control, int entries, const float* largest, index_t rows,
                             View<const float, 1> importance, index_t cols, float least, float* raw, float* relative,
                             FaultWord* fault) {
  const index_t lane = threadIdx.x;
  float top = 0;
  for (index_t r = lane; r < rows; r += 32) top = largest[r] > top ? largest[r] : top;
  top = ::decant::detail::warp_reduce(top, ::decant::detail::Larger{});
  double sum = 0;
  for (index_t k = lane; k < cols; k += 32) {
    const float each = importance.empty() ? 1.0f : importance[k];
    if (!(isfinite(each) && each >= 0)) ::decant::detail::report(fault, ::decant::detail::Fault::weights, 0, 1, k);
    raw[k] = each;
    sum += static_cast<double>(each);
  }
  double total = __shfl_sync(::decant::detail::whole_warp, sum, 0);
  for (int l = 1; l < 32; ++l) total += __shfl_sync(::decant::detail::whole_warp, sum, l);
  for (index_t k = lane; k < cols; k += 32) relative[k] = relative_importance(raw[k], total, cols, least);
  if (lane != 0) return;
  control->matrix = F::matrix_scale(top);
  control->nothing = false;
  control->descent.done = false;
  control->seed = -1;
  control->least = no_error_yet;
  AaacTables tables;
  if (entries >= 15) if4_start(entries, tables);
  control->if4 = entries >= 15 ? F::of_tables(tables.table, control->matrix) : F::if4(control->matrix);
  control->best = control->if4;
}

/// Scales from the largest weights.
template <class F>
__global__ void __launch_bounds__(aaac_threads) aaac_begin(AaacDevice<F> d) {
  const AaacHalf half = AaacHalf::mine();
  const AaacShape& s = d.shape;
  const float matrix = d.control->matrix;
  const AaacTables& unused = d.control->tables;
  const index_t all = d.rows() * s.scales;
  const index_t first = index_t{blockIdx.x} * aaac_halves + threadIdx.x / 16;
  for (index_t g = first; g < all; g += index_t{gridDim.x} * aaac_halves) {
    const index_t r = g / s.scales;
    const index_t j = g % s.scales;
    const AaacGroup group{unused, s, &d.w(r, index_t{0}), d.importance, s.first_of(j), s.last_of(j), half};
    float scale = F::scale_of(matrix, group.largest());
    if (!(F::step(matrix, scale) > 0)) scale = 0;
    if (half.lane == 0) d.scale[g] = scale;
    for (index_t i = group.first + half.lane; i < group.last; i += 16)
      d.square[r * s.selects + i] = scale > 0 ? d.squares ? scale * scale : 1.0f : 0.0f;
  }
}

/// The half-warp's part of a pass: one chunk, or none.
template <class F>
__global__ void __launch_bounds__(aaac_threads) aaac_sweep(AaacDevice<F> d, AaacDevicePass pass) {
  __shared__ AaacTables t;
  __shared__ float lanes[aaac_halves][32][2][16];
  if (pass.choose && d.control->descent.done) return;
  aaac_copy_tables(d.control->tables, t);
  const AaacHalf half = AaacHalf::mine();
  const index_t chunk = index_t{blockIdx.x} * aaac_halves + threadIdx.x / 16;
  if (chunk >= d.chunks()) return;
  float (*const mine)[2][16] = lanes[threadIdx.x / 16];
  for (int c = 0; c < 64; ++c) mine[c / 2][c % 2][half.lane] = 0;
  const AaacShape& s = d.shape;
  const float matrix = d.control->matrix;
  const index_t size = s.chunk_rows();
  const index_t end = (chunk + 1) * size < d.rows() ? (chunk + 1) * size : d.rows();
  double running = 0;
  for (index_t r = chunk * size; r < end; ++r) {
    float* const error = d.error + r * s.selects;
    std::uint8_t* const chosen = d.chosen + r * s.selects;
    float* const square = d.square + r * s.selects;
    for (index_t j = 0; j < s.scales; ++j) {
      const AaacGroup group{t, s, &d.w(r, index_t{0}), d.importance, s.first_of(j), s.last_of(j), half};
      float scale = d.scale[r * s.scales + j];
      std::uint32_t second = 0;
      if (pass.choose) {
        const double squared = d.squares ? static_cast<double>(scale) * static_cast<double>(scale) : 1.0;
        const double sum = group.choose(F::step(matrix, scale), second, error, chosen, squared,
                                        scale > 0 ? &running : nullptr);
        if (pass.refit && (!pass.asks || d.control->best.refits > 0)) {
          const float other = group.template refitted<F>(scale, F::step(matrix, scale), second);
          if (other != scale && F::step(matrix, other) > 0) {
            std::uint32_t trial = 0;
            const double other_sum = group.choose(F::step(matrix, other), trial, nullptr, nullptr, 0, nullptr);
            if (aaac_squared(other_sum, other) < aaac_squared(sum, scale)) {
              __syncwarp(half.mask);
              scale = other;
              group.choose(F::step(matrix, scale), second, error, chosen, 0, nullptr);
              if (half.lane == 0) d.scale[r * s.scales + j] = scale;
              for (index_t i = group.first + half.lane; i < group.last; i += 16) square[i] = scale * scale;
            }
          }
        }
      } else if (pass.forced < 0) {
        for (index_t i = group.first; i < group.last; ++i) second |= std::uint32_t{chosen[i]} << (i - group.first);
      } else {
        second = pass.forced != 0 ? ~0u : 0u;
      }
      if (!pass.accumulate) continue;
      const float step = F::step(matrix, scale);
      const float squared = scale > 0 ? d.squares ? scale * scale : 1.0f : 0.0f;
      for (index_t i = group.first; i < group.last; ++i) {
        const unsigned table = second >> (i - group.first) & 1u;
        const index_t begin = i * s.select;
        for (index_t k = begin + half.lane; k < begin + s.count(i); k += 16) {
          const float u = AaacGroup::normalised(group.w[k], step);
          const float weight = d.importance[k];
          const float each = pass.tail == AaacTail::magnitude ? __fmul_rn(weight, fabsf(u)) : weight;
          float (*const cell)[16] = mine[table * 16 + static_cast<unsigned>(nearest_entry(t.limit[table], u))];
          cell[0][half.lane] = fmaf(__fmul_rn(each, u), squared, cell[0][half.lane]);
          cell[1][half.lane] = fmaf(each, squared, cell[1][half.lane]);
        }
      }
    }
  }
  if (half.lane == 0) d.errors[chunk] = running;
  if (!pass.accumulate) return;
  __syncwarp(half.mask);
  for (int c = half.lane; c < 64; c += 16) {
    double sum = 0;
    for (int l = 0; l < 16; ++l) sum += static_cast<double>(mine[c / 2][c % 2][l]);
    d.sums[chunk * 64 + c] = sum;
  }
}

/// The chunks' sums in order; then the tables move. pass < 0: each selection group keeps its table. One block of 96.
template <class F>
__global__ void aaac_move(AaacDevice<F> d, int pass, bool last, int entries) {
  __shared__ double sums[65];
  AaacControl<F>& control = *d.control;
  if (pass >= 0 && control.descent.done) return;
  const int c = static_cast<int>(threadIdx.x);
  if (c <= 64) {
    const double* const from = c < 64 ? d.sums + c : d.errors;
    const index_t stride = c < 64 ? 64 : 1;
    const index_t chunks = (c < 64 && last) || (c == 64 && pass < 0) ? 0 : d.chunks();
    double sum = 0;
    index_t chunk = 0;
    for (; chunk + 16 <= chunks; chunk += 16) {
      double part[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) part[i] = from[(chunk + i) * stride];
#pragma unroll
      for (int i = 0; i < 16; ++i) sum += part[i];
    }
    for (; chunk < chunks; ++chunk) sum += from[chunk * stride];
    sums[c] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (pass < 0) {
    for (int t = 0; t < 2; ++t) move_table(control.tables, t, sums, entries);
  } else {
    control.seed = control.descent.after(pass, last, sums[64], sums, entries, control.tables);
  }
}

/// Each selection group's table by the sign of its largest weight.
template <class F>
__global__ void __launch_bounds__(aaac_threads) aaac_choose_by_sign(AaacDevice<F> d) {
  const AaacHalf half = AaacHalf::mine();
  const AaacShape& s = d.shape;
  const index_t all = d.rows() * s.selects;
  const index_t first = index_t{blockIdx.x} * aaac_halves + threadIdx.x / 16;
  for (index_t g = first; g < all; g += index_t{gridDim.x} * aaac_halves) {
    const index_t r = g / s.selects;
    const index_t i = g % s.selects;
    const float step = F::step(d.control->matrix, d.scale[r * s.scales + i / s.per_scale]);
    float least = 0;
    float most = 0;
    for (index_t k = i * s.select + half.lane; k < i * s.select + s.count(i); k += 16) {
      const float u = AaacGroup::normalised(d.w(r, k), step);
      least = u < least ? u : least;
      most = u > most ? u : most;
    }
    least = -half.reduce(-least, ::decant::detail::Larger{});
    most = half.reduce(most, ::decant::detail::Larger{});
    if (half.lane == 0) d.chosen[g] = -least > most ? 0 : 1;
  }
}

/// What a single thread sets between other kernels.
enum class AaacStep : int {
  both_alike,     // the second table is the first
  if4,            // the tables are IF4's
  keep_start,     // a start's tables are kept
  descend,        // a descent begins, from the tables kept
  candidate,      // the descent's tables are a candidate, its scales as they are
  candidate_refit,
  descend_more,   // the best candidate's tables are fitted further
  best_is_more,   // they are the best
  paper,          // the tables are the result
};

template <class F>
__global__ void aaac_step(AaacControl<F>* control, AaacStep step, int entries) {
  AaacControl<F>& c = *control;
  switch (step) {
    case AaacStep::both_alike:
      set_table(c.tables, 1, c.tables.table[0], 16);
      break;
    case AaacStep::if4:
      if4_start(entries, c.tables);
      break;
    case AaacStep::keep_start:
      c.start = c.tables;
      break;
    case AaacStep::descend:
    case AaacStep::descend_more:
      c.tables = step == AaacStep::descend ? c.start : c.best_tables;
      c.descent = AaacDescent{};
      c.seed = -1;
      break;
    case AaacStep::candidate:
    case AaacStep::candidate_refit:
      if (c.descent.least < no_error_yet) c.tables = c.descent.best;
      c.candidate = F::of_tables(c.tables.table, c.matrix, step == AaacStep::candidate_refit ? aaac_refits : 0);
      break;
    case AaacStep::best_is_more:
      if (c.descent.least < no_error_yet)
        c.best = F::of_tables(c.descent.best.table, c.matrix, c.best.refits);
      break;
    case AaacStep::paper:
      c.best = c.nothing ? F::if4(c.matrix) : F::of_tables(c.tables.table, c.matrix);
      break;
  }
}

/// The rows' errors in order; the candidate becomes the best if it errs less, and the best IF4's tables if they do.
enum class AaacVerdict : int { candidate, best, if4 };
template <class F>
__global__ void aaac_judge(AaacControl<F>* control, AaacVerdict what, const double* error, index_t rows) {
  double sum = 0;
  index_t r = 0;
  for (; r + 16 <= rows; r += 16) {
    double part[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) part[i] = error[r + i];
#pragma unroll
    for (int i = 0; i < 16; ++i) sum += part[i];
  }
  for (; r < rows; ++r) sum += error[r];
  AaacControl<F>& c = *control;
  if (what == AaacVerdict::candidate && sum < c.least) {
    c.least = sum;
    c.best = c.candidate;
    c.best_tables = c.tables;
  }
  if (what == AaacVerdict::best) c.candidate_error = sum;
  if (what == AaacVerdict::if4 && !(c.candidate_error <= sum)) c.best = c.if4;
}

/// Packed::row, on the device.
template <class F>
__device__ std::byte* aaac_row(const Packed<F, std::byte>& out, index_t r) {
  return out.data() + (out.format().layer_bytes() + 63) / 64 * 64 + r * out.row_bytes();
}

/// Zeros where a matrix will be, and what it shares. Nothing after a fault.
template <class F>
__global__ void __launch_bounds__(256)
    aaac_clear(Packed<F, std::byte> out, index_t bytes, const typename F::Layer* layer, const FaultWord* fault) {
  if (::decant::detail::faulted(fault)) return;
  const index_t shared = out.format().layer_bytes();
  for (index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += index_t{gridDim.x} * blockDim.x)
    if (i >= shared) out.data()[i] = std::byte{0};
  if (blockIdx.x == 0 && threadIdx.x == 0) out.format().store_layer(*layer, out.data());
}

/// A half-warp per row: F::fit of each group; its error, and its bytes where `write`.
template <class F>
__global__ void __launch_bounds__(aaac_threads, 8)
    aaac_fit_groups(F format, AaacShape s, const typename F::Layer* layer, View<const float, 2> w,
                    const float* importance, double* error, Packed<F, std::byte> out, bool write,
                    const FaultWord* fault) {
  __shared__ AaacTables t;
  for (unsigned i = threadIdx.x; i < 32; i += blockDim.x) {
    t.table[i / 16][i % 16] = layer->table[i / 16][i % 16];
    t.limit[i / 16][i % 16] = layer->limit[i / 16][i % 16];
  }
  __syncthreads();
  const AaacHalf half = AaacHalf::mine();
  const index_t r = index_t{blockIdx.x} * aaac_halves + threadIdx.x / 16;
  if (r >= w.extent(0)) return;
  write = write && !::decant::detail::faulted(fault);
  const float matrix = layer->scale;
  const int refits = layer->refits;
  double sum = 0;
  for (index_t j = 0; j < s.scales; ++j) {
    const AaacGroup group{t, s, &w(r, index_t{0}), importance, s.first_of(j), s.last_of(j), half};
    typename F::Group best{0, 0};
    double least = 0;
    float scale = F::scale_of(matrix, group.largest());
    for (int round = 0; scale != best.scale && F::step(matrix, scale) > 0; ++round) {
      std::uint32_t second = 0;
      const double e =
          aaac_squared(group.choose(F::step(matrix, scale), second, nullptr, nullptr, 0, nullptr), scale);
      if (round > 0 && !(e < least)) break;
      least = e;
      best = {scale, second};
      if (round == refits) break;
      scale = group.template refitted<F>(scale, F::step(matrix, scale), second);
    }
    sum += least;
    if (write && half.lane == 0) format.store_group(*layer, best, aaac_row(out, r), s.cols, j);
  }
  if (half.lane == 0) error[r] = sum;
}

/// A thread per byte of two codes, of the groups that are stored.
template <class F>
__global__ void __launch_bounds__(256) aaac_codes(const typename F::Layer* layer, View<const float, 2> w,
                                                  Packed<F, std::byte> out, const FaultWord* fault) {
  if (::decant::detail::faulted(fault)) return;
  const F format = out.format();
  const index_t cols = out.cols();
  const index_t bytes = (cols + 1) / 2;
  const index_t size = format.group_size(cols);
  for (index_t b = index_t{blockIdx.x} * blockDim.x + threadIdx.x; b < bytes * out.rows();
       b += index_t{gridDim.x} * blockDim.x) {
    const index_t r = b / bytes;
    std::byte* const row = aaac_row(out, r);
    unsigned byte = 0;
    for (index_t i = 0; i < 2; ++i) {
      const index_t k = b % bytes * 2 + i;
      if (k >= cols) break;
      const typename F::Group g = format.load_group(*layer, row, cols, k / size);
      byte |= unsigned{format.nearest(*layer, g, k % size, w(r, k))} << (4 * i);
    }
    row[b % bytes] = static_cast<std::byte>(byte);
  }
}

}  // namespace decant::quant::detail

#endif
