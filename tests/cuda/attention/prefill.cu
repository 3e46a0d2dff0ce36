// Several queries per sequence, masks, sinks and soft cap on CUDA cores; what never matters; what is refused.

#include "catch_compat.hpp"
#include "device_problem.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

struct Context {
  cuda_test::Stream stream;
  Cuda cuda{stream};
};

template <class M = Causal>
void check_prefill(const Problem<float>& p, const Dense& a = {}, const M& mask = {}, const M& device_mask = {},
                   const std::vector<float>& sinks = {}) {
  Context c;
  const DenseCache<float> cache(p);
  const Result r = run(c.cuda, p, cache, a, device_mask, sinks);
  const Exact expected = exact(p, a, mask, sinks);
  CHECK(error(r, expected) <= Dense::error_bound);
  CHECK(lse_error(r, expected) <= 1e-5);
}

TEST_CASE("Cuda Dense: causal prefill, split or not, with more queries than keys too") {
  check_prefill(Problem<float>(2, 3, 20, 12, {70, 5, 0, 90}, {3, 8, 2, 60}), Dense{.chunk = 32});
  check_prefill(Problem<float>(1, 1, 20, 12, {70, 200, 33}, {0, 160, 1}), Dense{.chunk = 50});
}

TEST_CASE("Cuda Dense: windows, everything, soft cap and sinks") {
  const Problem<float> p(2, 2, 20, 12, {70, 5, 0, 90}, {3, 8, 2, 70});
  for (const index_t left : {-1, 0, 1, 40}) check_prefill(p, Dense{.chunk = 32}, Window{left}, Window{left});
  check_prefill(p, Dense{.chunk = 32}, Full{}, Full{});
  check_prefill(p, Dense{.scale = 0.3f, .soft_cap = 2.5f, .chunk = 32}, Full{}, Full{}, {1, -infinity, -3, 4});
}

TEST_CASE("Cuda Dense: a packed mask, and unseen keys that are NaN") {
  Problem<float> p(2, 2, 20, 12, {70, 33, 90}, {3, 8, 70});
  std::vector<std::uint8_t> bits;
  std::vector<index_t> offsets{0};
  std::mt19937 random(3);
  for (index_t s = 0; s < 3; ++s) {
    const index_t n = p.lengths[at(s)], m = p.queries[at(s)];
    bits.resize(at(offsets.back() + (n * m + 7) / 8), 0);
    for (index_t i = 0; i < m; ++i)
      for (index_t t = 0; t < n; ++t)
        if (t % 5 != 2 && i != 1 && random() % 3 != 0) {
          const index_t bit = i * n + t;
          bits[at(offsets.back() + bit / 8)] |= static_cast<std::uint8_t>(1 << bit % 8);
        }
    offsets.push_back(static_cast<index_t>(bits.size()));
    for (index_t h = 0; h < 2; ++h)
      for (index_t t = 2; t < n; t += 5) {
        std::fill_n(p.key(s, h, t), 20, quiet_nan);
        std::fill_n(p.value(s, h, t), 12, quiet_nan);
      }
  }
  const DeviceBuffer<std::uint8_t> device_bits(bits);
  const DeviceBuffer<index_t> device_offsets(offsets);
  const BitMask mask{bits, offsets};
  const BitMask device_mask{device_bits.view(device_bits.size()), device_offsets.view(device_offsets.size())};
  check_prefill(p, Dense{.chunk = 32}, mask, device_mask);

  Context c;
  const DeviceCall<> call(p);
  const OnDevice<DenseCache<float>> cache{DenseCache<float>(p)};
  const auto attend_with = [&](const BitMask& m) {
    attend(c.cuda, Dense{}, call.queries(true), cache.view, call.out(), call.lses(), m);
    c.cuda.check();
  };
  const BitMask shorter{device_bits.view(device_bits.size() - 1), device_mask.offsets};
  CHECK_THROWS_WITH(attend_with(shorter), catch_compat::contains("BitMask"));
  CHECK_THROWS_WITH(attend_with(BitMask{device_mask.bits}), catch_compat::contains("BitMask"));
  for (const float x : call.result().o) CHECK(std::isnan(x));
}

TEST_CASE("Cuda Dense: a NaN stays in the query and head that see it") {
  Problem<float> p(2, 2, 20, 12, {90}, {70});
  p.key(0, 1, 60)[3] = quiet_nan;
  p.value(0, 0, 80)[3] = quiet_nan;
  Context c;
  const Result r = run(c.cuda, p, DenseCache<float>(p));
  for (index_t i = 0; i < 70; ++i)
    for (index_t head = 0; head < 4; ++head) {
      const bool sees_key = head >= 2 && 20 + i >= 60;
      CHECK(std::isnan(r.lse[at(i * 4 + head)]) == sees_key);
      for (index_t d = 0; d < 12; ++d) {
        const bool sees = sees_key || (head < 2 && d == 3 && 20 + i >= 80);
        CHECK(std::isnan(r.o[at((i * 4 + head) * 12 + d)]) == sees);
      }
    }
}

TEST_CASE("Cuda Dense: no keys give (0, -inf), one key gives its value, bit by bit") {
  Problem<float> p(2, 3, 8, 21, {0, 1, 1}, {1, 1, 3});
  p.value(1, 0, 0)[2] = -0.0f;
  p.value(1, 0, 0)[3] = 1e-42f;
  Context c;
  const Result r = run(c.cuda, p, DenseCache<float>(p));
  const auto row = [&](index_t i, index_t head) { return r.o.data() + (i * 6 + head) * 21; };
  for (index_t head = 0; head < 6; ++head) {
    const float zeros[21] = {};
    CHECK(std::memcmp(row(0, head), zeros, sizeof zeros) == 0);
    CHECK(r.lse[at(head)] == -infinity);
    CHECK(std::memcmp(row(1, head), p.value(1, head / 3, 0), sizeof zeros) == 0);
    for (index_t i : {2, 3}) {
      CHECK(std::memcmp(row(i, head), zeros, sizeof zeros) == 0);
      CHECK(r.lse[at(i * 6 + head)] == -infinity);
    }
    CHECK(std::memcmp(row(4, head), p.value(2, head / 3, 0), sizeof zeros) == 0);
  }
}

TEST_CASE("Cuda Dense: the rest of the batch, splitting and memory do not matter; a second call allocates nothing") {
  const Problem<float> p(2, 3, 20, 12, {70, 5, 0, 90, 64}, {3, 8, 2, 60, 1});
  Context c;
  const Result r = run(c.cuda, p, DenseCache<float>(p), Dense{.chunk = 32});
  for (index_t s = 0; s < p.sequences(); ++s) {
    Problem<float> one(2, 3, 20, 12, {p.lengths[at(s)]}, {p.queries[at(s)]});
    std::copy_n(p.keys.data() + p.row(s, 0, 0) * 20, one.keys.size(), one.keys.data());
    std::copy_n(p.values.data() + p.row(s, 0, 0) * 12, one.values.size(), one.values.data());
    std::copy_n(p.q.data() + p.indptr[at(s)] * 6 * 20, one.q.size(), one.q.data());
    const Result alone = run(c.cuda, one, DenseCache<float>(one), Dense{.chunk = 32}, Causal{}, {}, true);
    CHECK(std::memcmp(alone.o.data(), r.o.data() + p.indptr[at(s)] * 6 * 12, alone.o.size() * 4) == 0);
    CHECK(std::memcmp(alone.lse.data(), r.lse.data() + p.indptr[at(s)] * 6, alone.lse.size() * 4) == 0);
  }
  const std::size_t high_water = c.cuda.workspace().high_water();
  DeviceBuffer<std::byte> memory(static_cast<index_t>(high_water) + 64);
  Cuda fixed(c.stream, memory.data(), high_water + 64);
  CHECK(run(fixed, p, DenseCache<float>(p), Dense{.chunk = 32}).same_bits(r));
  CHECK(fixed.workspace().high_water() == high_water);
  Cuda small(c.stream, memory.data(), 64);
  CHECK_THROWS_AS(run(small, p, DenseCache<float>(p), Dense{.chunk = 32}), WorkspaceError);
}

TEST_CASE("Cuda Dense: arguments that do not fit are refused by name, on the host or at check()") {
  const Problem<float> p(2, 3, 16, 8, {40, 20}, {3, 2});
  Context c;
  const DenseCache<float> host(p);
  const OnDevice<DenseCache<float>> cache(host);
  const DeviceCall<> call(p);
  const Queries<float> q = call.queries(true);
  const View<float, 3> out = call.out();
  const View<float, 2> lse = call.lses();
  const auto refused = [&](const char* argument, const auto& enqueue) {
    INFO(argument);
    CHECK_THROWS_WITH(
        [&] {
          enqueue();
          c.cuda.check();
        }(),
        catch_compat::contains(argument));
    for (const float x : call.result().o) CHECK(std::isnan(x));
    c.cuda.check();
  };
  refused("`scale`", [&] { attend(c.cuda, Dense{.scale = -1}, q, cache.view, out, lse); });
  refused("`q`: expected 16, got 15", [&] {
    attend(c.cuda, Dense{}, Queries<float>{q.rows.slice(2, 0, 15), q.indptr}, cache.view, out, lse);
  });
  refused("`q`", [&] { attend(c.cuda, Dense{}, q.rows, cache.view, out, lse); });
  refused("`out`", [&] { attend(c.cuda, Dense{}, q, cache.view, out.slice(2, 0, 7), lse); });
  refused("`lse`", [&] { attend(c.cuda, Dense{}, q, cache.view, out, lse.slice(1, 0, 5)); });
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{1, 3, 5}, {0, 6, 5}, {0, 3, 4}, {0, 3, 6}, {0, -3, 5}}) {
    const DeviceBuffer<std::int32_t> device(bad);
    refused("`q.indptr`", [&] {
      attend(c.cuda, Dense{}, Queries<float>{q.rows, device.view(3)}, cache.view, out, lse);
    });
  }
  for (const std::vector<std::int32_t>& bad : {std::vector<std::int32_t>{44, 20}, {40, -1}}) {
    const DeviceBuffer<std::int32_t> device(bad);
    refused("`lengths`", [&] {
      kv::DenseKV<const float> view = cache.view;
      view.lengths = device.view(2);
      attend(c.cuda, Dense{}, q, view, out, lse);
    });
  }
  PagedCache<float> paged(p, 8);
  const auto refused_pages = [&] {
    const OnDevice<PagedCache<float>> device(paged);
    refused("`indices`", [&] { attend(c.cuda, Dense{}, q, device.view, out, lse); });
  };
  paged.indices[1] = 1000;
  refused_pages();
  paged = PagedCache<float>(p, 8);
  paged.last[1] = 9;
  refused_pages();
  paged = PagedCache<float>(p, 8);
  paged.indptr[1] = 20;
  refused_pages();
  attend(c.cuda, Dense{}, q, cache.view, out, lse);
  c.cuda.check();
  CHECK(error(call.result(), exact(p)) <= Dense::error_bound);
}

TEST_CASE("Cuda Dense: nothing to do is no error") {
  Context c;
  const Problem<float> none(2, 2, 8, 8, {}, {});
  CHECK(run(c.cuda, none, DenseCache<float>(none)).o.empty());
  const Problem<float> no_queries(2, 2, 8, 8, {10, 0}, {0, 0});
  CHECK(run(c.cuda, no_queries, DenseCache<float>(no_queries)).o.empty());
}

}  // namespace
}  // namespace attention_test
