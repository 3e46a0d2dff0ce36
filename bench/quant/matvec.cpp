// Products with packed weights against the memory that they must read: one token, from memory and from cache, in every
// format; a few tokens; every instruction set. A row is a walk over distinct copies of one packed matrix, which
// together are more than four times the last cache, or over one copy that lies in it. Peers multiply the same values,
// dequantized, in their own types; the error is against the definition in double, with activations as they are. Tokens
// per second are computed: 7e9 weights, as many as the layers of an 8B model have, read from memory at the row's rate.

#include <algorithm>
#include <cstring>
#include <vector>

#include "baselines/gemv.hpp"
#include "decant/interop/openmp.hpp"
#include "decant/quant/matmul.hpp"
#include "decant/quant/plain.hpp"
#include "decant/quant/rtn.hpp"
#include "harness.hpp"
#include "oracle/attention.hpp"

namespace {

using decant::index_t;
using decant::View;
using decant::quant::Activations;
using decant::quant::Packed;

struct Case {
  index_t rows;
  index_t cols;
  index_t tokens = 1;
  Activations activations = Activations::bf16;
  bool cached = false;
  decant::Isa isa = decant::best_isa();
  int threads = 1;
};

constexpr double model_weights = 7e9;

std::size_t size(index_t n) { return static_cast<std::size_t>(n); }

index_t last_cache() {
  index_t bytes = 0;
  for (const benchmark::CPUInfo::CacheInfo& cache : benchmark::CPUInfo::Get().caches)
    bytes = std::max(bytes, index_t{cache.size});
  return bytes > 0 ? bytes : 32 << 20;
}
/// Copies of so many bytes that are more than four times the last cache together.
index_t copies_of(index_t bytes, bool cached) { return cached ? 1 : 4 * last_cache() / bytes + 1; }

/// Rows that are packed and dequantized; the matrix repeats them.
constexpr index_t distinct_rows = 64;

template <class F>
struct Weights {
  F format;
  Case c;
  index_t copies, bytes;
  bench::Buffer<std::byte> data;
  bench::Buffer<float> plain;  // [distinct_rows][cols]

  Weights(const F& f, const Case& c_)
      : format(f),
        c(c_),
        copies(copies_of(decant::quant::packed_bytes(f, c.rows, c.cols), c.cached)),
        bytes(decant::quant::packed_bytes(f, c.rows, c.cols)),
        data(size(copies * bytes)),
        plain(size(distinct_rows * c.cols)) {
    bench::Buffer<float> w(plain.size());
    bench::fill(w, 1);
    std::vector<std::byte> few(size(decant::quant::packed_bytes(f, distinct_rows, c.cols)));
    const Packed<F, std::byte> packed(f, distinct_rows, c.cols, View<std::byte, 1>(few));
    decant::Cpu cpu;
    quantize(cpu, decant::quant::Rtn<F>{f}, View<const float, 2>(w.data(), distinct_rows, c.cols),
             decant::quant::Calibration{}, packed);
    decant::quant::dequantize(cpu, Packed<F>(packed), View<float, 2>(plain.data(), distinct_rows, c.cols));
    const index_t head = packed.row(0) - packed.data();
    for (index_t i = 0; i < copies; ++i) {
      std::byte* const to = data.data() + i * bytes;
      std::memcpy(to, few.data(), size(head));
      for (index_t r = 0; r < c.rows; ++r)
        std::memcpy(to + head + r * packed.row_bytes(), packed.row(r % distinct_rows), size(packed.row_bytes()));
    }
  }
  Packed<F> copy(index_t i) const {
    return {format, c.rows, c.cols, View<const std::byte, 1>(data.data() + i * bytes, bytes)};
  }
};

/// Relative L2 distance of all tokens' first rows.
template <class F>
double error(const Weights<F>& w, const bench::Buffer<float>& x, const bench::Buffer<float>& y) {
  std::vector<double> got, expected;
  for (index_t t = 0; t < w.c.tokens; ++t) {
    for (index_t r = 0; r < distinct_rows; ++r) {
      double sum = 0;
      for (index_t k = 0; k < w.c.cols; ++k)
        sum += static_cast<double>(w.plain[size(r * w.c.cols + k)]) * static_cast<double>(x[size(t * w.c.cols + k)]);
      expected.push_back(sum);
      got.push_back(static_cast<double>(y[size(t * w.c.rows + r)]));
    }
  }
  return oracle::relative_error(got, expected);
}

/// `with_peers`: only where they matter, as their matrices are large.
template <class F>
void measure(const F& format, const Case& c, bool with_peers, bench::Row& row) {
  const Weights<F> w(format, c);
  bench::Buffer<float> x(size(c.tokens * c.cols)), y(size(c.tokens * c.rows)), theirs(y.size());
  bench::fill(x, 2);
  decant::Cpu cpu(c.threads > 1 ? decant::openmp(c.threads) : decant::ParallelFor{});
  cpu.set_isa(c.isa);
  const auto ours = [&] {
    for (index_t i = 0; i < w.copies; ++i) {
      matmul(cpu, w.copy(i), View<const float, 2>(x.data(), c.tokens, c.cols),
             View<float, 2>(y.data(), c.tokens, c.rows), c.activations);
      benchmark::ClobberMemory();
    }
  };
  ours();
  const auto all = static_cast<double>(w.copies * w.bytes);
  bench::Measurement m{.ours = ours,
                       .limit = bench::stream_read(cpu, static_cast<std::size_t>(all)),
                       .bytes = all,
                       .error = error(w, x, y)};
  if (!c.cached) {
    m.derived = {{"tokens/s of 7e9 weights (computed)",
                  static_cast<double>(w.copies * c.rows * c.cols * c.tokens) / model_weights}};
  }
  const index_t plain_bytes = c.rows * c.cols * 4;
  bench::Buffer<float> plain(with_peers ? size(copies_of(plain_bytes, c.cached) * c.rows * c.cols) : 0);
  if (with_peers) {
    for (index_t r = 0; r * c.cols < static_cast<index_t>(plain.size()); ++r)
      std::copy_n(w.plain.data() + r % c.rows % distinct_rows * c.cols, c.cols, plain.data() + r * c.cols);
    const std::vector<double> expected(y.data(), y.data() + y.size());
    for (auto& [name, call] : baselines::gemv_peers({c.rows, c.cols, c.tokens, c.threads, plain.data(),
                                                     copies_of(plain_bytes, c.cached), x.data(), theirs.data()})) {
      call();
      const double distance =
          oracle::relative_error(std::vector<double>(theirs.data(), theirs.data() + theirs.size()), expected);
      if (!(distance < 0.05)) throw std::runtime_error(name + " differs by " + std::to_string(distance));
      m.peers.emplace_back(name, [call = call, n = w.copies] {
        for (index_t i = 0; i < n; ++i) call();
      });
    }
  }
  row.measure(m);
}

template <class F>
void add(bench::Suite& suite, const char* policy, const F& format, const Case& c, bool with_peers = false) {
  std::string shape = bench::shape("rows", c.rows, "cols", c.cols, "group", format.group_size(c.cols));
  if constexpr (requires { format.select; })
    if (format.select != format.group) shape += "," + bench::shape("select", format.select);
  if (c.tokens > 1) shape += "," + bench::shape("tokens", c.tokens);
  shape += "," + bench::shape("x", name(c.activations), "from", c.cached ? "cache" : "memory");
  suite.add({.primitive = c.tokens > 1 ? "matmul" : "matvec",
             .policy = policy,
             .shape = shape,
             .context = c.threads > 1 ? "openmp:" + std::to_string(c.threads) : "cpu",
             .isa = decant::name(c.isa)},
            [=](bench::Row& row) { measure(format, c, with_peers, row); });
}

}  // namespace

int main(int argc, char** argv) {
  using namespace decant::quant;
  bench::Suite suite("quant", argc, argv);
  const Codebook2x16<decant::fp16> aaac{};
  if (suite.quick()) {
    for (const Activations a : {Activations::bf16, Activations::int8, Activations::fp32})
      add(suite, "Codebook2x16", aaac, {1024, 4096, 1, a, true});
    add(suite, "Codebook2x16", aaac, {1024, 4096, 4, Activations::bf16, true}, true);
    add(suite, "Int<4>", Int<4>{}, {1024, 4096, 1, Activations::bf16, true});
    add(suite, "Codebook2x16", aaac, {256, 4096, 1, Activations::bf16, true, decant::Isa::portable});
    return suite.run();
  }
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{4096, 4096}, {4096, 14336}, {14336, 4096}})
    for (const Activations a : {Activations::bf16, Activations::int8, Activations::fp32})
      add(suite, "Codebook2x16", aaac, {rows, cols, 1, a}, a == Activations::bf16);
  for (const Activations a : {Activations::bf16, Activations::int8})
    add(suite, "Codebook2x16", aaac, {4096, 4096, 1, a, true}, a == Activations::bf16);
  for (const index_t tokens : {2, 4, 8, 16, 64})
    add(suite, "Codebook2x16", aaac, {4096, 4096, tokens, Activations::bf16, true}, true);
  for (const index_t tokens : {4, 16})
    add(suite, "Codebook2x16", aaac, {4096, 4096, tokens, Activations::int8, true}, true);
  if (decant::best_isa() > decant::Isa::avx2)
    for (const Activations a : {Activations::bf16, Activations::int8})
      add(suite, "Codebook2x16", aaac, {4096, 4096, 1, a, false, decant::Isa::avx2});
  add(suite, "Codebook2x16", aaac, {1024, 4096, 1, Activations::bf16, true, decant::Isa::portable});
  for (const Activations a : {Activations::bf16, Activations::int8}) {
    const Case c{4096, 4096, 1, a};
    add(suite, "Int<4>", Int<4>{}, c);
    add(suite, "Int<4>", Int<4>{.group = 32}, c);
    add(suite, "Nf4", Nf4{}, c);
    add(suite, "MxFp4", MxFp4{}, c);
    add(suite, "NvFp4", NvFp4{}, c);
    add(suite, "If4", If4{}, c);
    add(suite, "Codebook2x16<e4m3>", Codebook2x16<decant::fp8_e4m3>{}, c);
    add(suite, "Codebook2x16", Codebook2x16<decant::fp16>{.group = 128, .select = 16}, c);
  }
  // ggml's blocks; ggml itself is among the peers of Q4_0.
  add(suite, "ggml::Q4_0", ggml::Q4_0{}, {4096, 14336, 1, Activations::int8}, true);
  for (const Activations a : {Activations::bf16, Activations::int8}) {
    const Case c{4096, 4096, 1, a};
    add(suite, "ggml::Q4_0", ggml::Q4_0{}, c);
    add(suite, "ggml::Q4_1", ggml::Q4_1{}, c);
    add(suite, "ggml::Q8_0", ggml::Q8_0{}, c);
    add(suite, "ggml::IQ4_NL", ggml::IQ4_NL{}, c);
    add(suite, "ggml::MXFP4", ggml::MXFP4{}, c);
    add(suite, "ggml::NVFP4", ggml::NVFP4{}, c);
    add(suite, "ggml::Q4_K", ggml::Q4_K{}, c);
    add(suite, "ggml::Q6_K", ggml::Q6_K{}, c);
  }
  add(suite, "Int<8>", Int<8>{}, {4096, 4096});
  add(suite, "Int<3>", Int<3>{}, {4096, 4096});
  add(suite, "Fp8<e4m3>", Fp8<decant::fp8_e4m3>{}, {4096, 4096});
  if (const int cores = omp_get_max_threads(); cores > 1)
    for (const Activations a : {Activations::bf16, Activations::int8})
      add(suite, "Codebook2x16", aaac, {4096, 14336, 1, a, false, decant::best_isa(), cores}, a == Activations::bf16);
  return suite.run();
}
