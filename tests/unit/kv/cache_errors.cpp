// What the cache views, write, append, gather and compact refuse: each kind of damage by the name of its argument, and
// nothing changed by a refused call.
#include <functional>
#include <limits>

#include "conformance/cache_fixtures.hpp"

namespace {

using namespace conformance;
using catch_compat::contains;
using decant::ArgumentError;
using decant::bf16;
namespace kv = decant::kv;

const Lengths lengths{{33, 33}, {0, 0}, {7, 7}};

template <class C>
void refused(const C& cache, const char* text) {
  REQUIRE_THROWS_WITH(validate(cache), contains(text));
  REQUIRE_THROWS_AS(validate(cache), ArgumentError);
}

TEST_CASE("validate names what is wrong with a dense cache") {
  Dense<float> f(lengths, 6, 3, 0);
  const auto good = f.cache();
  auto c = good;
  c.values = c.values.slice(0, 0, 2);
  refused(c, "decant::kv::DenseKV: argument `values`: expected 3, got 2");
  c = good;
  c.values = c.values.slice(1, 0, 1);
  refused(c, "argument `values`: expected 2, got 1");
  c = good;
  c.values = c.values.slice(2, 0, 79);
  refused(c, "argument `values`: expected 80, got 79");
  c = good;
  c.keys = View<float, 4>(f.keys.data(), {3, 2, 80, 6}, {960, 480, 1, 80});
  refused(c, "argument `keys`: expected stride 1 along the head dim, got 80");
  c = good;
  c.keys = c.keys.slice(3, 0, 0);
  refused(c, "argument `keys`: expected a head dim of at least 1, got 0");
  c = good;
  c.values = View<float, 4>(nullptr, 3, 2, 80, 3);
  refused(c, "argument `values`: expected data, got a null pointer");
  c = good;
  c.lengths = c.lengths.slice(0, 0, 2);
  refused(c, "argument `lengths`: expected 3, got 2");
  f.lengths[2] = 81;
  refused(good, "argument `lengths`: expected at most the capacity of 80 tokens, got 81");
  f.lengths[2] = -1;
  refused(good, "argument `lengths`: expected at most the capacity of 80 tokens, got -1");
}

TEST_CASE("validate names what is wrong with a paged cache") {
  Paged<bf16> f(lengths, 6, 3, 1);  // pages of 7: 5, 0 and 1 of them
  const auto good = f.cache();
  REQUIRE(good.indptr[3] == 6);
  auto c = good;
  c.indptr = c.indptr.slice(0, 0, 3);
  refused(c, "decant::kv::PagedKV: argument `indptr`: expected 4, got 3");
  c = good;
  c.indices = c.indices.slice(0, 0, 5);
  refused(c, "argument `indices`: expected at least indptr's last value, 6, got 5");
  c = good;
  c.values = c.values.slice(2, 0, 6);
  refused(c, "argument `values`: expected 7, got 6");
  const auto damaged = [&](std::int32_t& at, std::int32_t value, const char* text) {
    const std::int32_t before = at;
    at = value;
    refused(good, text);
    at = before;
    REQUIRE_NOTHROW(validate(good));
  };
  damaged(good.indptr[0], 1, "argument `indptr`: expected 0 at its beginning, got 1");
  damaged(good.indptr[2], 4, "argument `indptr`: expected values that never decrease, got -1");
  damaged(good.indptr[3], std::numeric_limits<std::int32_t>::max(),
          "argument `indices`: expected at least indptr's last");
  damaged(good.indptr[2], std::numeric_limits<std::int32_t>::min(), "argument `indptr`: expected values that never");
  damaged(good.indices[5], 63, "argument `indices`: expected page ids below 63, got 63");
  damaged(good.indices[0], -1, "argument `indices`: expected page ids below 63, got -1");
  damaged(good.last_page_len[0], 0, "argument `last_page_len`: expected 1 to the page size of 7, got 0");
  damaged(good.last_page_len[2], 8, "argument `last_page_len`: expected 1 to the page size of 7, got 8");
  f.table.last_page_len()[1] = 1000;  // of an empty sequence: not read
  REQUIRE_NOTHROW(validate(good));
  REQUIRE(good.length(1, 0) == 0);
}

TEST_CASE("validate names what is wrong with a ragged cache") {
  Ragged<float> f(lengths, 6, 3, 1);
  const auto good = f.cache();
  auto c = good;
  c.heads = 0;
  refused(c, "decant::kv::RaggedKV: argument `heads`: expected at least 1, got 0");
  c = good;
  c.heads = 4;
  refused(c, "argument `lengths`: expected a multiple of 4 heads, got 6");
  c = good;
  c.offsets = c.offsets.slice(0, 0, 6);
  refused(c, "argument `offsets`: expected 7, got 6");
  c = good;
  c.values = c.values.slice(0, 0, 5);
  refused(c, "argument `values`: expected");
  const auto damaged = [&](auto& at, int value, const char* text) {
    const auto before = at;
    at = value;
    refused(good, text);
    at = before;
  };
  damaged(f.offsets[0], -1, "argument `offsets`: expected values of at least 0, got -1");
  damaged(f.offsets[1], 2, "argument `offsets`: expected values that never decrease, got 2");
  damaged(f.offsets[6], 100000, "argument `offsets`: expected rows below");
  damaged(f.lengths[0], 44, "argument `lengths`: expected at most the segment's 43 rows, got 44");
  damaged(f.lengths[5], -1, "argument `lengths`: expected at most the segment's 17 rows, got -1");
}

/// The fixture's pools and its view's tables: a refused call must change none of them.
template <class Fixture>
void unchanged_by(Fixture& f, const char* text, const std::function<void()>& call) {
  const Snapshot before = snapshot(f);
  const Model keys = model_of(f.cache(), 0), values = model_of(f.cache(), 1);
  REQUIRE_THROWS_WITH(call(), contains(text));
  REQUIRE(snapshot(f) == before);
  require_models(f.cache(), keys, values);
}

template <class Fixture>
void kept_lists_are_checked(int variant) {
  Fixture f(lengths, 6, 3, variant);
  Cpu cpu;
  std::vector<float> k(2 * 33 * 6, -1.0f), v(2 * 33 * 3, -1.0f);
  const auto compact_it = [&](kv::KeptView kept, index_t s) {
    if constexpr (std::is_same_v<Fixture, Paged<bf16>>) {
      std::vector<std::int32_t> freed(400);
      compact(cpu, f.cache(), kept, s, freed);
    } else {
      compact(cpu, f.cache(), kept, s);
    }
  };
  const auto both = [&](const char* text, kv::KeptView kept, index_t s) {
    unchanged_by(f, text, [&] { compact_it(kept, s); });
    unchanged_by(f, text, [&] {
      gather(cpu, f.cache(), s, kept, View<float, 3>(k.data(), 2, 33, 6), View<float, 3>(v.data(), 2, 33, 3));
    });
    REQUIRE(k == std::vector<float>(k.size(), -1.0f));
  };
  std::vector<std::int32_t> indices{0, 1, 2, 3, 4, 5, 6, 8};
  std::vector<std::int32_t> counts{4, 4};
  const kv::KeptView kept{View<std::int32_t, 2>(indices.data(), 2, 4), counts};
  both("decant::kv::KeptView: argument `sequence`: expected an index below 3, got 3", kept, 3);
  both("argument `sequence`: expected an index below 3, got -1", kept, -1);
  both("argument `indices`: expected strictly ascending tokens below 7, got 8", kept, 2);
  indices[7] = 6;
  both("argument `indices`: expected strictly ascending tokens below 33, got 6", kept, 0);
  indices[7] = 5;
  both("argument `indices`: expected strictly ascending tokens below 33, got 5", kept, 0);
  indices[4] = -1;
  both("argument `indices`: expected strictly ascending tokens below 33, got -1", kept, 0);
  indices = {0, 1, 2, 3, 4, 5, 6, 8};
  counts[1] = 5;  // more than the list has room for
  both("argument `counts`: expected 0 to the 33 tokens of head 1, with room for them in indices, got 5", kept, 0);
  counts[1] = -1;
  both("argument `counts`: expected 0 to the 33 tokens of head 1", kept, 0);
  counts[1] = 4;
  both("argument `counts`: expected 0 to the 0 tokens of head 0", kept, 1);
  const kv::KeptView one_head{kept.indices.slice(0, 0, 1), kept.counts.slice(0, 0, 1)};
  both("argument `counts`: expected 2, got 1", one_head, 0);
  if (!Fixture::ragged) {
    counts[1] = 3;
    unchanged_by(f,
                 "decant::kv::compact: argument `kept`: expected equally many tokens in every head (kv::RaggedKV "
                 "holds different numbers), got 4 in head 0 and 3 in head 1",
                 [&] { compact_it(kept, 0); });
  }
}

TEST_CASE("kept lists are checked before a row moves") {
  kept_lists_are_checked<Dense<float>>(1);
  kept_lists_are_checked<Ragged<bf16>>(0);
  kept_lists_are_checked<Paged<bf16>>(2);
}

TEST_CASE("compact refuses shared pages and too little room for freed ones") {
  Paged<float> f({{33, 33}, {0, 0}, {7, 7}}, 6, 3, 1);
  Cpu cpu;
  auto kept = random_kept({33, 33}, 1, 4, true);
  const kv::KeptView view = kept;
  view.counts[0] = view.counts[1] = 1;  // frees 4 of 5 pages
  std::vector<std::int32_t> three(3, -1), four(4, -1);
  unchanged_by(f, "decant::kv::compact: argument `freed`: expected room for 4 pages, got 3",
               [&] { compact(cpu, f.cache(), view, 0, three); });
  f.table.share(0, 1, 2);
  unchanged_by(f,
               "argument `cache`: expected pages that stand in the table once (copy a shared prefix first), got page",
               [&] { compact(cpu, f.cache(), view, 0, four); });
  unchanged_by(f, "argument `cache`: expected pages that stand in the table once",
               [&] { compact_rows(cpu, f.cache(), view, 0); });
  REQUIRE(four[0] == -1);
  REQUIRE(cpu.workspace().used() == 0);
  auto other = random_kept({7, 7}, 1, 4, true);
  REQUIRE_NOTHROW(compact(cpu, f.cache(), other, 2, four));  // another sequence's sharing does not matter
}

template <class Fixture>
void writes_are_checked(int variant) {
  Fixture f(lengths, 6, 3, variant);
  Cpu cpu;
  const std::vector<float> k = new_rows(0, 4, 2, 6), v = new_rows(1, 4, 2, 3);
  const View<const float, 3> keys(k.data(), 4, 2, 6), values(v.data(), 4, 2, 3);
  const auto refuse = [&](const char* text, index_t s, index_t first, View<const float, 3> a, View<const float, 3> b) {
    unchanged_by(f, text, [&] { write(cpu, f.cache(), s, first, a, b); });
  };
  refuse(
      "decant::kv::write: argument `first`: expected a position with 4 tokens from it on below the length of 33, got "
      "30",
      0, 30, keys, values);
  refuse("argument `first`: expected", 0, -1, keys, values);
  refuse("argument `first`: expected", 1, 0, keys, values);
  refuse("argument `sequence`: expected an index below 3, got 3", 3, 0, keys, values);
  refuse("argument `keys`: expected 2, got 1", 0, 0, keys.slice(1, 0, 1), values);
  refuse("argument `keys`: expected 6, got 5", 0, 0, keys.slice(2, 0, 5), values);
  refuse("argument `values`: expected 4, got 3", 0, 0, keys, values.slice(0, 0, 3));
  refuse("argument `values`: expected 3, got 2", 0, 0, keys, values.slice(2, 0, 2));
  refuse("argument `values`: expected 2, got 1", 0, 0, keys, values.slice(1, 0, 1));
  refuse("argument `keys`: expected stride 1 along the head dim, got 2", 0, 0,
         View<const float, 3>(k.data(), {4, 2, 6}, {6, 3, 2}), values);
}

TEST_CASE("write refuses what does not fit") {
  writes_are_checked<Dense<bf16>>(0);
  writes_are_checked<Paged<bf16>>(5);
  writes_are_checked<Ragged<float>>(1);
}

TEST_CASE("append refuses more than there is room for") {
  Cpu cpu;
  const std::vector<float> k = new_rows(0, 60, 2, 6), v = new_rows(1, 60, 2, 3);
  const View<const float, 3> keys(k.data(), 60, 2, 6), values(v.data(), 60, 2, 3);
  Dense<float> dense(lengths, 6, 3, 0);
  unchanged_by(dense, "decant::kv::append: argument `keys`: expected at most the 47 tokens that are free, got 60",
               [&] { append(cpu, dense.cache(), 0, keys, values); });
  Ragged<float> ragged(lengths, 6, 3, 0);
  unchanged_by(ragged, "argument `keys`: expected at most the 10 tokens that head 0 has room for, got 60",
               [&] { append(cpu, ragged.cache(), 0, keys, values); });
  std::vector<float> pool(3 * 2 * 16 * 9, -1.0f);
  kv::PageTable table(3, 16, 2);
  const View<float, 4> key_pool(pool.data(), 3, 2, 16, 6), value_pool(pool.data() + 3 * 2 * 16 * 6, 3, 2, 16, 3);
  REQUIRE_THROWS_WITH(
      append(cpu, table, key_pool, value_pool, 0, keys, values),
      "decant::kv::PageTable::extend: argument `tokens`: expected at most the 48 that free pages hold, got 60");
  REQUIRE_THROWS_AS(append(cpu, table, key_pool, value_pool, 2, keys, values), ArgumentError);
  REQUIRE(table.length(0) == 0);
  REQUIRE(table.free_pages() == 3);
  REQUIRE(pool == std::vector<float>(pool.size(), -1.0f));
}

TEST_CASE("gather refuses targets that do not fit") {
  Dense<float> f(lengths, 6, 3, 0), same(lengths, 6, 3, 0), wider(lengths, 7, 3, 0), fewer({{5}}, 6, 3, 0);
  Paged<bf16> paged(lengths, 6, 3, 0);
  Cpu cpu;
  auto kept = random_kept({33, 33}, 1, 1, true);
  const auto into = [&](auto& target, index_t s) { gather(cpu, f.cache(), 0, kept, target.cache(), s); };
  unchanged_by(wider, "decant::kv::gather: argument `out`: expected 6, got 7", [&] { into(wider, 0); });
  unchanged_by(fewer, "argument `out`: expected 2, got 1", [&] { into(fewer, 0); });
  unchanged_by(same, "argument `out_sequence`: expected an index below 3, got 3", [&] { into(same, 3); });
  unchanged_by(paged, "argument `out`: expected pages for just 33 tokens, got 7", [&] { into(paged, 2); });
  REQUIRE_NOTHROW(into(paged, 0));
  same.capacity = 20;
  same.lengths = {0, 0, 0};
  unchanged_by(same, "argument `out`: expected room for 33 tokens, got 20", [&] { into(same, 1); });
}

TEST_CASE("entries that go along with tokens are compacted") {
  Cpu cpu;
  std::vector<std::int32_t> positions{10, 11, 12, 13, 20, 21, 22, 23};
  std::vector<std::int32_t> indices{1, 3, 0, 0, 2, 0};
  std::vector<std::int32_t> counts{2, 3};
  const kv::KeptView kept{View<std::int32_t, 2>(indices.data(), 2, 3), counts};
  const View<std::int32_t, 2> entries(positions.data(), 2, 4);
  const auto before = positions;
  REQUIRE_THROWS_WITH(compact(cpu, entries, kept),
                      "decant::kv::compact: argument `kept`: expected strictly ascending tokens below 4, got 0");
  REQUIRE(positions == before);
  indices = {1, 3, 0, 0, 2, 3};
  REQUIRE_THROWS_WITH(compact(cpu, View<std::int32_t, 2>(positions.data(), {2, 4}, {0, 1}), kept),
                      contains("stride 0"));
  compact(cpu, entries, kept);
  REQUIRE(positions == std::vector<std::int32_t>{11, 13, 12, 13, 20, 22, 23, 23});
}

}  // namespace
