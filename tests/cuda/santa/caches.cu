// Santa on the device over caches, masks and groups. Logits are exact, so o must be what the CPU's portable path gives
// but for the order of sums; a draw that differed would show.

#include "catch_compat.hpp"
#include "device_santa.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

const Santa every_key{.samples = 1 << 20, .scheme = SantaScheme::threshold_systematic, .scale = 0.0625f};

Santa drawing(SantaScheme scheme, index_t samples, index_t tile = 0) {
  return {.samples = samples, .scheme = scheme, .tile = tile, .scale = 0.0625f};
}

/// The CPU's result from every layout, in the same bits from each.
template <class T>
void check_layouts(const Problem<T>& p, const std::vector<Santa>& all) {
  INFO(name(dtype_of<T>) << " group " << p.group << " dims " << p.key_dim << "/" << p.value_dim);
  DeviceContext c;
  Cpu cpu;
  const DenseCache<T> dense(p);
  for (const Santa& a : all) {
    INFO(name(a.scheme));
    const Result r = draw(c.cuda, p, dense, a);
    CHECK(difference(p, r, draw(cpu, p, dense, a)) < 1e-6);
    CHECK(draw(c.cuda, p, PagedCache<T>(p, 16), a).same_bits(r));
    SantaTuning tight;
    tight.shared_bytes = 1;  // 16 keys at a time, and 4 query heads of a group
    CHECK(draw(c.cuda, p, dense, a, Causal{}, {}, {}, tight).same_bits(r));
    if constexpr (sizeof(T) == 4) {
      CHECK(draw(c.cuda, p, DenseCache<T>(p, Layout::nhd), a).same_bits(r));
      CHECK(draw(c.cuda, p, PagedCache<T>(p, 1), a).same_bits(r));
      CHECK(draw(c.cuda, p, RaggedCache<T>(p), a).same_bits(r));
    }
  }
}

TEST_CASE("Cuda Santa: the CPU's result over dense, paged and ragged caches") {
  check_layouts(with_exact_logits(Problem<float>(2, 3, 17, 9, {300, 0, 1, 64, 1100})),
                {drawing(SantaScheme::global_systematic, 50), drawing(SantaScheme::flash, 50)});
  check_layouts(with_exact_logits(Problem<bf16>(1, 4, 64, 128, {500, 129})),
                {drawing(SantaScheme::global_systematic, 64), drawing(SantaScheme::prop_exact, 128, 64)});
  check_layouts(with_exact_logits(Problem<bf16>(1, 11, 16, 72, {130})),
                {drawing(SantaScheme::threshold_systematic, 40)});
  check_layouts(with_exact_logits(Problem<float>(1, 1, 576, 512, {70})), {drawing(SantaScheme::plain, 30)});
}

TEST_CASE("Cuda Santa: with all keys taken it is exact attention, soft caps and sinks included") {
  const Problem<float> p(2, 5, 20, 12, {400, 0, 1, 70});
  DeviceContext c;
  std::vector<float> sinks = normal(p.query_heads(), 5);
  sinks[0] = -infinity;
  for (const bool with_sinks : {false, true}) {
    const std::vector<float> s = with_sinks ? sinks : std::vector<float>{};
    Santa a = every_key;
    a.scale = 0.4f;
    a.soft_cap = 3.0f;
    const Result r = draw(c.cuda, p, DenseCache<float>(p), a, Causal{}, s);
    const Exact e = exact(p, Dense{.scale = 0.4f, .soft_cap = 3.0f}, Causal{}, s);
    CHECK(error(r, e) < 5e-6);
    CHECK(lse_error(r, e) < 1e-5);
  }
}

TEST_CASE("Cuda Santa: many samples come close to exact attention, one key gives its value, none give 0") {
  const Problem<float> p(1, 3, 24, 17, {150, 1, 0});
  DeviceContext c;
  const DenseCache<float> cache(p);
  const Exact e = exact(p);
  for (const SantaScheme scheme : all_schemes) {
    INFO(name(scheme));
    const Result many = draw(c.cuda, p, cache, {.samples = 64 * 150, .scheme = scheme});
    // Plain draws fall short by sqrt(1 / (64 n)), times what |v| exceeds |o| by.
    CHECK(error(many, e) < (scheme == SantaScheme::plain ? 0.15 : Santa::error_bound));
    CHECK(lse_error(many, e) < 1e-5);
    for (index_t head = 0; head < 3; ++head)
      CHECK(std::memcmp(many.o.data() + (3 + head) * 17, p.value(1, 0, 0), 17 * sizeof(float)) == 0);
    const Result none = draw(c.cuda, p, cache, {.samples = 0, .scheme = scheme});
    CHECK(none.o == std::vector<float>(none.o.size(), 0.0f));
    CHECK(lse_error(none, e) < 1e-5);
  }
}

TEST_CASE("Cuda Santa: several queries, masks, and what unseen keys hold does not matter") {
  Problem<float> p = with_exact_logits(Problem<float>(1, 2, 16, 12, {300, 90}, {1, 4}));
  std::vector<std::uint8_t> bits(38 + 45);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint8_t>(37 * i * i + 11 * i);
  std::fill(bits.begin() + 15, bits.begin() + 28, std::uint8_t{0});  // a block and more
  const std::vector<index_t> offsets{0, 38, 83};
  const BitMask mask{bits, offsets};
  Problem<float> poisoned = p;
  for (index_t t = 0; t < 300; ++t)
    if (!mask.allowed(0, 0, t, 1, 300)) {
      std::fill_n(poisoned.key(0, 0, t), 16, quiet_nan);
      std::fill_n(poisoned.value(0, 0, t), 12, quiet_nan);
    }
  const DeviceBuffer<std::uint8_t> device_bits(bits);
  const DeviceBuffer<index_t> device_offsets(offsets);
  const BitMask device_mask{device_bits.view(device_bits.size()), device_offsets.view(device_offsets.size())};
  DeviceContext c;
  Cpu cpu;
  const DenseCache<float> cache(p), bad(poisoned);
  CHECK(error(draw(c.cuda, p, cache, every_key, device_mask), exact(p, Dense{.scale = 0.0625f}, mask)) < 5e-6);
  for (const SantaScheme scheme : {SantaScheme::global_systematic, SantaScheme::flash, SantaScheme::plain}) {
    const Santa a = drawing(scheme, 40);
    const Result clean = draw(c.cuda, p, cache, a, device_mask);
    CHECK(difference(p, clean, draw(cpu, p, cache, a, mask)) < 1e-6);
    CHECK(draw(c.cuda, poisoned, bad, a, device_mask).same_bits(clean));
    const Result window = draw(c.cuda, p, cache, a, Window{.left = 70}, {}, {4, 5});
    CHECK(difference(p, window, draw(cpu, p, cache, a, Window{.left = 70}, {}, {4, 5})) < 1e-6);
    // One query a round.
    SantaTuning narrow;
    narrow.round_bytes = 1;
    CHECK(draw(c.cuda, p, cache, a, Window{.left = 70}, {}, {4, 5}, narrow).same_bits(window));
  }
}

TEST_CASE("Cuda Santa: NaN stays in the heads that see it or draw it") {
  const Problem<float> p = with_exact_logits(Problem<float>(2, 2, 16, 12, {200, 100}));
  DeviceContext c;
  const Santa a = drawing(SantaScheme::global_systematic, 50);
  const Result clean = draw(c.cuda, p, DenseCache<float>(p), a);
  const auto nan_heads = [&](const Problem<float>& q) {
    const Result r = draw(c.cuda, q, DenseCache<float>(q), a);
    std::vector<int> heads;
    for (index_t i = 0; i < 8; ++i) {
      const float* o = r.o.data() + i * 12;
      CHECK(std::isnan(o[5]) == std::isnan(r.lse[at(i)]));
      if (std::isnan(o[5])) heads.push_back(static_cast<int>(i));
      // Rows that only another head has drawn change the order in which this one's are summed.
      for (index_t d = 0; d < 12 && !std::isnan(o[5]); ++d) CHECK(std::abs(o[d] - clean.o[at(i * 12 + d)]) < 1e-6f);
    }
    return heads;
  };
  Problem<float> q = p;
  q.key(0, 1, 77)[3] = quiet_nan;
  CHECK(nan_heads(q) == std::vector<int>{2, 3});
  q = p;
  q.query(1, 2)[3] = quiet_nan;
  CHECK(nan_heads(q) == std::vector<int>{6});
  q = p;
  q.query(1, 0)[0] = infinity;
  CHECK(nan_heads(q) == std::vector<int>{4});
  // Head 0 never draws a key that it gives no weight; head 1 always draws it.
  q = p;
  for (index_t d = 0; d < 16; ++d) q.key(0, 0, 9)[d] = 100 * q.query(0, 1)[d] - 100 * q.query(0, 0)[d];
  const Result before = draw(c.cuda, q, DenseCache<float>(q), a);
  q.value(0, 0, 9)[5] = quiet_nan;
  const Result r = draw(c.cuda, q, DenseCache<float>(q), a);
  CHECK(std::isnan(r.o[12 + 5]));
  CHECK(r.o[12 + 4] == before.o[12 + 4]);
  CHECK(std::memcmp(r.o.data(), before.o.data(), 12 * sizeof(float)) == 0);
}

}  // namespace

/// A cache of bytes with one scale per row: a user's own view, in the user's namespace.
struct ByteRow {
  const std::int8_t* data;
};
DECANT_HD inline void load_row(const ByteRow& row, index_t count, float* out) {
  for (index_t i = 0; i < count; ++i) out[i] = static_cast<float>(row.data[i]);
}
struct ByteKV {
  const std::int8_t* rows;  // [heads, n, d], for keys and values of one sequence
  index_t h, n, d;
  DECANT_HD index_t sequences() const { return 1; }
  DECANT_HD index_t kv_heads() const { return h; }
  DECANT_HD index_t key_dim() const { return d; }
  DECANT_HD index_t value_dim() const { return d; }
  DECANT_HD index_t capacity() const { return n; }
  DECANT_HD index_t length(index_t, index_t) const { return n; }
  DECANT_HD ByteRow key(index_t, index_t head, index_t t) const { return {rows + (head * n + t) * d}; }
  DECANT_HD ByteRow value(index_t sequence, index_t head, index_t t) const { return key(sequence, head, t); }
  DECANT_HD index_t run(index_t, index_t, index_t) const { return 1; }
  DECANT_HD index_t key_stride() const { return 0; }
  DECANT_HD index_t value_stride() const { return 0; }
};
inline void validate(const ByteKV&) {}

namespace {

TEST_CASE("Cuda Santa: a cache view of the user's own") {
  const index_t n = 90, d = 10;
  std::vector<std::int8_t> rows(at(2 * n * d));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int8_t>(i * i % 7) - 3;
  std::vector<float> q(at(4 * d));
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 5) - 2;
  DeviceContext c;
  Cpu cpu;
  const DeviceBuffer<std::int8_t> device_rows(rows);
  const DeviceBuffer<float> device_q(q), out(4 * d);
  std::vector<float> o(q.size());
  for (const SantaScheme scheme : {SantaScheme::global_systematic, SantaScheme::flash}) {
    const Santa a = drawing(scheme, 64);
    attend(cpu, a, View<const float, 3>(q.data(), 1, 4, d), ByteKV{rows.data(), 2, n, d},
           View<float, 3>(o.data(), 1, 4, d));
    attend(c.cuda, a, View<const float, 3>(device_q.data(), 1, 4, d), ByteKV{device_rows.data(), 2, n, d},
           out.view(1, 4, d));
    c.cuda.check();
    CHECK(oracle::relative_error(doubles(out.download()), doubles(o)) < 1e-6);
  }
}

}  // namespace
}  // namespace attention_test
