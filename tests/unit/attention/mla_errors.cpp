// Whatever does not fit is refused with the argument's name, and no byte of the outputs has changed.

#include "catch_compat.hpp"
#include "mla_problem.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

TEST_CASE("Mla: arguments that do not fit are refused by name before anything is written") {
  const MlaProblem<float, float> p(4, {6, 2, 10, 5}, {40, 20}, {3, 2});
  const OneRowCache<float> cache(p);
  Result r{std::vector<float>(at(5 * 4 * 5), 7.0f), std::vector<float>(at(5 * 4), 7.0f)};
  const Result before = r;
  const View<float, 3> out(r.o.data(), 5, 4, 5);
  const View<float, 2> lse(r.lse.data(), 5, 4);
  const MlaQueries<float> q = p.views();
  const MlaWeights<float> w = p.weights();
  Cpu cpu;
  const auto refused = [&](const char* words, const auto& call) {
    INFO(words);
    CHECK_THROWS_WITH(call(), catch_compat::contains(words));
    CHECK_THROWS_AS(call(), ArgumentError);
    CHECK(r.same_bits(before));
  };
  const auto with = [&](const MlaQueries<float>& queries, const MlaWeights<float>& weights) {
    return [=, &cpu, &cache] { attend(cpu, Mla{}, queries, weights, cache.dense(), out, lse); };
  };

  for (const float bad : {0.0f, -1.0f, quiet_nan, infinity})
    refused("`scale_factor`", [&] { attend(cpu, Mla{.scale_factor = bad}, q, w, cache.dense(), out, lse); });
  refused("`chunk`", [&] { attend(cpu, Mla{.chunk = -1}, q, w, cache.dense(), out, lse); });

  refused("`q.pe`: expected 4, got 3", with({q.nope, q.pe.slice(1, 0, 3), q.indptr}, w));
  refused("`q.pe`: expected 5, got 4", with({q.nope, q.pe.slice(0, 0, 4), q.indptr}, w));
  refused("`q.pe`: expected 2, got 1", with({q.nope, q.pe.slice(2, 0, 1), q.indptr}, w));
  refused("`w.uk`: expected 5, got 6", with({q.nope.slice(2, 0, 5), q.pe, q.indptr}, w));
  refused("`w.uk`: expected 4, got 3", with(q, {w.uk.slice(0, 0, 3), w.uv}));
  refused("`w.uk`: expected 10, got 9", with(q, {w.uk.slice(2, 0, 9), w.uv}));
  refused("`w.uv`: expected 4, got 3", with(q, {w.uk, w.uv.slice(0, 0, 3)}));
  refused("`w.uv`: expected 10, got 9", with(q, {w.uk, w.uv.slice(2, 0, 9)}));
  refused("`out`: expected 4, got 5", with(q, {w.uk, w.uv.slice(1, 0, 4)}));
  const View<const float, 3> slanted(p.kv_b.data(), {4, 6, 10}, {44, 2, 4});
  refused("`w.uk`: expected contiguous rows", with(q, {slanted, w.uv}));
  refused("`w.uv`: expected data", with(q, {w.uk, View<const float, 3>(nullptr, 4, 5, 10)}));
  refused("`q.nope`: expected data", with({View<const float, 3>(nullptr, 5, 4, 6), q.pe, q.indptr}, w));

  const std::vector<std::int32_t> bad{0, 2, 3, 5}, short_of{0, 3, 4};
  refused("`q.indptr`", with({q.nope, q.pe, bad}, w));
  refused("`q.indptr`", with({q.nope, q.pe, short_of}, w));
  for (int dimension = 0; dimension < 3; ++dimension)
    refused("`out`", [&] {
      attend(cpu, Mla{}, q, w, cache.dense(), out.slice(dimension, 0, out.extent(dimension) - 1), lse);
    });
  for (int dimension = 0; dimension < 2; ++dimension)
    refused("`lse`", [&] {
      attend(cpu, Mla{}, q, w, cache.dense(), out, lse.slice(dimension, 0, lse.extent(dimension) - 1));
    });
  refused("`out`: expected data",
          [&] { attend(cpu, Mla{}, q, w, cache.dense(), View<float, 3>(nullptr, 5, 4, 5), lse); });

  // Caches.
  const Problem<float> ordinary(1, 4, 4, 6, {40, 20}, {3, 2});
  refused("`cache`: expected a latent cache", [&] {
    attend(cpu, Mla{}, q, w, DenseCache<float>(ordinary).view, out, lse);
  });
  OneRowCache<float> longer(p);
  longer.lengths = {44, 20};
  refused("`lengths`", [&] { attend(cpu, Mla{}, q, w, longer.dense(), out, lse); });
  TwoPoolCache<float> paged(p, 8);
  paged.indices[1] = 1000;
  refused("`indices`", [&] { attend(cpu, Mla{}, q, w, paged.paged(), out, lse); });

  attend(cpu, Mla{}, q, w, cache.dense(), out, lse);
  CHECK(!r.same_bits(before));
}

TEST_CASE("Mla: makers and projections refuse what does not fit") {
  std::vector<float> x(1000, 1.0f);
  const std::vector<std::int32_t> length{3};
  const View<const float, 3> rows(x.data(), 1, 5, 12), other(x.data(), 1, 4, 2), more(x.data(), 2, 5, 2);
  CHECK_THROWS_WITH(kv::latent(rows, length, 13), catch_compat::contains("`latent_dim`: expected 1 to the 12 numbers"));
  CHECK_THROWS_WITH(kv::latent(rows, length, 0), catch_compat::contains("`latent_dim`"));
  CHECK_THROWS_WITH(kv::latent(rows, other, length), catch_compat::contains("`k_pe`: expected 5, got 4"));
  CHECK_THROWS_WITH(kv::latent(rows, more, length), catch_compat::contains("`k_pe`: expected 1, got 2"));
  const View<const float, 2> kv_b(x.data(), 24, 8);
  CHECK_THROWS_WITH(mla_weights(kv_b, 5, 2), catch_compat::contains("`heads`: expected a divisor of kv_b_proj's 24"));
  CHECK_THROWS_WITH(mla_weights(kv_b, 4, 6), catch_compat::contains("`nope_dim`"));
  CHECK_THROWS_WITH(mla_weights(kv_b, 4, 0), catch_compat::contains("`nope_dim`"));

  Cpu cpu;
  const View<const float, 3> w(x.data(), 3, 4, 8), q(x.data(), 2, 3, 4), o(x.data(), 2, 3, 8);
  std::vector<float> y(100, 7.0f);
  const View<float, 3> q_latent(y.data(), 2, 3, 8), out(y.data(), 2, 3, 4);
  CHECK_THROWS_WITH(absorb_query(cpu, w, q.slice(2, 0, 3), q_latent), catch_compat::contains("`q_nope`"));
  CHECK_THROWS_WITH(absorb_query(cpu, w, q.slice(1, 0, 2), q_latent), catch_compat::contains("`q_nope`"));
  CHECK_THROWS_WITH(absorb_query(cpu, w, q, q_latent.slice(2, 0, 7)), catch_compat::contains("`q_latent`"));
  CHECK_THROWS_WITH(absorb_query(cpu, w, q, q_latent.slice(0, 0, 1)), catch_compat::contains("`q_latent`"));
  CHECK_THROWS_WITH(up_project(cpu, w, o.slice(2, 0, 7), out), catch_compat::contains("`o_latent`"));
  CHECK_THROWS_WITH(up_project(cpu, w, o, out.slice(2, 0, 3)), catch_compat::contains("`out`"));
  CHECK(y == std::vector<float>(100, 7.0f));
  absorb_query(cpu, w, q, q_latent);
  CHECK(y[0] == 4.0f);
}

TEST_CASE("Mla: nothing to do is no error") {
  Cpu cpu;
  const MlaProblem<float, float> none(2, {4, 2, 6, 3}, {}, {});
  CHECK(run_mla(cpu, none, OneRowCache<float>(none).dense()).o.empty());
  const MlaProblem<float, float> no_queries(2, {4, 2, 6, 3}, {10, 0}, {0, 0});
  CHECK(run_mla(cpu, no_queries, OneRowCache<float>(no_queries).dense()).o.empty());
}

}  // namespace
}  // namespace attention_test
