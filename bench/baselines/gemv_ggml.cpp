// Left empty where ggml's CMake package is not found. Its mul_mat of a Q4_0 matrix by vectors in fp32, which it makes
// Q8_0 in each call: with rows as a file has them, and in the order that its CPU backend gives them when it loads a
// model.
#ifdef DECANT_BENCH_GGML
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "gemv.hpp"

namespace baselines {
namespace {

template <auto Function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    Function(object);
  }
};
using Context = std::unique_ptr<ggml_context, Free<ggml_free>>;
using Buffer = std::unique_ptr<ggml_backend_buffer, Free<ggml_backend_buffer_free>>;

/// Where matrices are repacked; null where this processor has no such kernels.
ggml_backend_buffer_type_t repacked() {
  ggml_backend_dev_t const device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (!device) return nullptr;
  const auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
  for (ggml_backend_buffer_type_t* type = extra ? extra(device) : nullptr; type && *type; ++type)
    if (std::strcmp(ggml_backend_buft_name(*type), "CPU_REPACK") == 0) return *type;
  return nullptr;
}

/// Q4_0 rows of the first copy; empty where the weights are not such already, or nearly so.
std::vector<std::uint8_t> quantized(const Gemv& g) {
  if (g.cols % ggml_blck_size(GGML_TYPE_Q4_0) != 0) return {};
  const std::size_t row_bytes = ggml_row_size(GGML_TYPE_Q4_0, g.cols);
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(g.rows) * row_bytes);
  ggml_quantize_chunk(GGML_TYPE_Q4_0, g.weights, rows.data(), 0, g.rows, g.cols, nullptr);
  std::vector<float> back(static_cast<std::size_t>(g.cols));
  ggml_get_type_traits(GGML_TYPE_Q4_0)->to_float(rows.data(), back.data(), g.cols);
  double error = 0, all = 0;
  for (std::ptrdiff_t k = 0; k < g.cols; ++k) {
    error += std::pow(static_cast<double>(back[static_cast<std::size_t>(k)] - g.weights[k]), 2);
    all += std::pow(static_cast<double>(g.weights[k]), 2);
  }
  if (error > 1e-5 * all) rows.clear();
  return rows;
}

struct MulMat {
  Context context;
  std::vector<Context> matrices;
  std::vector<Buffer> buffers;
  std::vector<ggml_cgraph*> graphs;
  std::vector<ggml_cplan> plans;
  std::vector<std::uint8_t> work;
  std::size_t next = 0;

  MulMat(const Gemv& g, const std::vector<std::uint8_t>& rows, ggml_backend_buffer_type_t type) {
    const auto floats = static_cast<std::ptrdiff_t>(sizeof(float)) * g.rows * g.cols;
    const std::ptrdiff_t copies = g.copies == 1 ? 1 : g.copies * floats / static_cast<std::ptrdiff_t>(rows.size());
    const auto tensors = static_cast<std::size_t>(copies);
    context.reset(ggml_init({ggml_tensor_overhead() * (tensors + 1) + ggml_graph_overhead() * tensors, nullptr, true}));
    ggml_tensor* const x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, g.cols, g.tokens);
    x->data = const_cast<float*>(g.x);
    for (std::ptrdiff_t i = 0; i < copies; ++i) {
      matrices.emplace_back(ggml_init({ggml_tensor_overhead(), nullptr, true}));
      ggml_tensor* const w = ggml_new_tensor_2d(matrices.back().get(), GGML_TYPE_Q4_0, g.cols, g.rows);
      buffers.emplace_back(ggml_backend_alloc_ctx_tensors_from_buft(matrices.back().get(), type));
      if (!buffers.back()) throw std::runtime_error("ggml_backend_alloc_ctx_tensors_from_buft failed");
      ggml_backend_tensor_set(w, rows.data(), 0, rows.size());
      ggml_tensor* const y = ggml_mul_mat(context.get(), w, x);
      y->data = g.y;
      graphs.push_back(ggml_new_graph(context.get()));
      ggml_build_forward_expand(graphs.back(), y);
      plans.push_back(ggml_graph_plan(graphs.back(), g.threads, nullptr));
      work.resize(std::max(work.size(), plans.back().work_size));
    }
    for (ggml_cplan& plan : plans) plan.work_data = work.data();
  }

  void run() {
    if (ggml_graph_compute(graphs[next], &plans[next]) != GGML_STATUS_SUCCESS)
      throw std::runtime_error("ggml_graph_compute failed");
    next = (next + 1) % graphs.size();
  }
};

Product mul_mat(const Gemv& g, ggml_backend_buffer_type_t type) {
  ggml_cpu_init();
  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);  // it reports every matrix
  const std::vector<std::uint8_t> rows = quantized(g);
  if (!type || rows.empty()) return {};
  return [library = std::make_shared<MulMat>(g, rows, type)] { library->run(); };
}

}  // namespace

Product ggml_q4_0_gemv(const Gemv& g) {
  return mul_mat(g, ggml_backend_cpu_buffer_type());
}
Product ggml_q4_0_repacked_gemv(const Gemv& g) {
  return mul_mat(g, repacked());
}

}  // namespace baselines
#endif
