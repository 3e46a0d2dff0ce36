// compact() on the device leaves the bytes that it leaves on the CPU, in every cache, layout and dim, unused rows
// included; what it refuses it leaves untouched.
#include "decant/kv/compact.cuh"

#include "catch_compat.hpp"
#include "graph.cuh"
#include "twins.cuh"

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

/// Both sides compact sequence s; a paged cache's table is cut too.
template <class Fixture>
void compact_both(Cpu& cpu, Cuda& cuda, Fixture& fixture, Twin<Fixture>& twin, KeptLists& kept, index_t s) {
  if constexpr (requires { fixture.table; }) {
    std::vector<std::int32_t> freed(50, -1);
    DeviceBuffer<std::int32_t> d_freed(freed), count(1);
    const index_t number = compact(cpu, fixture.cache(), kept.host(), s, freed);
    compact(cuda, twin.cache(), kept.device(), s, d_freed.view(50), count.data());
    cuda.check();
    REQUIRE(count.download()[0] == number);
    REQUIRE(d_freed.download() == freed);
  } else {
    compact(cpu, fixture.cache(), kept.host(), s);
    compact(cuda, twin.cache(), kept.device(), s);
    cuda.check();
  }
}

template <class Fixture>
void check_compaction(const std::vector<std::pair<index_t, index_t>>& dims) {
  const Lengths lengths = Fixture::ragged ? Lengths{{40, 3}, {0, 57}} : Lengths{{40, 40}, {57, 57}};
  Cpu cpu;
  for (const auto& [key_dim, value_dim] : dims) {
    for (int variant = 0; variant < Fixture::variants; ++variant) {
      Stream stream;
      Cuda cuda(stream);
      Fixture fixture(lengths, key_dim, value_dim, variant);
      Twin<Fixture> twin(fixture);
      for (const double share : {0.5, 0.9, 0.1}) {
        for (index_t s = 0; s < 2; ++s) {
          CAPTURE(key_dim, value_dim, variant, share, s);
          std::vector<index_t> now;
          for (index_t h = 0; h < 2; ++h) now.push_back(fixture.cache().length(s, h));
          KeptLists kept(draw_lists(now, share, share == 0.5 ? 9 : 0, !Fixture::ragged, 3), 60);
          compact_both(cpu, cuda, fixture, twin, kept, s);
          REQUIRE(twin.equals(fixture));
        }
      }
    }
  }
}

TEST_CASE("compact, dense: bf16 and float, aligned and odd dims") {
  check_compaction<conformance::Dense<decant::bf16>>({{80, 8}, {6, 3}});
  check_compaction<conformance::Dense<float>>({{64, 128}, {1, 3}});
}
TEST_CASE("compact, paged: pages of 1, 7, 16 and 64") {
  check_compaction<conformance::Paged<decant::bf16>>({{16, 8}});
  check_compaction<conformance::Paged<decant::fp16>>({{6, 3}});
}
TEST_CASE("compact, ragged") {
  check_compaction<conformance::Ragged<decant::fp8_e4m3>>({{32, 16}, {2, 1}});
}

TEST_CASE("compact moves a row once where values lie in keys, as in latent caches") {
  std::vector<float> rows(20 * 12);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  std::vector<float> expected = rows;
  const std::vector<std::int32_t> tokens{1, 2, 3, 5, 8, 13};  // most destinations are rows that move, too
  for (std::size_t i = 0; i < tokens.size(); ++i)
    std::copy_n(rows.data() + tokens[i] * 12, 12, expected.data() + i * 12);
  Stream stream;
  Cuda cuda(stream);
  DeviceBuffer<float> d_rows(rows);
  DeviceBuffer<std::int32_t> length(std::vector<std::int32_t>{20}), kept(tokens), count(std::vector<std::int32_t>{6});
  const kv::DenseKV<float> cache{{d_rows.data(), 1, 1, 20, 12}, {d_rows.data(), {1, 1, 20, 8}, {240, 240, 12, 1}},
                                 length.view(1)};
  compact(cuda, cache, kv::KeptView{{kept.data(), 1, 6}, count.view(1)});
  cuda.check();
  REQUIRE(length.download()[0] == 6);
  REQUIRE(d_rows.download() == expected);
}

TEST_CASE("more rows than a tile, and rows wider than most") {
  Cpu cpu;
  Stream stream;
  Cuda cuda(stream);
  conformance::Dense<float> narrow({{80}}, 2, 4300, 0);  // value rows of more units than a tile has
  Twin<conformance::Dense<float>> twin(narrow);
  KeptLists kept(draw_lists({80}, 0.7, 2, true, 4), 80);
  compact(cpu, narrow.cache(), kept.host());
  compact(cuda, twin.cache(), kept.device());
  cuda.check();
  REQUIRE(twin.equals(narrow));
}

TEST_CASE("an identity moves nothing, nothing kept is legal, and entries go along") {
  Cpu cpu;
  Stream stream;
  Cuda cuda(stream);
  conformance::Ragged<float> fixture({{20, 9}}, 4, 4, 0);
  Twin<conformance::Ragged<float>> twin(fixture);
  for (const double share : {2.0, -1.0}) {
    KeptLists kept(draw_lists({20, 9}, share, 0, false, 1), 20);
    compact(cpu, fixture.cache(), kept.host());
    compact(cuda, twin.cache(), kept.device());
    cuda.check();
    REQUIRE(twin.equals(fixture));
  }
  std::vector<std::int32_t> positions;
  for (int i = 0; i < 2 * 9000; ++i) positions.push_back(3 * i);
  DeviceBuffer<std::int32_t> d_positions(positions);
  KeptLists kept(draw_lists({9000, 8000}, 0.9, 100, false, 2), 9000);
  compact(cpu, View<std::int32_t, 2>(positions.data(), 2, 9000), kept.host());
  compact(cuda, d_positions.view(2, 9000), kept.device());
  cuda.check();
  REQUIRE(d_positions.download() == positions);
}

TEST_CASE("compact refuses lists, lengths and tables that are wrong, and moves nothing") {
  Stream stream;
  Cuda cuda(stream);
  using Lists = std::vector<std::vector<std::int32_t>>;
  conformance::Dense<float> dense({{10, 10}}, 4, 4, 0);
  Twin<conformance::Dense<float>> twin(dense);
  const auto refused = [&](const Lists& lists, const char* text) {
    KeptLists kept(lists, 12);
    compact(cuda, twin.cache(), kept.device());
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains(text));
    REQUIRE(twin.equals(dense));
  };
  refused({{1, 5, 4}, {0, 1, 2}}, "strictly ascending tokens of every head, got a fault at layer 0, head 0, index 2");
  refused({{1, 2, 3}, {0, 0, 2}}, "head 1, index 1");
  refused({{1, 2, 10}, {0, 1, 2}}, "head 0, index 2");
  refused({{-1, 2, 9}, {0, 1, 2}}, "head 0, index 0");
  refused({{1, 2, 3}, {0, 1}}, "equally many tokens in every head");
  refused({{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}, "head 0, index 11");
  KeptLists good({{1, 3}, {0, 2}}, 2);
  for (const std::int32_t length : {-1, 81}) {
    twin.set_table(0, {length});
    compact(cuda, twin.cache(), good.device());
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("lengths from 0 to the capacity"));
  }
  twin.set_table(0, {10});
  REQUIRE_THROWS_WITH(compact(cuda, twin.cache(), good.device(), 1), catch_compat::contains("sequence"));
  KeptLists one({{1, 3}}, 2);
  REQUIRE_THROWS_WITH(compact(cuda, twin.cache(), one.device()), catch_compat::contains("counts"));
  REQUIRE(twin.equals(dense));
}

TEST_CASE("compact refuses shared pages, bad tables and too little room for freed pages") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  using Fixture = conformance::Paged<float>;
  Fixture fixture({{30, 30}, {21, 21}, {0, 0}}, 4, 4, 1);  // pages of 7
  fixture.table.share(0, 2, 1);
  Twin<Fixture> twin(fixture);
  DeviceBuffer<std::int32_t> freed(std::vector<std::int32_t>(8, -1));
  KeptLists kept({{1, 3}, {0, 2}}, 2);
  const auto refused = [&](index_t s, index_t room, const char* text) {
    compact(cuda, twin.cache(), kept.device(), s, freed.view(room), nullptr);
    REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains(text));
    REQUIRE(freed.download() == std::vector<std::int32_t>(8, -1));
  };
  refused(0, 8, "pages that stand in the table once");
  compact_rows(cuda, twin.cache(), kept.device(), 0);
  REQUIRE_THROWS_WITH(cuda.check(), catch_compat::contains("pages that stand in the table once"));
  refused(1, 1, "room for the pages that become empty");
  REQUIRE(twin.equals(fixture));
  const auto indices = cuda_test::values_of(fixture.cache().indices);
  const auto damaged = [&](int table, std::vector<std::int32_t> values, std::size_t at, std::int32_t value) {
    const auto before = values;
    values[at] = value;
    twin.set_table(table, values);
    refused(1, 8, "a consistent table of pages that exist");
    twin.set_table(table, before);
  };
  damaged(1, indices, 2, 400);
  damaged(1, indices, 2, -1);
  damaged(0, cuda_test::values_of(fixture.cache().indptr), 1, 99);
  damaged(0, cuda_test::values_of(fixture.cache().indptr), 0, 1);
  damaged(2, cuda_test::values_of(fixture.cache().last_page_len), 1, 8);
  REQUIRE(twin.equals(fixture));
  compact_rows(cpu, fixture.cache(), kept.host(), 1);
  compact_rows(cuda, twin.cache(), kept.device(), 1);
  cuda.check();
  REQUIRE(twin.equals(fixture));
}

TEST_CASE("a captured compaction") {
  Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  conformance::Dense<decant::bf16> fixture({{40, 40}}, 16, 16, 1);
  Twin<conformance::Dense<decant::bf16>> twin(fixture);
  KeptLists kept(draw_lists({40, 40}, 0.6, 3, true, 5), 40);
  const auto run = [&] { compact(cuda, twin.cache(), kept.device()); };
  cuda.workspace().reserve(4096);
  cuda_test::Graph graph(stream, run);
  graph.launch(stream);
  cuda.check();
  compact(cpu, fixture.cache(), kept.host());
  REQUIRE(twin.equals(fixture));
}

}  // namespace
