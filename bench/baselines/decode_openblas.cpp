// Left empty where OpenBLAS is not installed; its exp is Eigen's, as a BLAS has none.
#ifdef DECANT_BENCH_OPENBLAS
#include <cblas.h>

#include <cmath>

#include "decode.hpp"
#include "softmax.hpp"

namespace baselines {

void openblas_decode(const DecodeShape& shape, const float* q, const float* keys, const float* values, float* scores,
                     float* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.dim));
  const int group = static_cast<int>(shape.group), tokens = static_cast<int>(shape.tokens);
  const int dim = static_cast<int>(shape.dim);
  for (std::ptrdiff_t h = 0; h < shape.kv_heads; ++h) {
    const float* query = q + h * shape.group * shape.dim;
    const float* k = keys + h * shape.tokens * shape.dim;
    const float* v = values + h * shape.tokens * shape.dim;
    float* o = out + h * shape.group * shape.dim;
    if (group == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, tokens, dim, scale, k, dim, query, 1, 0.0f, scores, 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, group, tokens, dim, scale, query, dim, k, dim, 0.0f, scores,
                  tokens);
    }
    softmax_rows(Eigen::Map<Rows>(scores, group, tokens));
    if (group == 1) {
      cblas_sgemv(CblasRowMajor, CblasTrans, tokens, dim, 1.0f, v, dim, scores, 1, 0.0f, o, 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, group, dim, tokens, 1.0f, scores, tokens, v, dim, 0.0f, o,
                  dim);
    }
  }
}

}  // namespace baselines
#endif
