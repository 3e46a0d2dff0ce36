// Tensor cores: 16-bit caches with groups of 5 and more, and with several queries per sequence. What the other files
// say of CUDA cores holds here too.

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

template <class T>
void check_bound(const Problem<T>& p, const Dense& a, const std::vector<float>& sinks = {}, bool offsets = false) {
  INFO("group " << p.group << " dims " << p.key_dim << "/" << p.value_dim);
  Context c;
  const Result r = run(c.cuda, p, DenseCache<T>(p, Layout::nhd), a, Causal{}, sinks, offsets);
  const Exact expected = exact(p, a, Causal{}, sinks);
  const double bound = a.rounded ? Dense::rounded_error_bound(dtype_of<T>) : Dense::error_bound;
  CHECK(error(r, expected) <= bound);
  CHECK(lse_error(r, expected) <= 1e-5 + bound);
}

TEST_CASE("Cuda Dense: tensor cores keep the bound of float, for all shapes") {
  check_bound(Problem<bf16>(2, 7, 96, 80, {200, 1, 0, 67}), Dense{.chunk = 100});  // 16 rows
  check_bound(Problem<fp16>(1, 20, 128, 128, {90, 64}), Dense{.chunk = 64});       // 64 rows
  check_bound(Problem<bf16>(2, 3, 20, 12, {70, 5, 0, 90}, {3, 8, 2, 60}), Dense{.chunk = 32});
  check_bound(Problem<fp16>(1, 5, 130, 200, {70}), Dense{.chunk = 50});  // middle dims
  check_bound(Problem<fp16>(1, 4, 64, 192, {70, 33}, {12, 9}), Dense{.soft_cap = 3}, {1, -2, 3, -infinity});
  check_bound(Problem<bf16>(1, 17, 576, 512, {50}), Dense{});               // MLA
  check_bound(Problem<bf16>(1, 1, 3, 1, {65, 2, 230}), Dense{}, {}, true);  // one query each, odd dims
}

TEST_CASE("Cuda Dense: with `rounded` the declared bound of FlashAttention's arithmetic holds") {
  for (const index_t group : {8, 1}) {
    check_bound(Problem<bf16>(1, group, 64, 64, {300}, {group == 8 ? 1 : 9}), Dense{.rounded = true});
    check_bound(Problem<fp16>(1, group, 64, 64, {300}, {group == 8 ? 1 : 9}), Dense{.rounded = true});
  }
}

TEST_CASE("Cuda Dense: float queries of any size over fp16 caches") {
  Problem<fp16> p(1, 5, 20, 12, {90});
  for (index_t d = 0; d < 20; ++d) {
    p.query(0, 0)[d] *= 1e6f, p.query(0, 1)[d] *= 1e-7f, p.query(0, 2)[d] = 0, p.query(0, 3)[d] *= 1e-40f;
  }
  for (fp16& k : p.keys) k = fp16(static_cast<float>(k) * 1e-5f);
  check_bound(p, Dense{});
}

TEST_CASE("Cuda Dense: tensor cores give the same bits from every cache, in every batch, to tiles of 16 and 64 rows") {
  const Problem<bf16> p(2, 3, 20, 12, {70, 5, 0, 90, 64}, {3, 8, 2, 60, 1});
  const Dense a{.chunk = 32};
  Context c;
  const Result r = run(c.cuda, p, DenseCache<bf16>(p), a);
  CHECK(run(c.cuda, p, RaggedCache<bf16>(p), a).same_bits(r));
  for (const index_t page_size : {1, 7, 16}) CHECK(run(c.cuda, p, PagedCache<bf16>(p, page_size), a).same_bits(r));
  for (index_t s = 0; s < p.sequences(); ++s) {  // alone, sequences 0, 2 and 4 have tiles of 16 rows
    Problem<bf16> one(2, 3, 20, 12, {p.lengths[at(s)]}, {p.queries[at(s)]});
    std::copy_n(p.keys.data() + p.row(s, 0, 0) * 20, one.keys.size(), one.keys.data());
    std::copy_n(p.values.data() + p.row(s, 0, 0) * 12, one.values.size(), one.values.data());
    std::copy_n(p.q.data() + p.indptr[at(s)] * 6 * 20, one.q.size(), one.q.data());
    const Result alone = run(c.cuda, one, DenseCache<bf16>(one), a, Causal{}, {}, true);
    CHECK(std::memcmp(alone.o.data(), r.o.data() + p.indptr[at(s)] * 6 * 12, alone.o.size() * 4) == 0);
    CHECK(std::memcmp(alone.lse.data(), r.lse.data() + p.indptr[at(s)] * 6, alone.lse.size() * 4) == 0);
  }
}

TEST_CASE("Cuda Dense: queries and results in the cache's type") {
  Problem<bf16> p(2, 2, 20, 12, {70, 40}, {3, 8});
  for (float& x : p.q) x = bf16(x);
  Context c;
  const Exact expected = exact(p);
  const Result r = run<bf16, float>(c.cuda, p, DenseCache<bf16>(p));
  CHECK(error(r, expected) <= Dense::error_bound);
  const Result narrow = run<bf16, bf16>(c.cuda, p, DenseCache<bf16>(p));
  for (std::size_t i = 0; i < r.o.size(); ++i) CHECK(narrow.o[i] == static_cast<float>(bf16(r.o[i])));
  CHECK(narrow.lse == r.lse);
}

/// Every third key is hidden from all queries, and key 11 from query 0.
struct Holes {
  DECANT_HD bool allowed(index_t, index_t query, index_t key, index_t, index_t) const {
    return key % 3 != 1 && !(query == 0 && key == 11);
  }
  DECANT_HD KeyRange range(index_t, index_t, index_t, index_t keys) const { return {0, keys}; }
};

TEST_CASE("Cuda Dense: on tensor cores too, what a query does not see does not matter to any bit") {
  Problem<bf16> p(1, 2, 20, 12, {90}, {40});
  const auto with = [&](const Problem<bf16>& problem, const auto& mask) {
    Context c;
    return run(c.cuda, problem, DenseCache<bf16>(problem), Dense{}, mask);
  };
  const Result r = with(p, Holes{});
  CHECK(error(r, exact(p, Dense{}, Holes{})) <= Dense::error_bound);
  Problem<bf16> poisoned = p;
  for (index_t t = 1; t < 90; t += 3) {
    std::fill_n(poisoned.key(0, 0, t), 20, bf16(quiet_nan));
    std::fill_n(poisoned.value(0, 0, t), 12, bf16(t % 2 == 0 ? quiet_nan : infinity));
  }
  CHECK(with(poisoned, Holes{}).same_bits(r));
  poisoned.value(0, 0, 11)[3] = bf16(quiet_nan);
  const Result seen = with(poisoned, Holes{});
  for (std::size_t i = 0; i < r.o.size(); ++i) {
    const bool sees = i >= 2 * 12 && i % 12 == 3;
    CHECK((sees ? std::isnan(seen.o[i]) : seen.o[i] == r.o[i]));
  }

  p.key(0, 0, 80)[3] = bf16(quiet_nan);
  p.value(0, 0, 60)[3] = bf16(infinity);
  const Result causal = with(p, Causal{});
  for (index_t i = 0; i < 40; ++i)
    for (index_t head = 0; head < 2; ++head) {
      const bool sees_key = 50 + i >= 80;
      CHECK(std::isnan(causal.lse[at(i * 2 + head)]) == sees_key);
      for (index_t d = 0; d < 12; ++d) {
        const float x = causal.o[at((i * 2 + head) * 12 + d)];
        CHECK(std::isnan(x) == sees_key);
        if (!sees_key) CHECK(std::isinf(x) == (d == 3 && 50 + i >= 60));
      }
    }
}

}  // namespace
}  // namespace attention_test
