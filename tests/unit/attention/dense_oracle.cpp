// Dense against attention by definition in double, on every instruction set path: shapes, types, masks, soft cap,
// sinks.

#include "catch_compat.hpp"
#include "problem.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class T>
void compare(const Problem<T>& p, const char* what) {
  const DenseCache<T> cache(p);
  const Exact expected = exact(p);
  for (const Isa isa : paths()) {
    INFO(what << " " << name(isa) << " " << name(dtype_of<T>) << " heads " << p.heads << " group " << p.group
              << " dims " << p.key_dim << "/" << p.value_dim);
    Cpu cpu;
    cpu.set_isa(isa);
    const Result r = run(cpu, p, cache.view);
    CHECK(error(r, expected) < Dense::error_bound);
    CHECK(lse_error(r, expected) < 1e-5);
  }
}

TEST_CASE("Dense: head dims from 1 to 576, keys and values apart") {
  for (const auto& [key_dim, value_dim] : {std::pair<index_t, index_t>{1, 1},
                                           {1, 9},
                                           {8, 8},
                                           {17, 33},
                                           {32, 32},
                                           {64, 128},
                                           {96, 96},
                                           {128, 128},
                                           {576, 512}})
    compare(Problem<float>(2, 3, key_dim, value_dim, {130}), "decode");
}

TEST_CASE("Dense: any group size, few and many queries") {
  for (const index_t group : {1, 2, 3, 4, 5, 6, 7, 8, 16, 71}) {
    compare(Problem<float>(2, group, 20, 12, {75, 1, 64, 65}), "decode");
    compare(Problem<float>(2, group, 20, 12, {75, 2, 70}, {3, 2, group < 10 ? 70 : 5}), "prefill");
  }
}

TEST_CASE("Dense: every storage type") {
  const std::vector<index_t> lengths{200, 0, 63}, many{9, 2, 63};
  compare(Problem<fp16>(2, 3, 40, 24, lengths), "decode");
  compare(Problem<fp16>(2, 3, 40, 24, lengths, many), "prefill");
  compare(Problem<bf16>(2, 3, 40, 24, lengths), "decode");
  compare(Problem<bf16>(2, 3, 40, 24, lengths, many), "prefill");
  compare(Problem<fp8_e4m3>(2, 3, 37, 25, lengths), "decode");
  compare(Problem<fp8_e4m3>(2, 3, 37, 25, lengths, many), "prefill");
  compare(Problem<fp8_e5m2>(2, 3, 37, 25, lengths), "decode");
  compare(Problem<fp8_e5m2>(2, 3, 37, 25, lengths, many), "prefill");
}

TEST_CASE("Dense: whole lines of every storage type and their tails, for every number of rows at once") {
  // 64 bytes hold 16 to 64 elements; 200 has whole registers beyond whole lines, and 83 single elements.
  for (const index_t group : {1, 2, 3, 4, 7})
    for (const index_t dim : {64, 83, 128, 200}) {
      compare(Problem<float>(1, group, dim, 264 - dim, {67}), "decode");
      compare(Problem<fp16>(1, group, dim, 264 - dim, {67}), "decode");
      compare(Problem<bf16>(1, group, dim, 264 - dim, {67}), "decode");
      compare(Problem<fp8_e4m3>(1, group, dim, 264 - dim, {67}), "decode");
    }
}

/// As run(), with the queries of p given in bf16.
Result run_narrow(Cpu& cpu, const Problem<bf16>& p, const std::vector<bf16>& queries, const DenseCache<bf16>& cache) {
  Result r{std::vector<float>(at(p.total() * p.query_heads() * p.value_dim), quiet_nan),
           std::vector<float>(at(p.total() * p.query_heads()), quiet_nan)};
  const Queries<bf16> q{View<const bf16, 3>(queries.data(), p.total(), p.query_heads(), p.key_dim), p.views().indptr};
  attend(cpu, Dense{}, q, cache.view, View<float, 3>(r.o.data(), p.total(), p.query_heads(), p.value_dim),
         View<float, 2>(r.lse.data(), p.total(), p.query_heads()));
  return r;
}

TEST_CASE("Dense: bf16 queries over a bf16 cache, few and many") {
  for (const index_t group : {1, 2, 3, 4, 8})
    for (const index_t dim : {1, 24, 47, 128, 160})
      for (const index_t queries : {1, 3, 30}) {
        Problem<bf16> p(1, group, dim, 32, {70}, {queries});
        std::vector<bf16> narrow;
        for (float& x : p.q) {
          narrow.push_back(bf16(x));
          x = static_cast<float>(narrow.back());
        }
        const DenseCache<bf16> cache(p);
        const Exact expected = exact(p);
        for (const Isa isa : paths()) {
          INFO(name(isa) << " group " << group << " dim " << dim << " queries " << queries);
          Cpu cpu;
          cpu.set_isa(isa);
          const Result r = run_narrow(cpu, p, narrow, cache);
          CHECK(error(r, expected) < Dense::error_bound);
          CHECK(lse_error(r, expected) < 1e-5);
        }
      }
}

TEST_CASE("Dense: with `rounded`, float queries over a bf16 cache are as exact as bf16 ones or better") {
  for (const index_t group : {1, 2, 3, 5, 16})
    for (const index_t dim : {1, 31, 64, 96, 128, 160})
      for (const index_t queries : {1, 3, 30}) {
        const Problem<bf16> p(1, group, dim, 40, {70}, {queries});
        std::vector<bf16> narrow;
        for (const float x : p.q) narrow.push_back(bf16(x));
        const DenseCache<bf16> cache(p);
        const Exact expected = exact(p);
        for (const Isa isa : paths()) {
          INFO(name(isa) << " group " << group << " dim " << dim << " queries " << queries);
          Cpu cpu;
          cpu.set_isa(isa);
          const Result r = run(cpu, p, cache.view, Dense{.rounded = true});
          CHECK(error(r, expected) < Dense::rounded_error_bound(DType::bf16));
          // Either q is rounded or nothing is.
          const bool exactly = r.same_bits(run(cpu, p, cache.view));
          CHECK((exactly || r.same_bits(run_narrow(cpu, p, narrow, cache))));
          if (isa != Isa::avx512 || queries * group >= 24) CHECK(exactly);
        }
      }
  // Other caches are not concerned.
  const Problem<float> p(1, 4, 64, 64, {150});
  const DenseCache<float> cache(p);
  Cpu cpu;
  CHECK(run(cpu, p, cache.view, Dense{.rounded = true}).same_bits(run(cpu, p, cache.view)));
}

template <class T>
void read_every_value() {
  // One key, all probability on it: the output is the stored value itself, whatever its bits.
  constexpr index_t count = index_t{1} << (8 * sizeof(T));
  Problem<T> p(1, 1, 4, count, {1});
  for (index_t i = 0; i < count; ++i) p.values[at(i)] = T::from_bits(static_cast<decltype(T::bits)>(i));
  const DenseCache<T> cache(p);
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    const Result r = run(cpu, p, cache.view);
    index_t wrong = 0;
    for (index_t i = 0; i < count; ++i) {
      const float expected = static_cast<float>(p.values[at(i)]);
      wrong += std::isnan(expected) ? !std::isnan(r.o[at(i)]) : std::memcmp(&expected, &r.o[at(i)], 4) != 0;
    }
    INFO(name(isa) << " " << name(dtype_of<T>));
    CHECK(wrong == 0);
  }
}

TEST_CASE("Dense: widens every stored bit pattern exactly") {
  read_every_value<fp16>();
  read_every_value<bf16>();
  read_every_value<fp8_e4m3>();
  read_every_value<fp8_e5m2>();
}

TEST_CASE("Dense: within 5e-6 at 32768 keys", "[large]") {
  compare(Problem<bf16>(1, 4, 128, 128, {32768}), "long");
  compare(Problem<float>(1, 1, 128, 128, {32768}), "long");
}

TEST_CASE("Dense: causal prefill of many blocks") {
  compare(Problem<float>(2, 1, 32, 32, {333, 200}, {333, 20}), "prefill");
  compare(Problem<bf16>(1, 2, 64, 32, {150}, {149}), "prefill");
  compare(Problem<float>(1, 2, 16, 16, {10, 5}, {40, 7}), "more queries than keys");
}

template <class M>
void compare_mask(const Problem<float>& p, const M& mask, const Dense& a = {}, const std::vector<float>& sinks = {}) {
  const DenseCache<float> cache(p);
  const Exact expected = exact(p, a, mask, sinks);
  for (const Isa isa : paths()) {
    INFO(name(isa) << " chunk " << a.chunk);
    Cpu cpu;
    cpu.set_isa(isa);
    const Result r = run(cpu, p, cache.view, a, mask, sinks);
    CHECK(error(r, expected) < Dense::error_bound);
    CHECK(lse_error(r, expected) < 1e-5);
  }
}

TEST_CASE("Dense: Full and Window") {
  const Problem<float> few(2, 2, 24, 16, {300, 5, 0}, {2, 1, 1}), many(1, 2, 24, 16, {300, 130}, {140, 130});
  for (const index_t chunk : {0, 48}) {
    const Dense a{.chunk = chunk};
    compare_mask(few, Full{}, a);
    compare_mask(many, Full{}, a);
    for (const index_t left : {0, 1, 63, 64, 100, 1000}) {
      compare_mask(few, Window{left}, a);
      compare_mask(many, Window{left}, a);
    }
  }
}

TEST_CASE("Dense: BitMask, with rows that see nothing") {
  const Problem<float> p(2, 3, 24, 16, {90, 131, 64}, {1, 40, 3});
  std::vector<index_t> offsets{0};
  std::vector<std::uint8_t> bits;
  std::mt19937 random(3);
  for (index_t s = 0; s < 3; ++s) {
    offsets.push_back(offsets.back() + (p.queries[at(s)] * p.lengths[at(s)] + 7) / 8);
    while (static_cast<index_t>(bits.size()) < offsets.back())
      bits.push_back(static_cast<std::uint8_t>(random() & random()));
  }
  // The second sequence's queries 5 to 12 see nothing: 8 rows of 131 bits are 131 bytes, from bit 655 on.
  for (index_t bit = 5 * 131; bit < 13 * 131; ++bit)
    bits[at(offsets[1] + bit / 8)] &= static_cast<std::uint8_t>(~(1u << (bit % 8)));
  compare_mask(p, BitMask{bits, offsets});
  compare_mask(p, BitMask{bits, offsets}, Dense{.chunk = 50});
}

TEST_CASE("Dense: soft cap, scale and sinks") {
  const Problem<float> few(2, 2, 24, 16, {300, 5, 0}, {2, 1, 1}), many(1, 2, 24, 16, {130}, {70});
  const std::vector<float> sinks4{1.5f, -2.0f, -infinity, 6.0f}, sinks2{0.5f, 3.0f};
  for (const Dense& a :
       {Dense{.soft_cap = 2.0f}, Dense{.soft_cap = 50.0f}, Dense{.scale = 0.7f, .soft_cap = 0.5f, .chunk = 64},
        Dense{.scale = 1e-3f}, Dense{.scale = 2.0f}}) {
    INFO("scale " << a.scale << " cap " << a.soft_cap);
    compare_mask(few, Causal{}, a);
    compare_mask(few, Causal{}, a, sinks4);
    compare_mask(many, Causal{}, a, sinks2);
  }
  // With nothing but a sink to attend to: o = 0 and lse is the sink's logit.
  Cpu cpu;
  const Result r = run(cpu, few, DenseCache<float>(few).view, Dense{}, Causal{}, sinks4);
  for (index_t h = 0; h < 4; ++h) CHECK(r.lse[at(3 * 4 + h)] == sinks4[at(h)]);
  for (index_t d = 0; d < 4 * 16; ++d) CHECK(r.o[at(3 * 4 * 16 + d)] == 0.0f);
}

TEST_CASE("Dense: logits of 1e4, and a spread of 2e4 between them") {
  Problem<float> p(1, 2, 4, 8, {100}, {1});
  for (index_t t = 0; t < 100; ++t)
    for (index_t d = 0; d < 4; ++d) p.key(0, 0, t)[d] = t % 3 == 0 ? 100.0f : -100.0f + 0.001f * static_cast<float>(t);
  for (index_t head = 0; head < 2; ++head)
    for (index_t d = 0; d < 4; ++d) p.query(0, head)[d] = head == 0 ? 50.0f : -50.0f;
  const Exact expected = exact(p);
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    const Result r = run(cpu, p, DenseCache<float>(p).view);
    CHECK(error(r, expected) < 1e-3);  // a logit of 1e4 has an ulp of 1e-3
    CHECK(lse_error(r, expected) < 2e-3);
  }
}

}  // namespace
}  // namespace attention_test
