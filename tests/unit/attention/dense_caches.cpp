// The same numbers in every kind of cache give the same bits, whatever lies in the slots that nobody uses; and a cache
// of the user's own, in the user's own namespace, is as good as ours.

#include "catch_compat.hpp"
#include "problem.hpp"

using namespace decant;
using namespace decant::attention;

namespace their_engine {

/// Rows of 8-bit integers with a scale per row, and a handle of its own that says so.
struct QuantisedRow {
  const std::int8_t* codes;
  float scale;
};

inline void load_row(const QuantisedRow& row, index_t count, float* out) {
  for (index_t i = 0; i < count; ++i) out[i] = static_cast<float>(row.codes[i]) * row.scale;
}

struct QuantisedCache {
  std::vector<std::int8_t> keys, values;
  std::vector<float> key_scales, value_scales;
  std::vector<index_t> lengths;
  index_t heads, capacity, dims[2];

  index_t sequences() const { return static_cast<index_t>(lengths.size()); }
  index_t kv_heads() const { return heads; }
  index_t key_dim() const { return dims[0]; }
  index_t value_dim() const { return dims[1]; }
  index_t length(index_t s, index_t) const { return lengths[static_cast<std::size_t>(s)]; }
  index_t row(index_t s, index_t h, index_t t) const { return (s * heads + h) * capacity + t; }
  QuantisedRow key(index_t s, index_t h, index_t t) const {
    return {keys.data() + row(s, h, t) * dims[0], key_scales[static_cast<std::size_t>(row(s, h, t))]};
  }
  QuantisedRow value(index_t s, index_t h, index_t t) const {
    return {values.data() + row(s, h, t) * dims[1], value_scales[static_cast<std::size_t>(row(s, h, t))]};
  }
  index_t run(index_t, index_t, index_t) const { return 1; }
  index_t key_stride() const { return dims[0]; }
  index_t value_stride() const { return dims[1]; }
};

inline void validate(const QuantisedCache&) {}

static_assert(kv::CacheView<QuantisedCache> && !kv::PlainCacheView<QuantisedCache>);

}  // namespace their_engine

namespace attention_test {
namespace {

template <class T>
void same_in_every_cache(const Problem<T>& p) {
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    for (const index_t chunk : {0, 40}) {
      const Dense a{.chunk = chunk};
      const Result expected = run(cpu, p, DenseCache<T>(p).view, a);
      INFO(name(isa) << " chunk " << chunk);
      for (const float x : expected.o) REQUIRE(!std::isnan(x));
      CHECK(run(cpu, p, DenseCache<T>(p, Layout::nhd).view, a).same_bits(expected));
      CHECK(run(cpu, p, RaggedCache<T>(p).view, a).same_bits(expected));
      for (const index_t page_size : {1, 7, 16, 64, 128})
        for (const Layout layout : {Layout::hnd, Layout::nhd})
          CHECK(run(cpu, p, PagedCache<T>(p, page_size, layout).view, a).same_bits(expected));
    }
  }
}

TEST_CASE("Dense: dense, paged and ragged caches, any page size, NHD and HND, NaN around them: the same bits") {
  same_in_every_cache(Problem<float>(2, 3, 20, 12, {150, 1, 0, 64}));
  same_in_every_cache(Problem<float>(2, 3, 20, 12, {150, 30, 0, 64}, {17, 30, 2, 3}));
  same_in_every_cache(Problem<bf16>(2, 2, 32, 32, {150, 1, 0, 64}, {9, 1, 1, 4}));
}

TEST_CASE("Dense: pages shared by sequences") {
  Problem<float> p(2, 2, 16, 16, {40, 43});
  std::copy_n(p.q.data(), 4 * 16, p.q.data() + 4 * 16);
  for (index_t h = 0; h < 2; ++h)
    for (index_t t = 0; t < 40; ++t) {
      std::copy_n(p.key(0, h, t), 16, p.key(1, h, t));
      std::copy_n(p.value(0, h, t), 16, p.value(1, h, t));
    }
  PagedCache<float> paged(p, 8);
  Cpu cpu;
  const Result expected = run(cpu, p, paged.view);
  for (std::size_t i = 0; i < 5; ++i) paged.indices[5 + i] = paged.indices[i];  // five whole pages in common
  CHECK(run(cpu, p, paged.view).same_bits(expected));
}

TEST_CASE("Dense: heads of different lengths") {
  // Head h of a ragged cache against a call with that head alone.
  const Problem<float> p(3, 2, 16, 8, {90});
  RaggedCache<float> ragged(p);
  ragged.lengths = {90, 0, 33};
  Cpu cpu;
  const Result r = run(cpu, p, ragged.view);
  for (index_t h = 0; h < 3; ++h) {
    Problem<float> one(1, 2, 16, 8, {ragged.lengths[at(h)]});
    std::copy_n(p.key(0, h, 0), one.keys.size(), one.keys.data());
    std::copy_n(p.value(0, h, 0), one.values.size(), one.values.data());
    std::copy_n(p.q.data() + h * 2 * 16, 2 * 16, one.q.data());
    const Result alone = run(cpu, one, DenseCache<float>(one).view);
    CHECK(std::memcmp(alone.o.data(), r.o.data() + h * 2 * 8, 2 * 8 * sizeof(float)) == 0);
    CHECK(std::memcmp(alone.lse.data(), r.lse.data() + h * 2, 2 * sizeof(float)) == 0);
  }
  CHECK(r.lse[2] == -infinity);
}

TEST_CASE("Dense: a quantised cache in a namespace of its own") {
  for (const index_t m : {1, 30}) {
    Problem<float> p(2, 3, 20, 13, {80, 35}, {m, 1});
    their_engine::QuantisedCache cache{{}, {}, {}, {}, p.lengths, 2, 80, {20, 13}};
    cache.keys.resize(4 * 80 * 20);
    cache.values.resize(4 * 80 * 13);
    cache.key_scales.resize(4 * 80, quiet_nan);
    cache.value_scales.resize(4 * 80, quiet_nan);
    for (index_t s = 0; s < 2; ++s)
      for (index_t h = 0; h < 2; ++h)
        for (index_t t = 0; t < p.lengths[at(s)]; ++t) {
          const auto store = [](float* row, index_t dim, std::int8_t* codes, float& scale) {
            scale = 0.03125f;
            for (index_t d = 0; d < dim; ++d) {
              codes[d] = static_cast<std::int8_t>(std::lround(std::clamp(row[d] / scale, -127.0f, 127.0f)));
              row[d] = static_cast<float>(codes[d]) * scale;  // the problem then holds what the cache holds
            }
          };
          const index_t row = cache.row(s, h, t);
          store(p.key(s, h, t), 20, cache.keys.data() + row * 20, cache.key_scales[at(row)]);
          store(p.value(s, h, t), 13, cache.values.data() + row * 13, cache.value_scales[at(row)]);
        }
    for (const Isa isa : paths()) {
      Cpu cpu;
      cpu.set_isa(isa);
      CHECK(run(cpu, p, cache).same_bits(run(cpu, p, DenseCache<float>(p).view)));
    }
  }
}

TEST_CASE("Dense: queries and outputs in any strides and types") {
  const Problem<float> p(2, 2, 16, 8, {50, 33});
  const DenseCache<float> cache(p);
  Cpu cpu;
  const Result expected = run(cpu, p, cache.view);
  // q and out as slices of wider, transposed tensors: [heads, sequences, dim + 5].
  std::vector<float> q(at(4 * 2 * 21), quiet_nan), o(at(4 * 2 * 13), quiet_nan), lse(at(4 * 2 * 3), quiet_nan);
  const index_t q_extents[] = {2, 4, 16}, q_strides[] = {21, 42, 1}, o_extents[] = {2, 4, 8}, o_strides[] = {13, 26, 1};
  const index_t l_extents[] = {2, 4}, l_strides[] = {3, 6};
  const View<float, 3> qv(q.data(), q_extents, q_strides), ov(o.data(), o_extents, o_strides);
  const View<float, 2> lv(lse.data(), l_extents, l_strides);
  for (index_t s = 0; s < 2; ++s)
    for (index_t h = 0; h < 4; ++h) std::copy_n(p.q.data() + (s * 4 + h) * 16, 16, &qv(s, h, 0));
  attend(cpu, Dense{}, qv, cache.view, ov, lv);
  std::size_t written = 0;
  for (const float x : o) written += !std::isnan(x);
  CHECK(written == 2 * 4 * 8);
  for (index_t s = 0; s < 2; ++s)
    for (index_t h = 0; h < 4; ++h) {
      CHECK(lv(s, h) == expected.lse[at(s * 4 + h)]);
      for (index_t d = 0; d < 8; ++d) CHECK(ov(s, h, d) == expected.o[at((s * 4 + h) * 8 + d)]);
    }

  // A bf16 output is the float output, rounded once.
  std::vector<bf16> rounded(at(2 * 4 * 8));
  attend(cpu, Dense{}, p.views().rows, cache.view, View<bf16, 3>(rounded.data(), 2, 4, 8));
  for (std::size_t i = 0; i < rounded.size(); ++i) CHECK(rounded[i].bits == bf16(expected.o[i]).bits);

  // bf16 queries that hold what float queries hold.
  Problem<float> even = p;
  std::vector<bf16> narrow;
  for (float& x : even.q) {
    narrow.push_back(bf16(x));
    x = static_cast<float>(narrow.back());
  }
  Result r = expected;
  attend(cpu, Dense{}, View<const bf16, 3>(narrow.data(), 2, 4, 16), cache.view, View<float, 3>(r.o.data(), 2, 4, 8),
         View<float, 2>(r.lse.data(), 2, 4));
  CHECK(r.same_bits(run(cpu, even, cache.view)));
}

}  // namespace
}  // namespace attention_test
