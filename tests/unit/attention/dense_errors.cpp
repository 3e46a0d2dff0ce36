// Whatever does not fit is refused with the argument's name, and no byte of the outputs has changed.

#include "catch_compat.hpp"
#include "problem.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

TEST_CASE("Dense: arguments that do not fit are refused by name before anything is written") {
  const Problem<float> p(2, 3, 16, 8, {40, 20}, {3, 2});
  const DenseCache<float> cache(p);
  Result r{std::vector<float>(at(5 * 6 * 8), 7.0f), std::vector<float>(at(5 * 6), 7.0f)};
  const Result before = r;
  const View<float, 3> out(r.o.data(), 5, 6, 8);
  const View<float, 2> lse(r.lse.data(), 5, 6);
  const Queries<float> q = p.views();
  const View<const float, 3> rows = q.rows;
  Cpu cpu;
  const auto refused = [&](const char* argument, const auto& call) {
    INFO(argument);
    CHECK_THROWS_WITH(call(), catch_compat::contains(argument));
    CHECK_THROWS_AS(call(), ArgumentError);
    CHECK(r.same_bits(before));
  };

  // Parameters.
  for (const float bad : {-1.0f, quiet_nan, infinity}) {
    refused("`scale`", [&] { attend(cpu, Dense{.scale = bad}, q, cache.view, out, lse); });
    refused("`soft_cap`", [&] { attend(cpu, Dense{.soft_cap = bad}, q, cache.view, out, lse); });
  }
  refused("`chunk`", [&] { attend(cpu, Dense{.chunk = -1}, q, cache.view, out, lse); });

  // Queries.
  refused("`q`: expected a number of query heads that is a multiple of kv_heads = 2, got 5", [&] {
    attend(cpu, Dense{}, Queries<float>{rows.slice(1, 0, 5), q.indptr}, cache.view, out, lse);
  });
  refused("`q`", [&] { attend(cpu, Dense{}, Queries<float>{rows.slice(1, 0, 0), q.indptr}, cache.view, out, lse); });
  refused("`q`: expected 16, got 15", [&] {
    attend(cpu, Dense{}, Queries<float>{rows.slice(2, 0, 15), q.indptr}, cache.view, out, lse);
  });
  const index_t extents[] = {5, 6, 16}, strides[] = {96, 4, 2};
  refused("stride 1", [&] {
    attend(cpu, Dense{}, Queries<float>{View<const float, 3>(p.q.data(), extents, strides), q.indptr}, cache.view, out,
           lse);
  });
  refused("`q`: expected data", [&] {
    attend(cpu, Dense{}, Queries<float>{View<const float, 3>(nullptr, 5, 6, 16), q.indptr}, cache.view, out, lse);
  });
  refused("`q`: expected one query for each of 2 sequences", [&] { attend(cpu, Dense{}, rows, cache.view, out, lse); });

  // Which query belongs to which sequence.
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{0, 5}, {0, 2, 3, 5}, {1, 3, 5}, {0, 6, 5}, {0, 3, 4}, {0, 3, 6}, {-1, 3, 5}}) {
    refused("`q.indptr`", [&] {
      attend(cpu, Dense{}, Queries<float>{rows, View<const std::int32_t, 1>(bad)}, cache.view, out, lse);
    });
  }

  // Outputs.
  for (int dimension = 0; dimension < 3; ++dimension) {
    refused("`out`",
            [&] { attend(cpu, Dense{}, q, cache.view, out.slice(dimension, 0, out.extent(dimension) - 1), lse); });
    if (dimension < 2) {
      refused("`lse`",
              [&] { attend(cpu, Dense{}, q, cache.view, out, lse.slice(dimension, 0, lse.extent(dimension) - 1)); });
    }
  }
  refused("`out`: expected data", [&] { attend(cpu, Dense{}, q, cache.view, View<float, 3>(nullptr, 5, 6, 8), lse); });
  refused("`lse`: expected data", [&] { attend(cpu, Dense{}, q, cache.view, out, View<float, 2>(nullptr, 5, 6)); });

  // Sinks and masks.
  const std::vector<float> sinks(5);
  refused("`sinks`", [&] { attend(cpu, Dense{}, q, cache.view, out, lse, Causal{}, View<const float, 1>(sinks)); });
  const std::vector<std::uint8_t> bits(15 + 4);
  const std::vector<index_t> offsets{0, 15, 19};
  refused("`bits`: expected at least 5 bytes for sequence 1, got 4", [&] {
    attend(cpu, Dense{}, q, cache.view, out, lse, BitMask{bits, offsets});
  });
  refused("`offsets`", [&] { attend(cpu, Dense{}, q, cache.view, out, lse, BitMask{bits}); });

  // The cache's own validation is asked.
  kv::DenseKV<const float> longer = cache.view;
  const std::vector<std::int32_t> lengths{44, 20};
  longer.lengths = View<const std::int32_t, 1>(lengths);
  refused("`lengths`", [&] { attend(cpu, Dense{}, q, longer, out, lse); });
  PagedCache<float> paged(p, 8);
  paged.indices[1] = 1000;
  refused("`indices`", [&] { attend(cpu, Dense{}, q, paged.view, out, lse); });

  // And what fits is taken.
  attend(cpu, Dense{}, q, cache.view, out, lse);
  CHECK(!r.same_bits(before));
}

TEST_CASE("Dense: nothing to do is no error") {
  Cpu cpu;
  const Problem<float> none(2, 2, 8, 8, {}, {});
  CHECK(run(cpu, none, DenseCache<float>(none).view).o.empty());
  const Problem<float> no_queries(2, 2, 8, 8, {10, 0}, {0, 0});
  CHECK(run(cpu, no_queries, DenseCache<float>(no_queries).view).o.empty());
  const Problem<float> some(2, 2, 8, 8, {10, 7, 9}, {0, 2, 0});
  CHECK(error(run(cpu, some, DenseCache<float>(some).view), exact(some)) < Dense::error_bound);
}

}  // namespace
}  // namespace attention_test
