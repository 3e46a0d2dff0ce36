// Left empty where ggml's CMake package is not found. As llama.cpp calls it: one query of all heads over an fp16 cache,
// heads outermost; the graph is built once.
#ifdef DECANT_BENCH_GGML
#include <ggml-cpu.h>
#include <ggml.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>

#include "decode.hpp"

namespace baselines {
namespace {

struct Ggml {
  struct Free {
    void operator()(ggml_context* context) const { ggml_free(context); }
  };
  std::unique_ptr<ggml_context, Free> context;
  std::vector<ggml_fp16_t> keys, values;
  std::vector<std::uint8_t> work;
  ggml_cgraph* graph;
  ggml_cplan plan;

  explicit Ggml(const Decode& d) {
    ggml_cpu_init();
    context.reset(ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true}));
    const auto rows = [&](ggml_type type, std::ptrdiff_t tokens, std::ptrdiff_t heads, const void* data) {
      ggml_tensor* const t = ggml_new_tensor_3d(context.get(), type, d.dim, tokens, heads);
      t->data = const_cast<void*>(data);
      return t;
    };
    const auto narrow = [&](const float* from, std::vector<ggml_fp16_t>& to) -> const void* {
      to.resize(static_cast<std::size_t>(d.kv_heads * d.tokens * d.dim));
      ggml_fp32_to_fp16_row(from, to.data(), static_cast<std::int64_t>(to.size()));
      return to.data();
    };
    const bool as_stored = d.type == Type::f32 || d.type == Type::f16;
    const ggml_type type = d.type == Type::f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    ggml_tensor* const q = rows(GGML_TYPE_F32, 1, d.kv_heads * d.group, d.q);
    ggml_tensor* const k = rows(type, d.tokens, d.kv_heads, as_stored ? d.keys : narrow(d.wide_keys, keys));
    ggml_tensor* const v = rows(type, d.tokens, d.kv_heads, as_stored ? d.values : narrow(d.wide_values, values));
    ggml_tensor* const o = ggml_flash_attn_ext(context.get(), q, k, v, nullptr,
                                               1.0f / std::sqrt(static_cast<float>(d.dim)), 0.0f, 0.0f);
    o->data = d.out;
    graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, o);
    plan = ggml_graph_plan(graph, d.threads, nullptr);
    work.resize(plan.work_size);
    plan.work_data = work.data();
  }

  void run() {
    if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) throw std::runtime_error("ggml_graph_compute failed");
  }
};

}  // namespace

Step ggml_decode(const Decode& d) {
  if (d.type == Type::other) return {};
  return [library = std::make_shared<Ggml>(d)] { library->run(); };
}

}  // namespace baselines
#endif
