// PageTable against a model of plain lists; and that hot calls on caches allocate nothing and do not depend on threads.
#include <map>
#include <new>

#include "conformance/cache_fixtures.hpp"
#include "threads.hpp"

namespace {

using namespace conformance;
using catch_compat::contains;
using decant::ArgumentError;
using decant::bf16;
namespace kv = decant::kv;

/// Pages of each sequence, as the table tells them.
std::vector<std::vector<std::int32_t>> lists(kv::PageTable& table) {
  std::vector<std::vector<std::int32_t>> all;
  for (index_t s = 0; s < table.sequences(); ++s) {
    all.emplace_back();
    for (index_t i = table.indptr()[s]; i < table.indptr()[s + 1]; ++i) all.back().push_back(table.indices()[i]);
  }
  return all;
}

TEST_CASE("a page table never loses, doubles or confuses pages") {
  // 20,000 random operations; a model holds the lengths and which prefix a sequence has in common with another.
  const index_t pages = 40, page_size = 4, sequences = 5;
  kv::PageTable table(pages, page_size, sequences);
  std::vector<index_t> lengths(sequences, 0);
  const decant::Philox rng{6};
  int refused = 0;
  for (std::uint32_t step = 0; step < 20000; ++step) {
    const auto r = rng(step);
    const index_t s = r.word[0] % sequences, other = r.word[1] % sequences;
    const auto before = lists(table);
    const index_t free_before = table.free_pages();
    bool threw = false;
    try {
      switch (r.word[2] % 4) {
        case 0:
        case 1: {
          const index_t tokens = r.word[3] % 30;
          table.extend(s, tokens);
          lengths[static_cast<std::size_t>(s)] += tokens;
          break;
        }
        case 2: {
          const index_t tokens = r.word[3] % 40;
          table.truncate(s, tokens);
          lengths[static_cast<std::size_t>(s)] = tokens;
          break;
        }
        default: {
          const index_t count = r.word[3] % 5;
          table.share(other, s, count);
          lengths[static_cast<std::size_t>(s)] = count * page_size;
          for (index_t i = 0; i < count; ++i) {
            REQUIRE(lists(table)[static_cast<std::size_t>(s)][static_cast<std::size_t>(i)] ==
                    before[static_cast<std::size_t>(other)][static_cast<std::size_t>(i)]);
          }
        }
      }
    } catch (const ArgumentError&) {
      threw = true;
      ++refused;
    }
    const auto now = lists(table);
    if (threw) {
      REQUIRE(now == before);
      REQUIRE(table.free_pages() == free_before);
    }
    std::map<std::int32_t, index_t> uses;
    for (index_t q = 0; q < sequences; ++q) {
      const auto at = static_cast<std::size_t>(q);
      REQUIRE(table.length(q) == lengths[at]);
      REQUIRE(static_cast<index_t>(now[at].size()) == (lengths[at] + page_size - 1) / page_size);
      for (const std::int32_t p : now[at]) ++uses[p];
      if (q != s) REQUIRE(now[at] == before[at]);
      // what stays of a sequence keeps its pages
      for (std::size_t i = 0; i < std::min(now[at].size(), before[at].size()); ++i)
        REQUIRE(now[at][i] == before[at][i]);
    }
    for (const auto& [page, count] : uses) REQUIRE(table.references(page) == count);
    REQUIRE(table.free_pages() == pages - static_cast<index_t>(uses.size()));
  }
  REQUIRE(refused > 1000);
  for (index_t s = 0; s < sequences; ++s) table.truncate(s, 0);
  REQUIRE(table.free_pages() == pages);
}

TEST_CASE("a page table says what it refuses") {
  kv::PageTable table(4, 8, 3);
  REQUIRE_THROWS_WITH(table.extend(3, 1),
                      "decant::kv::PageTable::extend: argument `sequence`: expected an index below 3, got 3");
  REQUIRE_THROWS_WITH(
      table.extend(0, 33),
      "decant::kv::PageTable::extend: argument `tokens`: expected at most the 32 that free pages hold, got 33");
  table.extend(0, 20);
  REQUIRE_THROWS_WITH(table.extend(0, 13), contains("expected at most the 12 that free pages hold, got 13"));
  REQUIRE_THROWS_WITH(table.truncate(0, 21), contains("argument `tokens`: expected 0 to the length of 20, got 21"));
  REQUIRE_THROWS_WITH(table.share(0, 1, 3), contains("argument `count`: expected 0 to the 2 full pages, got 3"));
  REQUIRE_THROWS_WITH(table.share(1, 0, 0), contains("argument `to`: expected an empty sequence, got 20"));
  table.share(0, 1, 2);
  table.truncate(1, 12);  // its last page is now partly used, and sequence 0 reads it
  REQUIRE_THROWS_WITH(table.extend(1, 1),
                      contains("argument `sequence`: expected a last page that no other sequence shares"));
  REQUIRE_THROWS_WITH(kv::PageTable(4, 0, 1), contains("argument `page_size`"));
  REQUIRE_THROWS_WITH(kv::PageTable(-1, 1, 1), contains("argument `pages`"));
  std::vector<float> pool(4 * 8);
  REQUIRE_THROWS_WITH(table.attach(View<float, 4>(pool.data(), 4, 2, 4, 1), View<float, 4>(pool.data(), 4, 2, 4, 1)),
                      "decant::kv::PageTable::attach: argument `keys`: expected 8, got 4");
}

/// Gives memory and counts how often.
decant::Allocator counting(int& allocations) {
  return {[](void* state, std::size_t bytes) {
            ++*static_cast<int*>(state);
            return ::operator new (bytes, std::align_val_t{64});
          },
          [](void*, void* memory, std::size_t) { ::operator delete (memory, std::align_val_t{64}); }, &allocations};
}

TEST_CASE("operations on caches do not depend on threads, and allocate nothing the second time", "[threads]") {
  const Lengths lengths{{70, 70, 70}};
  Paged<bf16> reference(lengths, 6, 3, 2);
  for (const int threads : {1, 2, 5}) {
    int allocations = 0;
    Cpu cpu(reversed_threads(threads), counting(allocations));
    const std::vector<float> k = new_rows(0, 9, 3, 6), v = new_rows(1, 9, 3, 3);
    const View<const float, 3> keys(k.data(), 9, 3, 6), values(v.data(), 9, 3, 3);
    int after_first = 0;
    for (int call = 0; call < 2; ++call) {
      Paged<bf16> f(lengths, 6, 3, 2);
      Dense<float> out({{0, 0, 0}}, 6, 3, 0);
      auto kept = random_kept({70, 70, 70}, 5, 4, true);
      write(cpu, f.cache(), 0, 3, keys, values);
      append(cpu, f.table, f.cache().keys, f.cache().values, 0, keys, values);
      gather(cpu, f.cache(), 0, kept, out.cache());
      compact(cpu, f.table, f.cache().keys, f.cache().values, kept);
      REQUIRE(model_of(out.cache(), 0) == model_of(f.cache(), 0));
      REQUIRE(cpu.workspace().used() == 0);
      if (call == 0) after_first = allocations;
      if (threads == 1) reference = f;
      else REQUIRE(snapshot(f) == snapshot(reference));
    }
    REQUIRE(after_first > 0);
    REQUIRE(allocations == after_first);
  }
}

TEST_CASE("layers that share a page table are compacted one by one, and the table cut once") {
  const Lengths lengths{{20, 20}, {33, 33}};
  Paged<float> first(lengths, 6, 3, 2), second(lengths, 6, 3, 2);
  Cpu cpu;
  auto kept_first = random_kept({33, 33}, 1, 4, true), kept_second = random_kept({33, 33}, 2, 4, true);
  for (index_t h = 0; h < 2; ++h) {
    const auto common = static_cast<std::int32_t>(std::min(kept_first.count(h), kept_second.count(h)));
    kept_first.view().counts[h] = kept_second.view().counts[h] = common;
  }
  Model keys_first = model_of(lengths, 0, 6), keys_second = keys_first, values = model_of(lengths, 1, 3);
  auto other_layer = [&] {  // the second layer's pools under the first's table
    return first.table.attach(second.pool(second.keys, 6), second.pool(second.values, 3));
  };
  fill_rows(other_layer());
  compact_rows(cpu, first.cache(), kept_first, 1);
  compact_rows(cpu, other_layer(), kept_second, 1);
  first.table.truncate(1, kept_first.count(0));
  keep_only(keys_first, 1, kept_first);
  keep_only(keys_second, 1, kept_second);
  REQUIRE(model_of(first.cache(), 0) == keys_first);
  REQUIRE(model_of(other_layer(), 0) == keys_second);
}

}  // namespace
