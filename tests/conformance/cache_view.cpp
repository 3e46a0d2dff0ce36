// The cache-view suite on every cache.
#include "conformance/cache_view.hpp"

#include "conformance/cache_fixtures.hpp"

namespace {

using namespace conformance;
using decant::bf16;
using decant::fp16;
using decant::fp8_e4m3;
namespace kv = decant::kv;

TEMPLATE_TEST_CASE("caches hold what was stored, in runs", "", Dense<float>, Dense<fp8_e4m3>, Paged<bf16>, Ragged<fp16>,
                   Int8Fixture) {
  check_reading<TestType>();
}

TEST_CASE("the minimal cache view is enough to read and to gather") {
  const std::vector<index_t> lengths{5, 0, 9};
  MinimalFixture fixture(lengths, 6, 3);
  require_models(fixture.cache(), model_of({lengths}, 0, 6), model_of({lengths}, 1, 3));
  auto kept = random_kept(lengths, 3, 4, false);
  Cpu cpu;
  std::vector<float> k(3 * 10 * 6), v(3 * 10 * 3);
  gather(cpu, fixture.cache(), 0, kept, View<float, 3>(k.data(), 3, 10, 6), View<float, 3>(v.data(), 3, 10, 3));
  for (index_t h = 0; h < 3; ++h) {
    for (index_t i = 0; i < kept.count(h); ++i) {
      REQUIRE(k[static_cast<std::size_t>((h * 10 + i) * 6 + 5)] == row_value(0, 0, h, kept.token(h, i), 5));
      REQUIRE(v[static_cast<std::size_t>((h * 10 + i) * 3 + 2)] == row_value(1, 0, h, kept.token(h, i), 2));
    }
  }
}

TEMPLATE_TEST_CASE("gather copies kept rows out of any cache", "", Dense<bf16>, Paged<float>, Ragged<fp16>,
                   Int8Fixture) {
  check_gather<TestType>();
}

TEMPLATE_TEST_CASE("compact keeps the kept rows in order and touches nothing else", "", Dense<bf16>, Ragged<float>) {
  check_compaction<TestType>(
      [](Cpu& cpu, auto& fixture, kv::Kept& kept, index_t s) { compact(cpu, fixture.cache(), kept, s); });
}

TEST_CASE("compact keeps the kept rows of a page table") {
  check_compaction<Paged<bf16>>([](Cpu& cpu, auto& fixture, kv::Kept& kept, index_t s) {
    const auto cache = fixture.cache();
    const index_t total = cache.indptr[cache.sequences()];
    std::vector<std::int32_t> before, after, freed(400, -1);
    for (index_t i = 0; i < total; ++i) before.push_back(cache.indices[i]);
    const index_t count = compact(cpu, cache, kept, s, freed);
    for (index_t i = 0; i < cache.indptr[cache.sequences()]; ++i) after.push_back(cache.indices[i]);
    after.insert(after.end(), freed.begin(), freed.begin() + count);  // no page is lost, none appears
    std::sort(before.begin(), before.end());
    std::sort(after.begin(), after.end());
    REQUIRE(before == after);
    REQUIRE(freed[static_cast<std::size_t>(count)] == -1);
  });
}

TEST_CASE("compact over a PageTable gives the pages back") {
  check_compaction<Paged<float>>([](Cpu& cpu, auto& fixture, kv::Kept& kept, index_t s) {
    const index_t free = fixture.table.free_pages(),
                  used = (fixture.table.length(s) + fixture.page_size - 1) / fixture.page_size;
    compact(cpu, fixture.table, fixture.cache().keys, fixture.cache().values, kept, s);
    const index_t still = (kept.count(0) + fixture.page_size - 1) / fixture.page_size;
    REQUIRE(fixture.table.free_pages() == free + used - still);
  });
}

TEMPLATE_TEST_CASE("write and append store rows and touch nothing else", "", Dense<float>, Dense<bf16>, Ragged<fp16>) {
  check_writing<TestType>([](Cpu& cpu, auto& fixture, index_t s, auto keys, auto values) {
    append(cpu, fixture.cache(), s, keys, values);
  });
}

TEST_CASE("write and append store rows in pages") {
  check_writing<Paged<bf16>>([](Cpu& cpu, auto& fixture, index_t s, auto keys, auto values) {
    append(cpu, fixture.table, fixture.cache().keys, fixture.cache().values, s, keys, values);
  });
}

}  // namespace
