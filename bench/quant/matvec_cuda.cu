// Products with packed weights on a GPU, one token to 64, of a layer's shape that no cache holds. The figure is packed
// bytes per second; the limit a copy that moves as many bytes. The error is the relative L2 distance from the CPU's
// product with the same rounding of activations, on the first rows.

#include <algorithm>

#include "cuda_harness.cuh"
#include "decant/quant/matmul.cuh"
#include "decant/quant/rtn.hpp"

namespace {

using decant::index_t;
using decant::View;
using decant::quant::Packed;

std::size_t size(index_t n) { return static_cast<std::size_t>(n); }

/// Rows that are packed; the matrix repeats them.
constexpr index_t distinct_rows = 64;

template <class F>
void measure(bench::Row& row, bench::Gpu& gpu, const F& format, index_t rows, index_t cols, index_t tokens) {
  bench::Buffer<float> w(size(distinct_rows * cols)), x(size(tokens * cols));
  bench::fill(w, 1);
  bench::fill(x, 2);
  std::vector<std::byte> few(size(packed_bytes(format, distinct_rows, cols)));
  const Packed<F, std::byte> packed(format, distinct_rows, cols, View<std::byte, 1>(few));
  decant::Cpu cpu;
  quantize(cpu, decant::quant::Rtn<F>{format}, View<const float, 2>(w.data(), distinct_rows, cols),
           decant::quant::Calibration{}, packed);
  std::vector<std::byte> all(size(packed_bytes(format, rows, cols)));
  const index_t head = packed.row(0) - packed.data();
  std::copy_n(few.begin(), head, all.begin());
  for (index_t r = 0; r < rows; ++r)
    std::copy_n(packed.row(r % distinct_rows), packed.row_bytes(), all.data() + head + r * packed.row_bytes());

  const bench::DeviceBuffer<std::byte> device_w(all);
  const bench::DeviceBuffer<float> device_x(x), y(size(tokens * rows));
  const Packed<F> matrix(format, rows, cols,
                         View<const std::byte, 1>(device_w.data(), static_cast<index_t>(all.size())));
  const auto ours = [&] {
    matmul(gpu.context(), matrix, View<const float, 2>(device_x.data(), tokens, cols),
           View<float, 2>(y.data(), tokens, rows));
  };
  ours();
  std::vector<float> expected(size(tokens * distinct_rows)), first;
  matmul(cpu, Packed<F>(packed), View<const float, 2>(x.data(), tokens, cols),
         View<float, 2>(expected.data(), tokens, distinct_rows));
  const std::vector<float> got = y.download();
  for (index_t t = 0; t < tokens; ++t)
    first.insert(first.end(), got.begin() + t * rows, got.begin() + t * rows + distinct_rows);
  row.measure({.ours = ours,
               .limit = gpu.copy(all.size()),
               .clock = [&gpu](const bench::Call& call) { return gpu(call); },
               .bytes = static_cast<double>(all.size()),
               .error = bench::relative_l2(first, expected)});
}

template <class F>
void add(bench::Suite& suite, bench::Gpu& gpu, const char* name, const F& format) {
  constexpr index_t cols = 8192;
  for (const index_t tokens : {1, 4, 8, 16, 64}) {
    for (const long rows : suite.sizes({4096, 28672})) {
      suite.add({.primitive = "matmul",
                 .policy = name,
                 .shape = bench::shape("rows", rows, "cols", cols, "tokens", tokens),
                 .context = "cuda",
                 .isa = gpu.architecture()},
                [=, &gpu](bench::Row& row) { measure(row, gpu, format, rows, cols, tokens); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("quant", argc, argv);
  bench::Gpu gpu;
  add(suite, gpu, "Codebook2x16", decant::quant::Codebook2x16<decant::fp16>{});
  add(suite, gpu, "Int4", decant::quant::Int<4>{});
  add(suite, gpu, "NvFp4", decant::quant::NvFp4{});
  return suite.run();
}
