// Absorbed MLA against the definition in double, on every path; its two projections by themselves; the scale.

#include "catch_compat.hpp"
#include "mla_problem.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class T, class W>
void agrees(const MlaProblem<T, W>& p) {
  const Exact expected = exact_mla(p);
  const OneRowCache<T> cache(p);
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    const Result r = run_mla(cpu, p, cache.dense());
    INFO(name(isa) << " heads " << p.heads << " latent " << p.dims.latent << " rope " << p.dims.rope);
    CHECK(error(r, expected) <= Mla::error_bound);
    CHECK(lse_error(r, expected) <= 1e-5);
  }
}

TEST_CASE("Mla: DeepSeek's head dims") { agrees(MlaProblem<bf16, bf16>(8, {128, 64, 512, 128}, {7})); }

TEST_CASE("Mla: DeepSeek's shape, 128 heads", "[large]") {
  agrees(MlaProblem<bf16, bf16>(128, {128, 64, 512, 128}, {7}));
}

TEST_CASE("Mla: head counts, odd dims, several queries, empty and one-token sequences") {
  for (const index_t heads : {1, 2, 3, 5, 7, 8, 16})
    agrees(MlaProblem<float, float>(heads, {12, 6, 35, 9}, {70, 1, 0, 5}));
  agrees(MlaProblem<bf16, float>(5, {24, 16, 96, 20}, {130, 3}, {3, 1}));
  agrees(MlaProblem<fp16, bf16>(4, {65, 1, 129, 66}, {200, 64, 0}, {1, 2, 2}));
  agrees(MlaProblem<fp8_e4m3, fp8_e4m3>(6, {16, 8, 48, 16}, {90}));
  agrees(MlaProblem<float, bf16>(2, {1, 2, 1, 1}, {30}));
}

TEST_CASE("Mla: long sequences in chunks") {
  const MlaProblem<bf16, bf16> p(4, {16, 8, 40, 16}, {2500, 900}, {2, 1});
  const Exact expected = exact_mla(p);
  const OneRowCache<bf16> cache(p);
  Cpu cpu;
  for (const index_t chunk : {0, 100, 4096})
    CHECK(error(run_mla(cpu, p, cache.dense(), {.chunk = chunk}), expected) <= Mla::error_bound);
}

TEST_CASE("Mla: more queries than share one read of the weights") {
  agrees(MlaProblem<float, float>(3, {20, 4, 24, 70}, {80, 50}, {75, 1}));
}

TEST_CASE("Mla: masks, and queries that see nothing") {
  const MlaProblem<float, float> p(3, {12, 6, 20, 8}, {2, 40, 0}, {5, 3, 2});
  const OneRowCache<float> cache(p);
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    const Result causal = run_mla(cpu, p, cache.dense());
    CHECK(error(causal, exact_mla(p)) <= Mla::error_bound);
    for (index_t row = 0; row < p.total() * p.heads; ++row) {
      const bool blind = row < 3 * p.heads || row >= 8 * p.heads;  // 5 queries over 2 keys; 2 over none
      CHECK((causal.lse[at(row)] == -infinity) == blind);
      for (index_t d = 0; blind && d < p.dims.value; ++d) CHECK(causal.o[at(row * p.dims.value + d)] == 0);
    }
    const Window window{.left = 7};
    CHECK(error(run_mla(cpu, p, cache.dense(), {}, window), exact_mla(p, 1, window)) <= Mla::error_bound);
  }
}

TEST_CASE("Mla: the scale is that of the heads, not of the latent row") {
  CHECK(mla_scale(128, 64) == 1 / std::sqrt(192.0f));
  CHECK(yarn_mscale(1) == 1);
  CHECK(yarn_mscale(40) == Approx(0.1 * std::log(40.0) + 1).epsilon(1e-6));
  CHECK(yarn_mscale(40, 0.707f) == Approx(0.1 * 0.707 * std::log(40.0) + 1).epsilon(1e-6));
  const float m = yarn_mscale(40, 0.707f);
  const MlaProblem<float, float> p(4, {12, 6, 20, 8}, {33});
  Cpu cpu;
  const OneRowCache<float> cache(p);
  const Result r = run_mla(cpu, p, cache.dense(), {.scale_factor = m * m});
  CHECK(error(r, exact_mla(p, static_cast<double>(m * m))) <= Mla::error_bound);
  CHECK(error(r, exact_mla(p)) > 1e-2);
}

TEST_CASE("Mla: absorb_query and up_project") {
  const MlaProblem<float, bf16> p(3, {70, 4, 83, 67}, {5}, {66});
  const MlaWeights<bf16> w = p.weights();
  const std::vector<float> o = normal(66 * 3 * 83, 9);
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    INFO(name(isa));
    std::vector<float> q(at(66 * 3 * 87), 7.0f), out(at(66 * 3 * 67), quiet_nan);
    const View<float, 3> rows(q.data(), 66, 3, 87);  // the beginnings of longer rows
    absorb_query(cpu, w.uk, p.nope(), rows.slice(2, 0, 83));
    up_project(cpu, w.uv, View<const float, 3>(o.data(), 66, 3, 83), View<float, 3>(out.data(), 66, 3, 67));
    double worst_q = 0, worst_o = 0;
    for (index_t t = 0; t < 66; ++t)
      for (index_t h = 0; h < 3; ++h) {
        for (index_t l = 0; l < 83; ++l) {
          double sum = 0;
          for (index_t d = 0; d < 70; ++d)
            sum += static_cast<double>(static_cast<float>(w.uk(h, d, l))) * static_cast<double>(p.nope()(t, h, d));
          worst_q = std::max(worst_q, std::abs(sum - static_cast<double>(rows(t, h, l))));
        }
        for (index_t l = 83; l < 87; ++l) CHECK(rows(t, h, l) == 7.0f);
        for (index_t d = 0; d < 67; ++d) {
          double sum = 0;
          for (index_t l = 0; l < 83; ++l)
            sum += static_cast<double>(static_cast<float>(w.uv(h, d, l))) *
                   static_cast<double>(o[at((t * 3 + h) * 83 + l)]);
          worst_o = std::max(worst_o, std::abs(sum - static_cast<double>(out[at((t * 3 + h) * 67 + d)])));
        }
      }
    CHECK(worst_q <= 3e-6);
    CHECK(worst_o <= 3e-6);

    // A query alone: the same bits.
    for (const index_t t : {0, 65}) {
      std::vector<float> one_q(at(3 * 83)), one_o(at(3 * 67));
      absorb_query(cpu, w.uk, p.nope().slice(0, t, 1), View<float, 3>(one_q.data(), 1, 3, 83));
      up_project(cpu, w.uv, View<const float, 3>(o.data() + t * 3 * 83, 1, 3, 83),
                 View<float, 3>(one_o.data(), 1, 3, 67));
      CHECK(std::memcmp(one_o.data(), out.data() + t * 3 * 67, one_o.size() * 4) == 0);
      for (index_t h = 0; h < 3; ++h) CHECK(std::memcmp(one_q.data() + h * 83, &rows(t, h, 0), 83 * 4) == 0);
    }

    // bf16 queries and outputs: as floats, rounded once.
    std::vector<bf16> narrow(out.size());
    up_project(cpu, w.uv, View<const float, 3>(o.data(), 66, 3, 83), View<bf16, 3>(narrow.data(), 66, 3, 67));
    for (std::size_t i = 0; i < out.size(); ++i) REQUIRE(narrow[i].bits == bf16(out[i]).bits);
  }
}

TEST_CASE("mla_weights takes kv_b_proj apart without a copy") {
  const MlaProblem<float, float> p(3, {5, 2, 7, 4}, {});
  const MlaWeights<float> w = p.weights();
  CHECK((w.uk.extent(0) == 3 && w.uk.extent(1) == 5 && w.uk.extent(2) == 7 && w.uv.extent(1) == 4));
  CHECK(&w.uk(2, 4, 6) == p.kv_b.data() + (2 * 9 + 4) * 7 + 6);
  CHECK(&w.uv(2, 3, 6) == p.kv_b.data() + (2 * 9 + 8) * 7 + 6);
}

}  // namespace
}  // namespace attention_test
