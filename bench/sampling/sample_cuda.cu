// One token from each row of fp32 logits under filters on a GPU: filter(), then draw(). The figure is logit bytes per
// second, the limit a copy that moves as many bytes. The peer is rejection with two pivots after process(). The error
// is the share of tokens that are not the CPU's: 0. Rows as in sample.cpp, `peaked`.

#include <string>
#include <vector>

#include "cuda_harness.cuh"
#include "decant/sampling/draw.cuh"
#include "decant/sampling/process.cuh"
#include "decant/sampling/rejection.cuh"

namespace {

using decant::index_t;
using decant::View;
namespace sampling = decant::sampling;

void measure(bench::Row& row, bench::Gpu& gpu, index_t vocab, index_t batch, const sampling::Processing& p) {
  bench::Buffer<float> logits(static_cast<std::size_t>(batch * vocab));
  bench::fill(logits, 1);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = 2 * logits[i] + (i * 2654435761u % 2000 == 7 ? 8.0f : 0.0f);
  const View<const float, 2> x(logits.data(), batch, vocab);
  const auto count = static_cast<std::size_t>(batch);
  std::vector<std::int32_t> tokens(count);
  std::vector<sampling::RowStatus> status(count);
  std::vector<sampling::LogitRow> rows(count);
  decant::Cpu cpu;
  filter(cpu, p, x, rows, status);
  sampling::draw(cpu, {x, rows}, {{1}, {}, {}}, {tokens, status});

  const bench::DeviceBuffer<float> d_logits(logits);
  const bench::DeviceBuffer<float> d_probabilities(logits.size());
  const bench::DeviceBuffer<sampling::LogitRow> d_rows(count);
  const bench::DeviceBuffer<sampling::RowStatus> d_status(status);
  const bench::DeviceBuffer<std::int32_t> d_tokens(count);
  const View<const float, 2> d_x(d_logits.data(), batch, vocab);
  const View<float, 2> d_p(d_probabilities.data(), batch, vocab);
  const View<sampling::LogitRow, 1> d_filtered(d_rows.data(), batch);
  const View<sampling::RowStatus, 1> d_states(d_status.data(), batch);
  const sampling::Drawn out{View<std::int32_t, 1>(d_tokens.data(), batch), d_states};
  const auto ours = [&] {
    filter(gpu.context(), p, d_x, d_filtered, d_states);
    sampling::draw(gpu.context(), {d_x, d_filtered}, {{1}, {}, {}}, out);
  };
  const auto dual_pivot = [&] {
    process(gpu.context(), {}, d_x, {}, d_p, d_states);
    draw_by_rejection(gpu.context(), p, d_p, {{1}, {}, {}}, out);
  };
  ours();
  gpu.context().check();
  const std::vector<std::int32_t> got = d_tokens.download();
  double different = 0;
  for (std::size_t i = 0; i < count; ++i) different += got[i] != tokens[i];
  row.measure({.ours = ours,
               .limit = gpu.copy(logits.bytes()),
               .peers = {{"dual_pivot", dual_pivot}},
               .clock = [&gpu](const bench::Call& call) { return gpu(call); },
               .bytes = static_cast<double>(logits.bytes()),
               .error = different / static_cast<double>(count)});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("sampling", argc, argv);
  bench::Gpu gpu;
  const auto add = [&](index_t vocab, index_t batch, const char* policy, const sampling::Processing& p) {
    suite.add({.primitive = "sample",
               .policy = policy,
               .shape = bench::shape("vocab", vocab, "batch", batch, "data", "peaked"),
               .context = "cuda",
               .isa = gpu.architecture()},
              [=, &gpu](bench::Row& row) { measure(row, gpu, vocab, batch, p); });
  };
  for (const long vocab : suite.sizes({32000, 128256})) {
    for (const index_t batch : {1, 16, 64}) {
      add(vocab, batch, "all", {});
      add(vocab, batch, "top_k=50", {.top_k = 50});
      add(vocab, batch, "top_p=0.9", {.top_p = 0.9f});
      add(vocab, batch, "top_k=50,top_p=0.9", {.top_k = 50, .top_p = 0.9f});
      add(vocab, batch, "min_p=0.05", {.min_p = 0.05f});
    }
  }
  return suite.run();
}
