// attention::Mla, one decode step with DeepSeek's dims, against the most multiplications that the processor can make:
// 242 FLOP per byte of cache bind it to these, not to memory. The projections by themselves, which for one query are
// bound to reading the weights. Peers do the step with a linear-algebra library (baselines/mla.hpp).

#include "baselines/mla.hpp"
#include "decant/attention/mla.hpp"
#include "decant/core/detail/intrinsics.hpp"
#include "decant/kv/latent_kv.hpp"
#include "harness.hpp"
#include "oracle/attention.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;
using decant::attention::Mla;

constexpr index_t nope = 128, rope = 64, latent = 512, value = 128, row_dim = latent + rope;

std::size_t size(index_t n) { return static_cast<std::size_t>(n); }

/// Independent multiply-adds, as many in flight as the latency of one asks for; returns what keeps them alive.
#if DECANT_X86
constexpr int chains = 12;

DECANT_TARGET_AVX512 float multiply_add_avx512(index_t rounds) {
  __m512 x[chains];
  for (int i = 0; i < chains; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (index_t r = 0; r < rounds; ++r) {
    DECANT_UNROLL
    for (int i = 0; i < chains; ++i) x[i] = _mm512_fmadd_ps(x[i], a, b);
  }
  float sum = 0;
  for (const __m512& v : x) sum += _mm512_cvtss_f32(v);
  return sum;
}

DECANT_TARGET_AVX2 float multiply_add_avx2(index_t rounds) {
  __m256 x[chains];
  for (int i = 0; i < chains; ++i) x[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (index_t r = 0; r < rounds; ++r) {
    DECANT_UNROLL
    for (int i = 0; i < chains; ++i) x[i] = _mm256_fmadd_ps(x[i], a, b);
  }
  float sum = 0;
  for (const __m256& v : x) sum += _mm256_cvtss_f32(v);
  return sum;
}
#endif

/// So many operations as fp32 multiply-adds with the widest registers of the path, on one thread. None where we have no
/// such loop.
bench::Limit multiply_adds(decant::Isa isa, double flops) {
#if DECANT_X86
  if (isa == decant::Isa::avx512)
    return {"fma", [rounds = static_cast<index_t>(flops / (2 * 16 * chains))] {
              float x = multiply_add_avx512(rounds);
              benchmark::DoNotOptimize(x);
            }};
  if (isa == decant::Isa::avx2)
    return {"fma", [rounds = static_cast<index_t>(flops / (2 * 8 * chains))] {
              float x = multiply_add_avx2(rounds);
              benchmark::DoNotOptimize(x);
            }};
#endif
  (void)isa, (void)flops;
  return {};
}

/// Weights and queries.
struct Layer {
  index_t heads, queries;
  bench::Buffer<bf16> kv_b;
  bench::Buffer<float> q_nope, q_pe, out;

  Layer(index_t heads_, index_t queries_)
      : heads(heads_),
        queries(queries_),
        kv_b(size(heads * (nope + value) * latent)),
        q_nope(size(queries * heads * nope)),
        q_pe(size(queries * heads * rope)),
        out(size(queries * heads * value)) {
    bench::fill(kv_b, 1);
    for (std::size_t i = 0; i < kv_b.size(); ++i) kv_b[i] = bf16(static_cast<float>(kv_b[i]) * 0.04419417f);
    bench::fill(q_nope, 2);
    bench::fill(q_pe, 3);
  }
  decant::attention::MlaQueries<float> q() const {
    return {View<const float, 3>(q_nope.data(), queries, heads, nope),
            View<const float, 3>(q_pe.data(), queries, heads, rope)};
  }
  decant::attention::MlaWeights<bf16> weights() const {
    return decant::attention::mla_weights(View<const bf16, 2>(kv_b.data(), heads * (nope + value), latent), heads, nope);
  }
};

/// Relative L2 distance to the definition in double, over the first and the last head.
double error(const Layer& x, const bench::Buffer<bf16>& rows, index_t tokens) {
  std::vector<double> got, expected;
  for (const index_t h : {index_t{0}, x.heads - 1}) {
    const auto weight = [&](index_t row, index_t l) {
      return static_cast<double>(static_cast<float>(x.kv_b[size((h * (nope + value) + row) * latent + l)]));
    };
    std::vector<double> q(size(row_dim));
    for (index_t l = 0; l < latent; ++l)
      for (index_t d = 0; d < nope; ++d) q[size(l)] += weight(d, l) * static_cast<double>(x.q_nope[size(h * nope + d)]);
    for (index_t d = 0; d < rope; ++d) q[size(latent + d)] = static_cast<double>(x.q_pe[size(h * rope + d)]);
    const auto row = [&](long t, long d) {
      return static_cast<double>(static_cast<float>(rows[size(t * row_dim + d)]));
    };
    const oracle::AttentionRow r = oracle::attention_row(
        tokens, row_dim, latent, [&](long d) { return q[size(d)]; }, row, row, [](long) { return true; },
        1 / std::sqrt(static_cast<double>(nope + rope)));
    for (index_t d = 0; d < value; ++d) {
      double sum = 0;
      for (index_t l = 0; l < latent; ++l) sum += weight(nope + d, l) * r.o[size(l)];
      expected.push_back(sum);
      got.push_back(static_cast<double>(x.out[size(h * value + d)]));
    }
  }
  return oracle::relative_error(got, expected);
}

struct Case {
  index_t tokens;
  index_t heads;
  bool two_pools = false;
  decant::Isa isa = decant::best_isa();
};

void measure(const Case& c, bench::Row& row) {
  Layer x(c.heads, 1);
  bench::Buffer<bf16> rows(size(c.tokens * row_dim)), pool(size(c.tokens * latent)), pool_pe(size(c.tokens * rope));
  bench::fill(rows, 4);
  for (index_t t = 0; t < c.tokens; ++t) {
    std::copy_n(rows.data() + t * row_dim, latent, pool.data() + t * latent);
    std::copy_n(rows.data() + t * row_dim + latent, rope, pool_pe.data() + t * rope);
  }
  const std::vector<std::int32_t> length{static_cast<std::int32_t>(c.tokens)};
  const auto one = decant::kv::latent(View<const bf16, 3>(rows.data(), 1, c.tokens, row_dim), length, latent);
  const auto two = decant::kv::latent(View<const bf16, 3>(pool.data(), 1, c.tokens, latent),
                                      View<const bf16, 3>(pool_pe.data(), 1, c.tokens, rope), length);
  decant::Cpu cpu;
  cpu.set_isa(c.isa);
  const View<float, 3> out(x.out.data(), 1, c.heads, value);
  const auto ours = [&] {
    if (c.two_pools)
      attend(cpu, Mla{}, x.q(), x.weights(), two, out);
    else
      attend(cpu, Mla{}, x.q(), x.weights(), one, out);
    benchmark::ClobberMemory();
  };
  ours();
  const auto flops =
      2.0 * static_cast<double>(c.heads) *
      static_cast<double>(c.tokens * (row_dim + latent) + latent * (nope + value));
  bench::Measurement m{.ours = ours,
                       .limit = multiply_adds(c.isa, flops),
                       .flops = flops,
                       .error = error(x, rows, c.tokens)};

  bench::Buffer<float> wide_rows(rows.size()), wide_weights(x.kv_b.size()), theirs(x.out.size());
  for (std::size_t i = 0; i < rows.size(); ++i) wide_rows[i] = static_cast<float>(rows[i]);
  for (std::size_t i = 0; i < x.kv_b.size(); ++i) wide_weights[i] = static_cast<float>(x.kv_b[i]);
#if defined(DECANT_BENCH_EIGEN) || defined(DECANT_BENCH_OPENBLAS)
  m.peers = baselines::mla_peers({c.tokens, c.heads, nope, rope, latent, value, x.q_nope.data(), x.q_pe.data(),
                                  wide_weights.data(), wide_rows.data(), theirs.data()});
  const std::vector<double> expected(x.out.data(), x.out.data() + x.out.size());
  for (const auto& [name, call] : m.peers) {
    call();
    const double distance =
        oracle::relative_error(std::vector<double>(theirs.data(), theirs.data() + theirs.size()), expected);
    if (!(distance < 1e-3)) throw std::runtime_error(name + " differs by " + std::to_string(distance));
  }
#endif
  row.measure(m);
}

/// A projection of all heads, over six layers in turn, so that their weights come from memory as they do in a model.
void measure_projection(bool absorb, index_t queries, bench::Row& row) {
  std::vector<Layer> layers;
  for (int i = 0; i < 6; ++i) layers.emplace_back(128, queries);
  bench::Buffer<float> latents(size(queries * 128 * latent));
  bench::fill(latents, 5);
  const View<float, 3> inner(latents.data(), queries, 128, latent);
  decant::Cpu cpu;
  std::size_t turn = 0;
  const auto ours = [&] {
    Layer& x = layers[turn++ % layers.size()];
    if (absorb)
      decant::attention::absorb_query(cpu, x.weights().uk, x.q().nope, inner);
    else
      decant::attention::up_project(cpu, x.weights().uv, View<const float, 3>(inner),
                                    View<float, 3>(x.out.data(), queries, 128, value));
    benchmark::ClobberMemory();
  };

  // The first layer's last query and head.
  const Layer& x = layers[0];
  const index_t first = (127 * (nope + value) + (absorb ? 0 : nope)) * latent;
  std::vector<double> expected(size(absorb ? latent : value)), got;
  const std::vector<float> before(latents.data() + (queries * 128 - 1) * latent, latents.data() + queries * 128 * latent);
  ours();
  for (index_t d = 0; d < nope; ++d)
    for (index_t l = 0; l < latent; ++l) {
      const auto w = static_cast<double>(static_cast<float>(x.kv_b[size(first + d * latent + l)]));
      if (absorb)
        expected[size(l)] += w * static_cast<double>(x.q_nope[size((queries * 128 - 1) * nope + d)]);
      else
        expected[size(d)] += w * static_cast<double>(before[size(l)]);
    }
  const float* const result =
      absorb ? latents.data() + (queries * 128 - 1) * latent : x.out.data() + (queries * 128 - 1) * value;
  for (std::size_t i = 0; i < expected.size(); ++i) got.push_back(static_cast<double>(result[i]));
  const double distance = oracle::relative_error(got, expected);

  const auto bytes = static_cast<double>(128 * nope * latent * index_t{sizeof(bf16)});
  if (queries == 1) {
    row.measure({.ours = ours,
                 .limit = bench::stream_read(cpu, static_cast<std::size_t>(bytes)),
                 .bytes = bytes,
                 .error = distance});
  } else {
    const auto flops = static_cast<double>(queries) * bytes;  // two for each weight of two bytes
    row.measure({.ours = ours,
                 .limit = multiply_adds(decant::best_isa(), flops),
                 .flops = flops,
                 .error = distance});
  }
}

void add(bench::Suite& suite, const Case& c) {
  std::string shape = bench::shape("n", c.tokens, "heads", c.heads, "dc", latent, "dr", rope, "dtype", "bf16");
  if (c.two_pools) shape += ",pools=2";
  suite.add({.primitive = "attend", .policy = "Mla", .shape = shape, .isa = decant::name(c.isa)},
            [c](bench::Row& row) { measure(c, row); });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("attention", argc, argv);
  for (const long n : suite.sizes({1024, 8192, 32768}))
    for (const index_t heads : {128, 16}) add(suite, {.tokens = n, .heads = heads});
  add(suite, {.tokens = 1024, .heads = 128, .two_pools = true});
  for (const decant::Isa isa : {decant::Isa::portable, decant::Isa::avx2})
    if (isa < decant::best_isa()) add(suite, {.tokens = 1024, .heads = 128, .isa = isa});
  for (const index_t queries : {1, 16})
    for (const bool absorb : {true, false})
      suite.add({.primitive = absorb ? "absorb_query" : "up_project",
                 .policy = "Mla",
                 .shape = bench::shape("queries", queries, "heads", 128, "nope", nope, "dc", latent, "dtype", "bf16")},
                [=](bench::Row& row) { measure_projection(absorb, queries, row); });
  return suite.run();
}
