#include "decode.hpp"

namespace baselines {

std::vector<std::pair<std::string, Step>> decode_peers(const Decode& step) {
  std::vector<std::pair<std::string, Step>> peers;
  [[maybe_unused]] const auto add = [&](const char* name, Step call) {
    if (call) peers.emplace_back(name, std::move(call));
  };
#ifdef DECANT_BENCH_EIGEN
  add("eigen", eigen_decode(step));
#endif
#ifdef DECANT_BENCH_OPENBLAS
  add("openblas", openblas_decode(step));
#endif
#ifdef DECANT_BENCH_ONEDNN
  add("onednn", onednn_decode(step));
#endif
#ifdef DECANT_BENCH_GGML
  add("ggml", ggml_decode(step));
#endif
#ifdef DECANT_BENCH_TORCH
  add("torch", torch_decode(step));
#endif
  return peers;
}

}  // namespace baselines
