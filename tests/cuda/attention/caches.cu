// Caches beyond the three: rows with handles of their own, values that lie inside the keys, plans and none.

#include "catch_compat.hpp"
#include "device_problem.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {

/// A cache of bytes with one scale per row: a user's own view, in the user's namespace.
struct ByteRow {
  const std::int8_t* data;
  float scale;
};
DECANT_HD inline void load_row(const ByteRow& row, index_t count, float* out) {
  for (index_t i = 0; i < count; ++i) out[i] = row.scale * static_cast<float>(row.data[i]);
}
struct ByteKV {
  const std::int8_t* rows;  // [sequences, heads, capacity, dim], for keys and values
  const std::int32_t* lengths;
  index_t s, h, n, d;
  DECANT_HD index_t sequences() const { return s; }
  DECANT_HD index_t kv_heads() const { return h; }
  DECANT_HD index_t key_dim() const { return d; }
  DECANT_HD index_t value_dim() const { return d; }
  DECANT_HD index_t capacity() const { return n; }
  DECANT_HD index_t length(index_t sequence, index_t) const { return lengths[sequence]; }
  DECANT_HD ByteRow key(index_t sequence, index_t head, index_t t) const {
    return {rows + ((sequence * h + head) * n + t) * d, 1.0f / 64};
  }
  DECANT_HD ByteRow value(index_t sequence, index_t head, index_t t) const { return key(sequence, head, t); }
  DECANT_HD index_t run(index_t, index_t, index_t) const { return 1; }
  DECANT_HD index_t key_stride() const { return 0; }
  DECANT_HD index_t value_stride() const { return 0; }
};
inline void validate(const ByteKV&) {}
static_assert(kv::CacheView<ByteKV> && !kv::PlainCacheView<ByteKV>);

namespace {

struct Context {
  cuda_test::Stream stream;
  Cuda cuda{stream};
};

TEST_CASE("Cuda Dense: a cache view of the user's own") {
  Problem<float> p(2, 3, 20, 20, {40, 0, 23}, {1, 1, 1});
  std::vector<std::int8_t> rows;
  const std::vector<std::int32_t> lengths{40, 0, 23};
  std::mt19937 random(1);
  for (index_t i = 0; i < 3 * 2 * 40 * 20; ++i) rows.push_back(static_cast<std::int8_t>(random() % 256 - 128));
  for (index_t s = 0; s < 3; ++s)
    for (index_t h = 0; h < 2; ++h)
      for (index_t t = 0; t < p.lengths[at(s)]; ++t) {
        load_row(ByteRow{rows.data() + ((s * 2 + h) * 40 + t) * 20, 1.0f / 64}, 20, p.key(s, h, t));
        std::copy_n(p.key(s, h, t), 20, p.value(s, h, t));
      }
  Context c;
  const DeviceBuffer<std::int8_t> device_rows(rows);
  const DeviceBuffer<std::int32_t> device_lengths(lengths);
  const DeviceCall<> call(p);
  attend(c.cuda, Dense{}, call.rows(), ByteKV{device_rows.data(), device_lengths.data(), 3, 2, 40, 20}, call.out(),
         call.lses());
  c.cuda.check();
  CHECK(error(call.result(), exact(p)) <= Dense::error_bound);
}

template <class T>
void check_values_in_keys(index_t group) {
  Problem<T> p(1, group, 72, 64, {50, 0, 70});
  for (index_t s = 0; s < 3; ++s)
    for (index_t t = 0; t < p.lengths[at(s)]; ++t) std::copy_n(p.key(s, 0, t), 64, p.value(s, 0, t));
  Context c;
  const DenseCache<T> host(p);
  OnDevice<DenseCache<T>> cache(host);
  const DeviceCall<> apart(p), within(p);
  attend(c.cuda, Dense{}, apart.rows(), cache.view, apart.out(), apart.lses());
  cache.view.values = cache.view.keys.slice(3, 0, 64);
  attend(c.cuda, Dense{}, within.rows(), cache.view, within.out(), within.lses());
  c.cuda.check();
  CHECK(error(within.result(), exact(p)) <= Dense::error_bound);
  CHECK(within.result().same_bits(apart.result()));
}

TEST_CASE("Cuda Dense: values that are the beginning of the keys, as in MLA, are read once") {
  check_values_in_keys<bf16>(16);
  check_values_in_keys<float>(3);
}

TEST_CASE("Cuda Dense: decode gives the same bits with a plan and without") {
  const Problem<bf16> p(2, 6, 24, 16, {200, 1, 0, 67});
  const Dense a{.chunk = 48};
  const PagedCache<bf16> host(p, 16);
  const OnDevice<PagedCache<bf16>> cache(host);
  Context c;
  const DeviceCall<> direct(p), planned(p);
  attend(c.cuda, a, direct.rows(), cache.view, direct.out(), direct.lses());
  DenseTuning tuning;
  tuning.spare_blocks = -1000000;
  Context other;
  attend(other.cuda, tuning, a, direct.queries(false), cache.view, planned.out(), planned.lses());
  c.cuda.check();
  other.cuda.check();
  CHECK(planned.result().same_bits(direct.result()));
  CHECK(other.cuda.workspace().high_water() < c.cuda.workspace().high_water());

  // Faults are found both ways.
  PagedCache<bf16> bad(p, 16);
  bad.indices[3] = 1 << 20;
  for (const bool plan : {false, true}) {
    const OnDevice<PagedCache<bf16>> wrong(bad);
    const DeviceCall<> call(p);
    tuning.spare_blocks = plan ? -1000000 : 1000000;
    attend(c.cuda, tuning, a, call.queries(false), wrong.view, call.out(), call.lses());
    CHECK_THROWS_WITH(c.cuda.check(), catch_compat::contains("`indices`"));
    for (const float x : call.result().o) CHECK(std::isnan(x));
  }
}

}  // namespace
}  // namespace attention_test
