// Left empty where OpenBLAS is not installed; its exp is Eigen's, as a BLAS has none.
#ifdef DECANT_BENCH_OPENBLAS
#include <cblas.h>

#include <cmath>

#include "decode.hpp"
#include "softmax.hpp"

namespace baselines {

Step openblas_decode(const Decode& step) {
  return [d = step, scores = std::vector<float>(static_cast<std::size_t>(step.group * step.tokens))]() mutable {
    openblas_set_num_threads(d.threads);
    const float scale = 1.0f / std::sqrt(static_cast<float>(d.dim));
    const int group = static_cast<int>(d.group), tokens = static_cast<int>(d.tokens), dim = static_cast<int>(d.dim);
    float* const s = scores.data();
    for (std::ptrdiff_t h = 0; h < d.kv_heads; ++h) {
      const float* query = d.q + h * d.group * d.dim;
      const float* k = d.wide_keys + h * d.tokens * d.dim;
      const float* v = d.wide_values + h * d.tokens * d.dim;
      float* o = d.out + h * d.group * d.dim;
      if (group == 1) {
        cblas_sgemv(CblasRowMajor, CblasNoTrans, tokens, dim, scale, k, dim, query, 1, 0.0f, s, 1);
      } else {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, group, tokens, dim, scale, query, dim, k, dim, 0.0f, s,
                    tokens);
      }
      softmax_rows(Eigen::Map<Rows>(s, group, tokens));
      if (group == 1) {
        cblas_sgemv(CblasRowMajor, CblasTrans, tokens, dim, 1.0f, v, dim, s, 1, 0.0f, o, 1);
      } else {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, group, dim, tokens, 1.0f, s, tokens, v, dim, 0.0f, o,
                    dim);
      }
    }
  };
}

}  // namespace baselines
#endif
