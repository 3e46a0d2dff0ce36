// Left empty where oneDNN is not installed. An inner product whose weights are in the layout that oneDNN asks for. Its
// int8 weights have one scale per row: fewer bytes of scales, and larger errors, than groups along the row.
#ifdef DECANT_BENCH_ONEDNN
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include <dnnl.hpp>

#include "gemv.hpp"

namespace baselines {
namespace {

using dnnl::memory;
using Type = memory::data_type;

struct InnerProduct {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::inner_product_forward product;
  memory x, y;
  std::vector<memory> weights;
  std::size_t next = 0;

  InnerProduct(const Gemv& g, Type x_type, Type w_type) {
    const memory::desc source({g.tokens, g.cols}, x_type, memory::format_tag::nc);
    const memory::desc stored({g.rows, g.cols}, w_type, memory::format_tag::any);
    const memory::desc plain({g.rows, g.cols}, Type::f32, memory::format_tag::oi);
    const memory::desc wide({g.tokens, g.cols}, Type::f32, memory::format_tag::nc);
    const memory::desc out({g.tokens, g.rows}, Type::f32, memory::format_tag::nc);
    dnnl::primitive_attr scaled;
    std::vector<float> by_row(static_cast<std::size_t>(g.rows), 1.0f), inverse = by_row;
    float x_scale = 1;
    if (w_type == Type::s8) {
      float top = 0;
      for (std::ptrdiff_t i = 0; i < g.tokens * g.cols; ++i) top = std::max(top, std::abs(g.x[i]));
      x_scale = top / 127;
      for (std::ptrdiff_t r = 0; r < g.rows; ++r) {
        float largest = 0;
        for (std::ptrdiff_t k = 0; k < g.cols; ++k) largest = std::max(largest, std::abs(g.weights[r * g.cols + k]));
        by_row[static_cast<std::size_t>(r)] = largest / 127 * x_scale;
        inverse[static_cast<std::size_t>(r)] = 127 / largest;
      }
      scaled.set_output_scales(2, by_row);
    }
    const dnnl::inner_product_forward::desc description(dnnl::prop_kind::forward_inference, source, stored, out);
    const dnnl::inner_product_forward::primitive_desc chosen(description, scaled, engine);
    product = dnnl::inner_product_forward(chosen);

    const auto convert = [&](const memory::desc& from, const float* data, const memory::desc& to, int mask,
                             const std::vector<float>& scales) {
      dnnl::primitive_attr attributes;
      if (w_type == Type::s8) attributes.set_output_scales(mask, scales);
      memory source_memory(from, engine, const_cast<float*>(data));
      memory result(to, engine);
      dnnl::reorder(dnnl::reorder::primitive_desc(engine, from, engine, to, attributes))
          .execute(stream, source_memory, result);
      stream.wait();
      return result;
    };
    x = convert(wide, g.x, source, 0, {1 / x_scale});
    const std::ptrdiff_t size = w_type == Type::s8 ? 1 : 2;
    const std::ptrdiff_t copies = g.copies == 1 ? 1 : g.copies * 4 / size;
    for (std::ptrdiff_t i = 0; i < copies; ++i)
      weights.push_back(convert(plain, g.weights, chosen.weights_desc(), 1, inverse));
    y = memory(out, engine, g.y);
  }

  void run() {
    product.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weights[next]}, {DNNL_ARG_DST, y}});
    stream.wait();
    next = (next + 1) % weights.size();
  }
};

Product inner_product(const Gemv& g, Type x_type, Type w_type) {
  omp_set_num_threads(g.threads);  // primitives are made for a number of threads
  return [library = std::make_shared<InnerProduct>(g, x_type, w_type), threads = g.threads] {
    omp_set_num_threads(threads);
    library->run();
  };
}

}  // namespace

Product onednn_bf16_gemv(const Gemv& g) { return inner_product(g, Type::bf16, Type::bf16); }
Product onednn_int8_gemv(const Gemv& g) { return inner_product(g, Type::s8, Type::s8); }

}  // namespace baselines
#endif
