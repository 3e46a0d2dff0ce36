// decant: Cholesky factors in double precision of matrices as large as a layer is wide, in blocks, on the caller's
// threads: the factorisation, the inverse of a triangle, and the factor of an inverse that GPTQ works with.
// Blocks are the same on any number of threads, and so is the result, bit for bit.
#ifndef DECANT_QUANT_DETAIL_FACTOR_F64_HPP
#define DECANT_QUANT_DETAIL_FACTOR_F64_HPP

#include "../../core/math.hpp"
#include "product_f64.hpp"

namespace decant::quant::detail {

inline constexpr index_t factor_block = 64;

/// Runs tasks one after another: for factorisations inside a task.
struct OneByOne {
  template <class F>
  void parallel_for(index_t tasks, F&& body) {
    for (index_t i = 0; i < tasks; ++i) body(i);
  }
};

/// Doubles of scratch for the functions below.
constexpr index_t factor_scratch(index_t n) { return factor_block * n; }

/// a [n, n] becomes L, L L^T = a, in its lower triangle, which alone is read; above the diagonal anything may lie
/// afterwards. False, with `a` spoilt, when it is not positive definite to working precision. O(n^3 / 3).
template <class Run>
[[nodiscard]] bool factor_lower(Run& run, Isa isa, double* a, index_t n, double* scratch) {
  for (index_t begin = 0; begin < n; begin += factor_block) {
    const index_t size = n - begin < factor_block ? n - begin : factor_block;
    double* const corner = a + begin * n + begin;
    if (!cholesky(View<double, 2>(corner, {size, size}, {n, 1}))) return false;
    // The rows below, as columns of `scratch`: x solves x L^T = a, 64 rows at a time.
    const index_t below = begin + size;
    const index_t left = n - below;
    if (left == 0) break;
    const index_t chunks = (left + factor_block - 1) / factor_block;
    run.parallel_for(chunks, [&](index_t chunk) {
      const index_t first = chunk * factor_block;
      const index_t count = left - first < factor_block ? left - first : factor_block;
      double* const x = scratch + first;
      for (index_t r = 0; r < count; ++r) {
        const double* const row = a + (below + first + r) * n + begin;
        for (index_t j = 0; j < size; ++j) x[j * left + r] = row[j];
      }
      for (index_t j = 0; j < size; ++j) {
        double* const to = x + j * left;
        const double* const l = corner + j * n;
        product_f64(isa, {1, count, j, l, n, 1, x, left, to, left, 1, -1});
        for (index_t r = 0; r < count; ++r) to[r] /= l[j];
      }
      for (index_t r = 0; r < count; ++r) {
        double* const row = a + (below + first + r) * n + begin;
        for (index_t j = 0; j < size; ++j) row[j] = x[j * left + r];
      }
    });
    run.parallel_for(chunks, [&](index_t chunk) {
      const index_t first = chunk * factor_block;
      const index_t count = left - first < factor_block ? left - first : factor_block;
      double* const row = a + (below + first) * n;
      product_f64(isa, {count, first + count, size, row + begin, n, 1, scratch, left, row + below, n, 1, -1});
    });
  }
  return true;
}

/// l [n, n], a lower triangle, becomes its inverse; above the diagonal blocks nothing is written, in them zeros.
/// O(n^3 / 3).
template <class Run>
void invert_lower(Run& run, Isa isa, double* l, index_t n, double* scratch) {
  for (index_t begin = 0; begin < n; begin += factor_block) {
    const index_t size = n - begin < factor_block ? n - begin : factor_block;
    const index_t end = begin + size;
    for (index_t r = 0; r < size; ++r) {
      for (index_t j = 0; j < end; ++j) scratch[r * end + j] = l[(begin + r) * n + j];
    }
    // Row block i of the inverse: -L_ii^-1 (L_i. X) left of the diagonal, L_ii^-1 on it.
    run.parallel_for((end + factor_block - 1) / factor_block, [&](index_t chunk) {
      const index_t first = chunk * factor_block;
      const index_t count = end - first < factor_block ? end - first : factor_block;
      double* const x = l + begin * n + first;
      if (first < begin) {
        product_f64(isa, {size, count, begin - first, scratch + first, end, 1, l + first * n + first, n, x, n, 0, -1});
      } else {
        for (index_t r = 0; r < size; ++r) {
          for (index_t j = 0; j < count; ++j) x[r * n + j] = r == j ? 1 : 0;
        }
      }
      for (index_t r = 0; r < size; ++r) {
        const double* const row = scratch + r * end + begin;
        product_f64(isa, {1, count, r, row, end, 1, x, n, x + r * n, n, 1, -1});
        for (index_t j = 0; j < count; ++j) x[r * n + j] /= row[r];
      }
    });
  }
}

/// b [n, lanes] becomes the solution x of L L^T x = b for every lane; lanes at most 16, rows of b 16 apart.
inline void solve_factored(Isa isa, const double* l, index_t n, double* b) {
  for (index_t i = 0; i < n; ++i) {
    product_f64(isa, {1, 16, i, l + i * n, n, 1, b, 16, b + 16 * i, 16, 1, -1});
    for (index_t lane = 0; lane < 16; ++lane) b[16 * i + lane] /= l[i * n + i];
  }
  for (index_t i = n - 1; i >= 0; --i) {
    product_f64(isa, {1, 16, n - 1 - i, l + (i + 1) * n + i, 1, n, b + 16 * (i + 1), 16, b + 16 * i, 16, 1, -1});
    for (index_t lane = 0; lane < 16; ++lane) b[16 * i + lane] /= l[i * n + i];
  }
}

}  // namespace decant::quant::detail

#endif
