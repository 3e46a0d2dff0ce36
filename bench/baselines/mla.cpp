// Without Eigen there are no peers: the OpenBLAS variant takes its exp from there.
#include "mla.hpp"

#ifdef DECANT_BENCH_EIGEN
#include <cmath>

#include "softmax.hpp"
#ifdef DECANT_BENCH_OPENBLAS
#include <cblas.h>
#endif

namespace baselines {

namespace {

using ConstRows = Eigen::Map<const Rows, 0, Eigen::OuterStride<>>;
using Vector = Eigen::Map<Eigen::RowVectorXf>;
using ConstVector = Eigen::Map<const Eigen::RowVectorXf>;

struct Scratch {
  Rows q, scores, o;
  explicit Scratch(const MlaStep& x)
      : q(x.heads, x.latent + x.rope), scores(x.heads, x.tokens), o(x.heads, x.latent) {}
};

float scale_of(const MlaStep& x) {
  return 1.0f / std::sqrt(static_cast<float>(x.nope + x.rope));
}

/// What both have in common: the products with one head's weights, a matrix and a vector each.
template <class Attention>
void step(const MlaStep& x, Scratch& s, Attention attention) {
  for (std::ptrdiff_t h = 0; h < x.heads; ++h) {
    const ConstRows uk(x.kv_b + h * (x.nope + x.value) * x.latent, x.nope, x.latent, Eigen::OuterStride<>(x.latent));
    s.q.row(h).head(x.latent).noalias() = ConstVector(x.q_nope + h * x.nope, x.nope) * uk;
    s.q.row(h).tail(x.rope) = ConstVector(x.q_pe + h * x.rope, x.rope);
  }
  attention();
  for (std::ptrdiff_t h = 0; h < x.heads; ++h) {
    const ConstRows uv(x.kv_b + (h * (x.nope + x.value) + x.nope) * x.latent, x.value, x.latent,
                       Eigen::OuterStride<>(x.latent));
    Vector(x.out + h * x.value, x.value).noalias() = s.o.row(h) * uv.transpose();
  }
}

}  // namespace

std::vector<std::pair<std::string, std::function<void()>>> mla_peers(const MlaStep& x) {
  std::vector<std::pair<std::string, std::function<void()>>> peers;
  peers.emplace_back("eigen", [x, s = Scratch(x)]() mutable {
    step(x, s, [&] {
      const std::ptrdiff_t dim = x.latent + x.rope;
      const ConstRows keys(x.rows, x.tokens, dim, Eigen::OuterStride<>(dim));
      const ConstRows values(x.rows, x.tokens, x.latent, Eigen::OuterStride<>(dim));
      s.scores.noalias() = scale_of(x) * s.q * keys.transpose();
      softmax_rows(s.scores);
      s.o.noalias() = s.scores * values;
    });
  });
#ifdef DECANT_BENCH_OPENBLAS
  peers.emplace_back("openblas", [x, s = Scratch(x)]() mutable {
    openblas_set_num_threads(1);
    step(x, s, [&] {
      const int heads = static_cast<int>(x.heads), tokens = static_cast<int>(x.tokens);
      const int latent = static_cast<int>(x.latent), dim = static_cast<int>(x.latent + x.rope);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, heads, tokens, dim, scale_of(x), s.q.data(), dim, x.rows, dim,
                  0.0f, s.scores.data(), tokens);
      softmax_rows(s.scores);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, heads, latent, tokens, 1.0f, s.scores.data(), tokens,
                  x.rows, dim, 0.0f, s.o.data(), latent);
    });
  });
#endif
  return peers;
}

}  // namespace baselines

#else

namespace baselines {

std::vector<std::pair<std::string, std::function<void()>>> mla_peers(const MlaStep&) {
  return {};
}

}  // namespace baselines

#endif
