// Shared prefixes found in a page table: every request keeps exactly its rows, each shared row is counted once, and
// the result is that of dense attention over the same table.

#include "catch_compat.hpp"
#include "decant/kv/page_table.hpp"
#include "forest.hpp"

#include <set>

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

/// A pool and a table in which sequences begin with pages of earlier ones, also with pages that are not full.
struct SharedPages {
  index_t heads = 2, dim = 16, page_size;
  std::vector<float> keys, values;
  std::vector<std::int32_t> indptr{0}, indices, last;

  /// sequences: whose first `tokens` tokens they begin with (-1: nobody's), and how many tokens of their own follow.
  struct Begin {
    index_t from, tokens, more;
  };
  SharedPages(index_t page_size_, const std::vector<Begin>& sequences) : page_size(page_size_) {
    std::int32_t fresh = 0;
    for (const Begin& b : sequences) {
      const auto start = static_cast<index_t>(indices.size());
      // A page in the middle of which sharing ends belongs to both, as long as the new sequence adds nothing to it.
      const index_t shared = b.more == 0 ? (b.tokens + page_size - 1) / page_size : b.tokens / page_size;
      for (index_t i = 0; i < shared; ++i) indices.push_back(indices[at(indptr[at(b.from)] + i)]);
      const index_t length = (b.more == 0 ? b.tokens : shared * page_size) + b.more;
      const index_t used = (length + page_size - 1) / page_size;
      while (static_cast<index_t>(indices.size()) - start < used) indices.push_back(fresh++);
      indptr.push_back(static_cast<std::int32_t>(indices.size()));
      last.push_back(used == 0 ? -1 : static_cast<std::int32_t>(length - (used - 1) * page_size));
    }
    keys = normal(fresh * heads * page_size * dim, 7);
    values = normal(fresh * heads * page_size * dim, 8);
    // Shuffled ids, so that nothing is contiguous by luck.
    std::vector<std::int32_t> order(at(fresh));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(9));
    for (std::int32_t& i : indices) i = order[at(i)];
  }
  kv::PagedKV<const float> view() const {
    const index_t pages = static_cast<index_t>(keys.size()) / (heads * page_size * dim);
    return {View<const float, 4>(keys.data(), pages, heads, page_size, dim),
            View<const float, 4>(values.data(), pages, heads, page_size, dim), View<const std::int32_t, 1>(indptr),
            View<const std::int32_t, 1>(indices), View<const std::int32_t, 1>(last)};
  }
  Problem<float> flat(index_t group, std::vector<index_t> queries = {}) const {
    const kv::PagedKV<const float> cache = view();
    std::vector<index_t> lengths;
    for (index_t s = 0; s < cache.sequences(); ++s) lengths.push_back(cache.length(s, 0));
    Problem<float> p(heads, group, dim, dim, lengths, std::move(queries));
    for (index_t s = 0; s < cache.sequences(); ++s)
      for (index_t h = 0; h < heads; ++h)
        for (index_t t = 0; t < lengths[at(s)]; ++t) {
          std::copy_n(cache.key(s, h, t), dim, p.key(s, h, t));
          std::copy_n(cache.value(s, h, t), dim, p.value(s, h, t));
        }
    return p;
  }
};

SharedPages random_pages(unsigned seed, index_t page_size) {
  std::mt19937 random(seed);
  const auto draw = [&](index_t n) { return static_cast<index_t>(random() % static_cast<unsigned>(n)); };
  std::vector<SharedPages::Begin> sequences;
  std::vector<index_t> lengths;
  const index_t count = 1 + draw(20);
  for (index_t s = 0; s < count; ++s) {
    const index_t from = draw(s + 1) - 1;
    const index_t tokens = from < 0 || lengths[at(from)] == 0 ? 0 : draw(lengths[at(from)] + 1);
    const index_t more = draw(3) == 0 ? 0 : draw(70);
    sequences.push_back({tokens == 0 ? -1 : from, tokens, more});
    lengths.push_back(more == 0 ? tokens : tokens / page_size * page_size + more);
  }
  return {page_size, sequences};
}

/// What each request reads along its path are the rows that its sequence has, one by one.
void same_rows(const CascadePlan& p, const kv::PagedKV<const float>& cache) {
  REQUIRE(p.requests() == cache.sequences());
  for (index_t r = 0; r < p.requests(); ++r) {
    std::vector<Segment> path;
    for (index_t s = p.leaves()[r]; s >= 0; s = p.segments()[s].parent) path.insert(path.begin(), p.segments()[s]);
    index_t t = 0;
    bool same = true;
    for (const Segment& s : path) {
      for (index_t i = s.first; i < s.last && same; ++i, ++t)
        same = t < cache.length(r, 0) && cache.key(s.sequence, 0, i) == cache.key(r, 0, t);
    }
    CHECK(same);
    CHECK(t == cache.length(r, 0));
  }
}

/// Tokens that differ in their row or in anything before it, counted one by one.
index_t distinct_tokens(const kv::PagedKV<const float>& cache) {
  std::set<std::vector<const float*>> all;
  for (index_t s = 0; s < cache.sequences(); ++s) {
    std::vector<const float*> prefix;
    for (index_t t = 0; t < cache.length(s, 0); ++t) {
      prefix.push_back(cache.key(s, 0, t));
      all.insert(prefix);
    }
  }
  return static_cast<index_t>(all.size());
}

TEST_CASE("Cascade: page tables with random sharing, every row once and every request its own") {
  for (const index_t page_size : {1, 3, 16}) {
    for (unsigned seed = 0; seed < 25; ++seed) {
      INFO("page size " << page_size << " seed " << seed);
      const SharedPages pages = random_pages(seed, page_size);
      const kv::PagedKV<const float> cache = pages.view();
      const Problem<float> flat = pages.flat(2);
      index_t dense = 0;
      for (const index_t n : flat.lengths) dense += n;
      const index_t distinct = distinct_tokens(cache);
      Cpu cpu;
      const Exact expected = exact(flat);
      const Result flat_result = run(cpu, flat, cache);
      index_t before = 0;
      for (const index_t least : {1, 5, 20, 1000}) {
        const Cascade a{.least = least};
        const CascadePlan p = plan(a, cache);
        same_rows(p, cache);
        CHECK(p.dense_tokens() == dense);
        if (least == 1) CHECK(p.tokens() == distinct);
        CHECK(p.tokens() >= before);
        before = p.tokens();
        const Result r = run_cascade(cpu, p, flat, cache);
        CHECK(error(r, expected) <= Dense::error_bound);
        CHECK(oracle::relative_error(doubles(r.o), doubles(flat_result.o)) <= 2e-6);
        CHECK(lse_error(r, expected) <= 1e-5);
      }
    }
  }
}

TEST_CASE("Cascade: prefixes that end before, at and after the end of a page") {
  for (const index_t tokens : {15, 16, 17, 31, 32, 33}) {
    // A sequence, one that ends within it, one that continues it, and one with the whole of it.
    const SharedPages pages(16, {{-1, 0, 40}, {0, tokens, 0}, {0, tokens, 9}, {0, 40, 0}, {-1, 0, 40}});
    const kv::PagedKV<const float> cache = pages.view();
    const CascadePlan p = plan(Cascade{.least = 1}, cache);
    same_rows(p, cache);
    CHECK(p.tokens() == distinct_tokens(cache));
    CHECK(p.leaves()[0] == p.leaves()[3]);
    const Problem<float> flat = pages.flat(3, {1, 2, 3, 1, 4});
    Cpu cpu;
    CHECK(error(run_cascade(cpu, p, flat, cache), exact(flat)) <= Dense::error_bound);
  }
}

TEST_CASE("Cascade: a prefix shorter than `least` is read by each request with what follows") {
  // 40 tokens in common to all four, 16 more to two of them, in pages of 8.
  const SharedPages pages(8, {{-1, 0, 60}, {0, 40, 20}, {1, 56, 3}, {0, 40, 0}});
  const kv::PagedKV<const float> cache = pages.view();
  const auto tokens = [&](index_t least) { return plan(Cascade{.least = least}, cache).tokens(); };
  CHECK(tokens(16) == 40 + 20 + (16 + 4 + 3));
  CHECK(tokens(17) == 40 + 20 + 20 + 19);
  CHECK(tokens(40) == tokens(17));
  CHECK(tokens(41) == 60 + 56 + 4 + 3 + 40);  // 56 tokens in common to two are one segment then
  CHECK(tokens(57) == 60 + 60 + 59 + 40);
  // 40, then 20 | 16, then 4 | 3: nothing beside them.
  CHECK(plan(Cascade{.least = 16}, cache).segments().extent(0) == 5);
  // 40, then 20 | 20 | 19.
  CHECK(plan(Cascade{.least = 17}, cache).segments().extent(0) == 4);
}

TEST_CASE("Cascade: pages that kv::PageTable shares; in one piece or many") {
  kv::PageTable table(40, 16, 5);
  table.extend(0, 300);
  for (const index_t s : {1, 2, 3}) {
    table.share(0, s, 18);
    table.extend(s, 5 * s);
  }
  const std::vector<float> keys = normal(40 * 2 * 16 * 16, 3), values = normal(40 * 2 * 16 * 16, 4);
  const kv::PagedKV<const float> cache{
      View<const float, 4>(keys.data(), 40, 2, 16, 16), View<const float, 4>(values.data(), 40, 2, 16, 16),
      table.indptr(), table.indices(), table.last_page_len()};
  const CascadePlan p = plan(Cascade{}, cache);
  same_rows(p, cache);
  CHECK(p.tokens() == 288 + 12 + 5 + 10 + 15);
  CHECK(p.leaves()[4] == -1);  // the fifth is empty
  CHECK(p.states() == 8);
  CHECK(cascade_bytes(p, 2, 8, 16, 16, 2) == 330 * 2 * 32 * 2 + 8 * 8 * 8 * 33);

  Problem<float> flat(2, 4, 16, 16, {300, 293, 298, 303, 0});
  Cpu cpu;
  const Result whole = run_cascade(cpu, p, flat, cache);
  CHECK(oracle::relative_error(doubles(whole.o), doubles(run(cpu, flat, cache).o)) <= 2e-6);
  for (const index_t piece : {64, 100, 288}) {
    const CascadePlan cut = plan(Cascade{.piece = piece}, cache);
    CHECK(cut.pieces() == (288 + piece - 1) / piece + 4);
    const Result r = run_cascade(cpu, cut, flat, cache);
    CHECK(oracle::relative_error(doubles(r.o), doubles(whole.o)) <= 2e-6);
    if (piece == 288) CHECK(r.same_bits(whole));
  }
}

}  // namespace
}  // namespace attention_test
