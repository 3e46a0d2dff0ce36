// write(), append() and gather() on the device against the CPU's bytes: every cache, element type and layout, unused
// rows included.
#include "decant/kv/write.cuh"

#include "catch_compat.hpp"
#include "decant/kv/compact.cuh"
#include "graph.cuh"
#include "twins.cuh"

/// A cache with row handles of its own, in device memory: bytes with a scale.
namespace users_engine {

using decant::index_t;

struct ByteRow {
  const signed char* codes;
};
DECANT_HD inline void load_row(ByteRow row, index_t count, float* out) {
  for (index_t i = 0; i < count; ++i) out[i] = 0.125f * static_cast<float>(row.codes[i]);
}
struct DeviceBytes {
  const signed char* codes;  // [heads][tokens][key_dim + value_dim]
  index_t heads, tokens, dims[2];
  DECANT_HD index_t sequences() const { return 1; }
  DECANT_HD index_t kv_heads() const { return heads; }
  DECANT_HD index_t key_dim() const { return dims[0]; }
  DECANT_HD index_t value_dim() const { return dims[1]; }
  DECANT_HD index_t length(index_t, index_t) const { return tokens; }
  DECANT_HD ByteRow key(index_t, index_t h, index_t t) const {
    return {codes + (h * tokens + t) * (dims[0] + dims[1])};
  }
  DECANT_HD ByteRow value(index_t, index_t h, index_t t) const { return {key(0, h, t).codes + dims[0]}; }
  DECANT_HD index_t run(index_t, index_t, index_t) const { return 1; }
  DECANT_HD index_t key_stride() const { return dims[0] + dims[1]; }
  DECANT_HD index_t value_stride() const { return dims[0] + dims[1]; }
};
inline void validate(const DeviceBytes&) {}

}  // namespace users_engine

namespace {

using conformance::Lengths;
using cuda_test::DeviceBuffer;
using cuda_test::draw_lists;
using cuda_test::KeptLists;
using cuda_test::Stream;
using cuda_test::Twin;
using decant::Cpu;
using decant::Cuda;
using decant::index_t;
using decant::View;
namespace kv = decant::kv;

/// New rows, with values that rounding changes, NaN and infinity among them. [tokens, heads, dim]
template <class S>
struct NewRows {
  index_t tokens, heads, dim;
  std::vector<S> rows;
  DeviceBuffer<S> device;

  NewRows(index_t t, index_t h, index_t d, std::uint64_t seed) : tokens(t), heads(h), dim(d), device(t * h * d) {
    for (index_t i = 0; i < t * h * d; ++i) {
      const std::uint32_t word = decant::Philox{seed}(static_cast<std::uint32_t>(i)).word[0];
      const float any = decant::bit_cast<float>(word);
      rows.push_back(S(word % 4 == 0 ? any : 4 * decant::Philox::to_unit(word) - 2));
    }
    device.upload(rows);
  }
  View<const S, 3> host() const { return {rows.data(), tokens, heads, dim}; }
  View<const S, 3> view() const { return device.view(tokens, heads, dim); }
};

/// S: the type of the new rows.
template <class S, class Fixture>
void check_writing(index_t key_dim, index_t value_dim) {
  const Lengths lengths = Fixture::ragged ? Lengths{{40, 13}, {9, 57}} : Lengths{{40, 40}, {57, 57}};
  Cpu cpu;
  for (int variant = 0; variant < Fixture::variants; ++variant) {
    Stream stream;
    Cuda cuda(stream);
    Fixture fixture(lengths, key_dim, value_dim, variant);
    Twin<Fixture> twin(fixture);
    for (const index_t tokens : {1, 5, 0}) {
      for (index_t s = 0; s < 2; ++s) {
        CAPTURE(key_dim, value_dim, variant, tokens, s);
        const NewRows<S> keys(tokens, 2, key_dim, 1), values(tokens, 2, value_dim, 2);
        write(cpu, fixture.cache(), s, 3, keys.host(), values.host());
        write(cuda, twin.cache(), s, 3, keys.view(), values.view());
        if constexpr (requires { fixture.table; }) {
          const index_t first = fixture.table.length(s) - tokens;
          write(cpu, fixture.cache(), s, first, keys.host(), values.host());
          write_last(cuda, twin.cache(), s, keys.view(), values.view());
        } else {
          append(cpu, fixture.cache(), s, keys.host(), values.host());
          append(cuda, twin.cache(), s, keys.view(), values.view());
        }
        cuda.check();
        REQUIRE(twin.equals(fixture));
      }
    }
  }
}

TEST_CASE("write and append round as the CPU does") {
  check_writing<float, conformance::Dense<decant::bf16>>(80, 8);
  check_writing<float, conformance::Dense<decant::fp16>>(6, 3);
  check_writing<float, conformance::Ragged<decant::fp8_e5m2>>(16, 4);
  check_writing<float, conformance::Paged<decant::bf16>>(16, 4);
}
TEST_CASE("rows of the cache's type keep their bits") {
  check_writing<decant::bf16, conformance::Dense<decant::bf16>>(16, 576);
  check_writing<float, conformance::Ragged<float>>(1, 4);
}

TEST_CASE("writing refuses places and room that there are not, and writes nothing") {
  Stream stream;
  Cuda cuda(stream);
  using Fixture = conformance::Ragged<float>;  // 10 rows of room behind each head
  Fixture fixture({{20, 30}}, 4, 2, 0);
  Twin<Fixture> twin(fixture);
  const auto refused = [&](index_t tokens, index_t first, const char* text) {
    const NewRows<float> keys(tokens, 2, 4, 1), values(tokens, 2, 2, 2);
    if (first >= 0) {
      write(cuda, twin.cache(), 0, first, keys.view(), values.view());
    } else {
      append(cuda, twin.cache(), 0, keys.view(), values.view());
    }
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains(text));
    REQUIRE(twin.equals(fixture));
  };
  refused(3, 18, "below every head's length, got a fault at layer 0, head 0, index 20");
  refused(11, -1, "room for the rows");
  const NewRows<float> keys(2, 2, 4, 1), values(2, 2, 2, 2);
  REQUIRE_THROWS_WITH(write(cuda, twin.cache(), 0, -1, keys.view(), values.view()), catch_compat::contains("first"));
  REQUIRE_THROWS_WITH(append(cuda, twin.cache(), 1, keys.view(), values.view()), catch_compat::contains("sequence"));
  REQUIRE_THROWS_WITH(append(cuda, twin.cache(), 0, values.view(), keys.view()), catch_compat::contains("keys"));
  twin.set_table(0, {-1, 30});
  append(cuda, twin.cache(), 0, keys.view(), values.view());
  Fixture sound({{20, 30}}, 4, 2, 0);
  Twin<Fixture> sound_twin(sound);
  append(cuda, sound_twin.cache(), 0, keys.view(), values.view());  // after a fault: nothing
  write(cuda, sound_twin.cache(), 0, 3, keys.view(), values.view());
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("lengths from 0"));
  REQUIRE(sound_twin.equals(sound));
  twin.set_table(0, {20, 30});
  REQUIRE(twin.equals(fixture));
}

TEST_CASE("a captured append goes on where the sequence ends") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  using Fixture = conformance::Dense<decant::bf16>;
  Fixture fixture({{40, 40}}, 16, 8, 1);
  Twin<Fixture> twin(fixture);
  const NewRows<float> keys(2, 2, 16, 1), values(2, 2, 8, 2);
  cuda_test::Graph graph(stream, [&] { append(cuda, twin.cache(), 0, keys.view(), values.view()); });
  for (int step = 0; step < 3; ++step) {
    graph.launch(stream);
    append(cpu, fixture.cache(), 0, keys.host(), values.host());
  }
  cuda.check();
  REQUIRE(twin.equals(fixture));
}

/// Into a dense or ragged cache of type To and into plain views.
template <class Fixture, class To>
void check_gather(index_t key_dim, index_t value_dim) {
  const Lengths lengths = Fixture::ragged ? Lengths{{40, 3}, {0, 57}} : Lengths{{40, 40}, {57, 57}};
  Cpu cpu;
  for (int variant = 0; variant < Fixture::variants; ++variant) {
    Stream stream;
    Cuda cuda(stream);
    Fixture fixture(lengths, key_dim, value_dim, variant);
    Twin<Fixture> twin(fixture);
    for (index_t s = 0; s < 2; ++s) {
      CAPTURE(key_dim, value_dim, variant, s);
      std::vector<index_t> now;
      for (index_t h = 0; h < 2; ++h) now.push_back(fixture.cache().length(s, h));
      KeptLists kept(draw_lists(now, 0.6, 2, !Fixture::ragged, 3), 60);
      conformance::Ragged<To> ragged({{50, 1}, {60, 60}}, key_dim, value_dim, 1);
      Twin<conformance::Ragged<To>> ragged_twin(ragged);
      gather(cpu, fixture.cache(), s, kept.host(), ragged.cache(), 1);
      gather(cuda, twin.cache(), s, kept.device(), ragged_twin.cache(), 1);
      cuda.check();
      REQUIRE(ragged_twin.equals(ragged));
      if (!Fixture::ragged) {
        conformance::Dense<To> dense({{50, 50}, {60, 60}}, key_dim, value_dim, 1);
        Twin<conformance::Dense<To>> dense_twin(dense);
        gather(cpu, fixture.cache(), s, kept.host(), dense.cache(), 0);
        gather(cuda, twin.cache(), s, kept.device(), dense_twin.cache(), 0);
        cuda.check();
        REQUIRE(dense_twin.equals(dense));
      }
      std::vector<To> k(static_cast<std::size_t>(2 * 60 * key_dim), To(9.0f));
      std::vector<To> v(static_cast<std::size_t>(2 * 60 * value_dim), To(9.0f));
      DeviceBuffer<To> d_k(k), d_v(v);
      gather(cpu, fixture.cache(), s, kept.host(), View<To, 3>(k.data(), 2, 60, key_dim),
             View<To, 3>(v.data(), 2, 60, value_dim));
      gather(cuda, twin.cache(), s, kept.device(), d_k.view(2, 60, key_dim), d_v.view(2, 60, value_dim));
      cuda.check();
      REQUIRE(std::memcmp(d_k.download().data(), k.data(), k.size() * sizeof(To)) == 0);
      REQUIRE(std::memcmp(d_v.download().data(), v.data(), v.size() * sizeof(To)) == 0);
    }
  }
}

TEST_CASE("gather copies bits, or converts as the CPU does") {
  check_gather<conformance::Dense<decant::bf16>, decant::bf16>(16, 80);
  check_gather<conformance::Ragged<decant::fp16>, float>(3, 8);
  check_gather<conformance::Paged<float>, decant::bf16>(4, 4);
}

TEST_CASE("gather into pages that fit exactly") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  conformance::Dense<float> fixture({{40, 40}}, 8, 4, 0);
  Twin<conformance::Dense<float>> twin(fixture);
  KeptLists kept(draw_lists({40, 40}, 0.6, 2, true, 3), 40);
  const index_t count = kept.counts[0];
  conformance::Paged<float> out({{count, count}, {count + 1, count + 1}}, 8, 4, 1);
  Twin<conformance::Paged<float>> out_twin(out);
  gather(cuda, twin.cache(), 0, kept.device(), out_twin.cache(), 1);
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("pages for just as many"));
  REQUIRE(out_twin.equals(out));
  gather(cuda, twin.cache(), 0, kept.device(), out_twin.cache(), 0);
  cuda.check();
  gather(cpu, fixture.cache(), 0, kept.host(), out.cache(), 0);
  REQUIRE(out_twin.equals(out));
  conformance::Dense<float> small({{1, 1}}, 8, 4, 0);
  Twin<conformance::Dense<float>> small_twin(small);
  auto shrunk = small_twin.cache();
  shrunk.keys = shrunk.keys.slice(2, 0, 5);
  shrunk.values = shrunk.values.slice(2, 0, 5);
  gather(cuda, twin.cache(), 0, kept.device(), shrunk);
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("room for the rows"));
  DeviceBuffer<float> k(2 * 5 * 8), v(2 * 5 * 4);
  gather(cuda, twin.cache(), 0, kept.device(), k.view(2, 5, 8), v.view(2, 5, 4));
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("room for the rows"));
  REQUIRE(small_twin.equals(small));
}

TEST_CASE("gather reads a user's own rows through load_row") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  std::vector<signed char> codes;
  for (int i = 0; i < 2 * 30 * 70; ++i) codes.push_back(static_cast<signed char>(i * 37 % 251 - 125));
  DeviceBuffer<signed char> d_codes(codes);
  const users_engine::DeviceBytes host{codes.data(), 2, 30, {40, 30}}, device{d_codes.data(), 2, 30, {40, 30}};
  KeptLists kept(draw_lists({30, 30}, 0.5, 0, false, 3), 30);
  conformance::Ragged<decant::bf16> out({{30, 30}}, 40, 30, 0);
  Twin<conformance::Ragged<decant::bf16>> twin(out);
  gather(cpu, host, 0, kept.host(), out.cache());
  gather(cuda, device, 0, kept.device(), twin.cache());
  cuda.check();
  REQUIRE(twin.equals(out));
}

}  // namespace
