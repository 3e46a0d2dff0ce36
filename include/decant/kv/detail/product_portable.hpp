// decant: the small dense product behind the scorers, C = A B or C += A B, in plain C++ and in any real type: blocks of
// 4 rows and 16 columns that stay in registers.
#ifndef DECANT_KV_DETAIL_PRODUCT_PORTABLE_HPP
#define DECANT_KV_DETAIL_PRODUCT_PORTABLE_HPP

#include "../../core/error.hpp"

namespace decant::kv::detail {

/// C[m][n] (+)= sum over k of A(m, k) B[k][n]. A(m, k) = a[m * a_row + k * a_column]; B and C have contiguous rows, ldb
/// and ldc apart. n is a multiple of 16.
template <class Real>
struct Product {
  index_t m, n, k;
  const Real* a;
  index_t a_row, a_column;
  const Real* b;
  index_t ldb;
  Real* c;
  index_t ldc;
  bool add;
};

template <int Rows, class Real>
DECANT_INLINE void product_block(const Product<Real>& p, index_t i, index_t j) {
  Real sum[Rows][16] = {};
  const Real* a = p.a + i * p.a_row;
  const Real* b = p.b + j;
  for (index_t k = 0; k < p.k; ++k, a += p.a_column, b += p.ldb) {
    for (int r = 0; r < Rows; ++r) {
      const Real x = a[r * p.a_row];
      for (int l = 0; l < 16; ++l) sum[r][l] += x * b[l];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    Real* const c = p.c + (i + r) * p.ldc + j;
    for (int l = 0; l < 16; ++l) c[l] = p.add ? c[l] + sum[r][l] : sum[r][l];
  }
}

template <class Real>
void product_portable(const Product<Real>& p) {
  for (index_t j = 0; j < p.n; j += 16) {
    index_t i = 0;
    for (; i + 4 <= p.m; i += 4) product_block<4>(p, i, j);
    for (; i < p.m; ++i) product_block<1>(p, i, j);
  }
}

}  // namespace decant::kv::detail

#endif
