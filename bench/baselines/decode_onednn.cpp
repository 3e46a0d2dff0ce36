// Left empty where oneDNN is not installed. Its version 2 has no attention: a batched matrix product, its softmax over the
// keys, and a batched product again, the KV heads being the batch.
#ifdef DECANT_BENCH_ONEDNN
#include <omp.h>

#include <cmath>
#include <memory>
#include <unordered_map>

#include <dnnl.hpp>

#include "decode.hpp"

namespace baselines {
namespace {

using Dims = dnnl::memory::dims;
using dnnl::memory;

struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  memory q, scores, weights, out;
  dnnl::matmul score, sum;
  dnnl::softmax_v2_forward softmax;
  std::unordered_map<int, memory> score_arguments, softmax_arguments, sum_arguments;

  explicit OneDnn(const Decode& d) {
    const bool as_stored = d.type == Type::bf16;
    const auto type = as_stored ? memory::data_type::bf16 : memory::data_type::f32;
    const auto f32 = memory::data_type::f32;
    const memory::desc rows({d.kv_heads, d.group, d.dim}, type, memory::format_tag::abc);
    const memory::desc wide_rows({d.kv_heads, d.group, d.dim}, f32, memory::format_tag::abc);
    const memory::desc keys({d.kv_heads, d.dim, d.tokens}, type, memory::format_tag::acb);
    const memory::desc values({d.kv_heads, d.tokens, d.dim}, type, memory::format_tag::abc);
    const memory::desc products({d.kv_heads, d.group, d.tokens}, f32, memory::format_tag::abc);
    const memory::desc shares({d.kv_heads, d.group, d.tokens}, type, memory::format_tag::abc);

    dnnl::primitive_attr scaled;
    scaled.set_output_scales(0, {1.0f / std::sqrt(static_cast<float>(d.dim))});
    score = dnnl::matmul({{rows, keys, products}, scaled, engine});
    softmax = dnnl::softmax_v2_forward({{dnnl::prop_kind::forward_inference, dnnl::algorithm::softmax_accurate,
                                         products, shares, 2},
                                        engine});
    sum = dnnl::matmul({{shares, values, wide_rows}, engine});

    const auto in_place = [](const void* p) { return const_cast<void*>(p); };
    const memory wide_q(wide_rows, engine, in_place(d.q));
    q = memory(rows, engine);
    dnnl::reorder(wide_q, q).execute(stream, const_cast<memory&>(wide_q), q);
    scores = memory(products, engine);
    weights = memory(shares, engine);
    out = memory(wide_rows, engine, d.out);
    const memory k(keys, engine, in_place(as_stored ? d.keys : d.wide_keys));
    const memory v(values, engine, in_place(as_stored ? d.values : d.wide_values));
    score_arguments = {{DNNL_ARG_SRC, q}, {DNNL_ARG_WEIGHTS, k}, {DNNL_ARG_DST, scores}};
    softmax_arguments = {{DNNL_ARG_SRC, scores}, {DNNL_ARG_DST, weights}};
    sum_arguments = {{DNNL_ARG_SRC, weights}, {DNNL_ARG_WEIGHTS, v}, {DNNL_ARG_DST, out}};
  }

  void run() {
    score.execute(stream, score_arguments);
    softmax.execute(stream, softmax_arguments);
    sum.execute(stream, sum_arguments);
    stream.wait();
  }
};

}  // namespace

Step onednn_decode(const Decode& d) {
  omp_set_num_threads(d.threads);  // primitives are made for a number of threads
  return [library = std::make_shared<OneDnn>(d), threads = d.threads] {
    omp_set_num_threads(threads);
    library->run();
  };
}

}  // namespace baselines
#endif
