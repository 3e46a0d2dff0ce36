// sparse_gather: weighted sums of listed rows against the sum by definition, in both forms of list.

#include "catch_compat.hpp"
#include "problem.hpp"
#include "row_lists.hpp"

#include "conformance/cache_fixtures.hpp"
#include "decant/attention/sparse_gather.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class T>
void against_definition(index_t group, index_t dim) {
  const Problem<float> as_float(2, group, 4, dim, {200, 1, 0, 90});
  const Problem<T> p(2, group, 4, dim, {200, 1, 0, 90});
  const DenseCache<T> dense(p);
  for (const bool shared : {true, false}) {
    const RowListsData lists(as_float, shared);
    const index_t width = shared ? p.heads : p.query_heads();
    std::vector<double> expected(at(4 * p.query_heads() * dim), 0.0);
    for (index_t s = 0; s < 4; ++s)
      for (index_t head = 0; head < p.query_heads(); ++head) {
        const index_t list = s * width + (shared ? head / group : head);
        for (index_t k = lists.indptr[at(list)]; k < lists.indptr[at(list + 1)]; ++k)
          for (index_t d = 0; d < dim; ++d)
            expected[at((s * p.query_heads() + head) * dim + d)] +=
                static_cast<double>(lists.weights[at(k * lists.per_row + (shared ? head % group : 0))]) *
                static_cast<double>(static_cast<float>(p.value(s, head / group, lists.rows[at(k)])[d]));
      }
    for (const Isa isa : paths()) {
      INFO(name(isa) << " " << name(dtype_of<T>) << " group " << group << " shared " << shared);
      Cpu serial, parallel(real_threads(3));
      serial.set_isa(isa);
      parallel.set_isa(isa);
      const auto run_on = [&](Cpu& cpu, const auto& cache) {
        std::vector<float> o(expected.size(), quiet_nan);
        sparse_gather(cpu, cache, lists.views(), View<float, 3>(o.data(), 4, p.query_heads(), dim));
        return o;
      };
      const std::vector<float> o = run_on(serial, dense.view);
      CHECK(oracle::relative_error(doubles(o), expected) < 1e-6);
      CHECK(run_on(parallel, dense.view) == o);
      CHECK(run_on(serial, PagedCache<T>(p, 7).view) == o);
    }
  }
}

TEST_CASE("sparse_gather: the weighted sum of the listed rows, over rows of every type", "[threads]") {
  against_definition<float>(4, 128);
  against_definition<float>(3, 17);
  against_definition<bf16>(7, 65);
  against_definition<fp16>(2, 100);
  against_definition<fp8_e4m3>(1, 33);
  against_definition<fp8_e5m2>(5, 16);
}

TEST_CASE("sparse_gather: rows of an engine's own") {
  conformance::Int8Fixture fixture({{40, 0}, {1, 64}}, 20, 12, 0);
  const auto cache = fixture.cache();
  const std::vector<std::int32_t> indptr{0, 3, 3, 4, 144}, pattern{0, 39, 7, 0};
  std::vector<std::int32_t> rows = pattern;
  for (int i = 0; i < 140; ++i) rows.push_back(i * 7 % 64);
  const std::vector<float> weights = normal(144 * 2, 3);
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    std::vector<float> o(2 * 4 * 12, quiet_nan), row(12);
    std::vector<double> expected(o.size(), 0.0);
    for (index_t list = 0; list < 4; ++list)
      for (index_t k = indptr[at(list)]; k < indptr[at(list + 1)]; ++k) {
        load_row(cache.value(list / 2, list % 2, rows[at(k)]), 12, row.data());
        for (index_t g = 0; g < 2; ++g)
          for (index_t d = 0; d < 12; ++d)
            expected[at((list * 2 + g) * 12 + d)] +=
                static_cast<double>(weights[at(2 * k + g)]) * static_cast<double>(row[at(d)]);
      }
    sparse_gather(cpu, cache,
                  RowLists{View<const std::int32_t, 1>(indptr), View<const std::int32_t, 1>(rows),
                           View<const float, 2>(weights.data(), 144, 2)},
                  View<float, 3>(o.data(), 2, 4, 12));
    CHECK(oracle::relative_error(doubles(o), expected) < 1e-6);
  }
}

TEST_CASE("sparse_gather: lists that do not fit are refused by name before anything is written") {
  const Problem<float> p(2, 3, 4, 8, {40, 20});
  const DenseCache<float> cache(p);
  Cpu cpu;
  std::vector<float> o(2 * 6 * 8, 7.0f);
  const auto refused = [&](const char* argument, std::vector<std::int32_t> indptr, std::vector<std::int32_t> rows,
                           index_t per_row, index_t query_heads = 6) {
    INFO(argument);
    const std::vector<float> weights(64);
    const auto call = [&] {
      sparse_gather(cpu, cache.view,
                    RowLists{View<const std::int32_t, 1>(indptr), View<const std::int32_t, 1>(rows),
                             View<const float, 2>(weights.data(), static_cast<index_t>(rows.size()), per_row)},
                    View<float, 3>(o.data(), 2, query_heads, 8));
    };
    CHECK_THROWS_WITH(call(), catch_compat::contains(argument));
    CHECK_THROWS_AS(call(), ArgumentError);
    CHECK(o == std::vector<float>(o.size(), 7.0f));
  };
  refused("`lists.rows`", {0, 1, 1, 1, 2}, {3, 20}, 3);  // sequence 1 has 20 keys
  refused("`lists.rows`", {0, 1, 1, 1, 1}, {-1}, 3);
  refused("`lists.indptr`", {0, 1, 1, 2}, {3, 3}, 3);
  refused("`lists.indptr`", {0, 2, 1, 2, 2}, {3, 3}, 3);
  refused("`lists.indptr`", {1, 1, 1, 2, 2}, {3, 3}, 3);
  refused("`lists.indptr`", {0, 1, 1, 2, 3}, {3, 3}, 3);
  refused("`lists.indptr`", {0, 1, 1, 2, 2}, {3, 3}, 1);  // lists of their own: twelve
  refused("`lists.weights`", {0, 1, 1, 2, 2}, {3, 3}, 2);
  refused("`out`", {0, 1, 1, 2, 2}, {3, 3}, 3, 5);
}

}  // namespace
}  // namespace attention_test
