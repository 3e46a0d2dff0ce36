#include "gemv.hpp"

namespace baselines {

std::vector<std::pair<std::string, Product>> gemv_peers(const Gemv& g) {
  std::vector<std::pair<std::string, Product>> peers;
  [[maybe_unused]] const auto add = [&](const char* name, Product call) {
    if (call) peers.emplace_back(name, std::move(call));
  };
#ifdef DECANT_BENCH_OPENBLAS
  add("openblas_f32", openblas_gemv(g));
#endif
#ifdef DECANT_BENCH_EIGEN
  add("eigen_f32", eigen_gemv(g));
#endif
#ifdef DECANT_BENCH_ONEDNN
  add("onednn_bf16", onednn_bf16_gemv(g));
  add("onednn_int8", onednn_int8_gemv(g));
#endif
#ifdef DECANT_BENCH_GGML
  add("ggml_q4_0", ggml_q4_0_gemv(g));
  add("ggml_q4_0_repacked", ggml_q4_0_repacked_gemv(g));
#endif
  return peers;
}

}  // namespace baselines
