// Left empty where OpenBLAS is not installed.
#ifdef DECANT_BENCH_OPENBLAS
#include <cblas.h>

#include "gemv.hpp"

namespace baselines {

Product openblas_gemv(const Gemv& g) {
  return [g, next = std::ptrdiff_t{0}]() mutable {
    openblas_set_num_threads(g.threads);
    const int rows = static_cast<int>(g.rows), cols = static_cast<int>(g.cols), tokens = static_cast<int>(g.tokens);
    const float* const w = g.weights + next * g.rows * g.cols;
    next = (next + 1) % g.copies;
    if (tokens == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, rows, cols, 1.0f, w, cols, g.x, 1, 0.0f, g.y, 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, tokens, rows, cols, 1.0f, g.x, cols, w, cols, 0.0f, g.y,
                  rows);
    }
  };
}

}  // namespace baselines
#endif
