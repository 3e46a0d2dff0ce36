// Tree masks against walking up the parents, for every small forest; every conversion there and back; and what makes
// them right: a token of a tree gets what a sequence of its ancestors alone would give it.

#include "catch_compat.hpp"
#include "forest.hpp"

#include "decant/attention/tree_mask.hpp"
#include "decant/kv/compact.hpp"

using namespace decant;
using namespace decant::attention;
using catch_compat::contains;

namespace attention_test {
namespace {

using Parents = std::vector<std::int32_t>;
using Words = std::vector<std::uint64_t>;

bool walks_to(const Parents& parents, index_t from, index_t to) {
  index_t i = from;
  while (i > to) i = parents[at(i)];
  return i == to;
}

Words words_of(const Parents& parents) {
  Words words(at(tree_words(static_cast<index_t>(parents.size()))), ~std::uint64_t{0});
  tree_mask_from_parents(parents, words);
  return words;
}

Parents random_parents(index_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  Parents parents;
  for (index_t i = 0; i < tokens; ++i)
    parents.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(i + 1)) - 1);
  return parents;
}

/// Every way to ask and every conversion of a forest behind `context` keys.
void holds(const Parents& parents, index_t context) {
  const auto m = static_cast<index_t>(parents.size());
  const index_t n = context + m;
  const Words words = words_of(parents);
  const TreeMask mask{words};
  validate(mask, 1, 0, m, n);
  std::vector<std::uint8_t> bits(at((m * n + 7) / 8), 0xff);
  bit_mask_from_tree_mask(words, m, n, bits);
  const BitMask packed{bits};
  bool ok = true;
  for (index_t i = 0; i < m; ++i) {
    const index_t last = mask.range(0, i, m, n).last;
    for (index_t j = 0; j < n; ++j) {
      const bool expected = j < context || (j - context <= i && walks_to(parents, i, j - context));
      ok = ok && (j < last && mask.allowed(0, i, j, m, n)) == expected && packed.allowed(0, i, j, m, n) == expected;
    }
    for (index_t first = 0; first < n; first += 1 + first / 3)
      for (const index_t count : {index_t{1}, index_t{7}, index_t{64}}) {
        std::uint64_t tree = 0, bit = 0;
        const index_t here = std::min(count, n - first), below = std::min(count, last - first);
        for (index_t j = 0; j < here; ++j) {
          const std::uint64_t sees = packed.allowed(0, i, first + j, m, n);
          bit |= sees << j;
          if (j < below) tree |= sees << j;
        }
        ok = ok && packed.word(0, i, first, here, m, n) == bit;
        if (below > 0) ok = ok && mask.word(0, i, first, below, m, n) == tree;
      }
  }
  CHECK(ok);

  Parents back(parents.size(), -7);
  parents_from_tree_mask(words, back);
  CHECK(back == parents);
  Words again(words.size(), 0xabc);
  tree_mask_from_bit_mask(bits, m, n, again);
  CHECK(again == words);
  std::vector<std::int32_t> positions(parents.size());
  tree_positions(parents, context, positions);
  for (index_t i = 0; i < m; ++i) {
    index_t seen = -1;
    for (index_t j = 0; j <= i; ++j) seen += walks_to(parents, i, j) ? 1 : 0;
    CHECK(positions[at(i)] == context + seen);
  }
}

TEST_CASE("tree masks: every forest of up to six tokens") {
  for (index_t m = 0; m <= 6; ++m) {
    Parents parents(at(m), -1);
    for (;;) {
      for (const index_t context : {0, 3}) holds(parents, context);
      index_t i = 0;
      while (i < m && ++parents[at(i)] == i) parents[at(i++)] = -1;  // the next one, as a number
      if (i == m) break;
    }
  }
}

TEST_CASE("tree masks: rows of several words, chains, stars and random forests") {
  for (const index_t m : {63, 64, 65, 130, 200}) {
    Parents chain, star;
    for (index_t i = 0; i < m; ++i) {
      chain.push_back(static_cast<std::int32_t>(i - 1));
      star.push_back(i == 0 ? -1 : 0);
    }
    for (const index_t context : {0, 1, 64, 100}) {
      holds(chain, context);
      holds(star, context);
      holds(random_parents(m, static_cast<unsigned>(m + context)), context);
    }
  }
  // A chain is the causal mask.
  const Words words = words_of({-1, 0, 1, 2, 3});
  for (index_t i = 0; i < 5; ++i)
    for (index_t j = 0; j < 9; ++j)
      CHECK(TreeMask{words}.allowed(0, i, j, 5, 9) == Causal{}.allowed(0, i, j, 5, 9));
}

TEST_CASE("tree masks: packed prefixes by definition, there and back") {
  const std::vector<std::vector<std::int32_t>> cuts{{}, {6}, {2, 4, 6}, {0, 1, 5}, {0, 1, 2, 3, 4, 5, 6}};
  for (const auto& ends : cuts)
    for (const index_t probe : {1, 3}) {
      const PackedPrefixes packed{6, ends, probe};
      const index_t m = packed.tokens();
      REQUIRE(m == 6 + static_cast<index_t>(ends.size()) * probe);
      Parents parents(at(m), -9);
      parents_from_packed_prefixes(packed, parents);
      const Words words = words_of(parents);
      bool ok = true;
      for (index_t i = 0; i < m; ++i)
        for (index_t j = 0; j < m; ++j) {
          const auto prefix = [&](index_t token) { return (token - 6) / probe; };
          bool expected = j <= i;
          if (i >= 6 && j < 6) expected = j < ends[at(prefix(i))];
          if (i >= 6 && j >= 6) expected = j <= i && prefix(i) == prefix(j);
          ok = ok && (j <= i && TreeMask{words}.allowed(0, i, 11 + j, m, 11 + m)) == expected;
        }
      CHECK(ok);
      holds(parents, 4);
      std::vector<std::int32_t> back(ends.size(), -9);
      ends_from_parents(parents, 6, probe, back);
      CHECK(back == ends);
    }
  Parents none;
  parents_from_packed_prefixes(PackedPrefixes{}, none);
}

TEST_CASE("tree masks: in a batch, each sequence its own tree, against the definition, on every path") {
  // Contexts of 100, 0 and 3 tokens; 70 tokens, 1 token, none, and 9 tokens of trees.
  const Parents trees[] = {random_parents(70, 1), {-1}, {}, random_parents(9, 2)};
  Words words{99};  // something before the first
  std::vector<index_t> offsets{1};
  for (const Parents& t : trees) {
    const Words w = words_of(t);
    words.insert(words.end(), w.begin(), w.end());
    offsets.push_back(static_cast<index_t>(words.size()));
  }
  const TreeMask mask{words, offsets};
  const Problem<float> p(2, 3, 20, 12, {170, 1, 3, 12}, {70, 1, 0, 9});
  const Exact expected = exact(p, Dense{}, mask);
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    const Result r = run(cpu, p, DenseCache<float>(p).view, Dense{}, mask);
    CHECK(error(r, expected) <= Dense::error_bound);
    CHECK(lse_error(r, expected) <= 1e-5);
    // Packed as bits over all keys: the same bits come out.
    std::vector<std::uint8_t> bits;
    std::vector<index_t> begins{0};
    for (index_t s = 0; s < 4; ++s) {
      const index_t m = p.queries[at(s)], n = p.lengths[at(s)];
      std::vector<std::uint8_t> one(at((m * n + 7) / 8));
      bit_mask_from_tree_mask(words_of(trees[s]), m, n, one);
      bits.insert(bits.end(), one.begin(), one.end());
      begins.push_back(static_cast<index_t>(bits.size()));
    }
    CHECK(run(cpu, p, DenseCache<float>(p).view, Dense{}, BitMask{bits, begins}).same_bits(r));
  }
}

TEST_CASE("tree masks: each token gets what its ancestors alone would give it") {
  const index_t context = 80;
  const Parents parents = random_parents(12, 5);
  const Words words = words_of(parents);
  const Problem<float> p(2, 1, 20, 12, {context + 12}, {12});
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    const Result r = run(cpu, p, DenseCache<float>(p).view, Dense{}, TreeMask{words});
    for (index_t i = 0; i < 12; ++i) {
      std::vector<index_t> rows;
      for (index_t t = 0; t < context; ++t) rows.push_back(t);
      for (index_t j = 0; j <= i; ++j)
        if (walks_to(parents, i, j)) rows.push_back(context + j);
      Problem<float> alone(2, 1, 20, 12, {static_cast<index_t>(rows.size())});
      for (index_t h = 0; h < 2; ++h)
        for (index_t t = 0; t < alone.lengths[0]; ++t) {
          std::copy_n(p.key(0, h, rows[at(t)]), 20, alone.key(0, h, t));
          std::copy_n(p.value(0, h, rows[at(t)]), 12, alone.value(0, h, t));
        }
      std::copy_n(p.q.data() + i * 2 * 20, 2 * 20, alone.q.data());
      const Result expected = run(cpu, alone, DenseCache<float>(alone).view);
      const std::vector<float> got(r.o.begin() + i * 24, r.o.begin() + (i + 1) * 24);
      CHECK(oracle::relative_error(doubles(got), doubles(expected.o)) <= 2e-6);
    }
    // A token that changes reaches those below it, and nobody else by a bit; NaN neither.
    Problem<float> other = p;
    std::fill_n(other.key(0, 0, context + 3), 20, quiet_nan);
    std::fill_n(other.value(0, 0, context + 3), 12, quiet_nan);
    const Result changed = run(cpu, other, DenseCache<float>(other).view, Dense{}, TreeMask{words});
    for (index_t i = 0; i < 12; ++i) {
      const bool below = i >= 3 && walks_to(parents, i, 3);
      CHECK((std::memcmp(r.o.data() + i * 24, changed.o.data() + i * 24, 24 * 4) == 0) == !below);
    }
  }
}

/// Two layers of attention and a little arithmetic between, with the keys and values of all tokens so far.
struct Toy {
  static constexpr index_t heads = 2, group = 2, dim = 8, width = 16;
  std::vector<float> keys[2], values[2];  // [token][head][dim]

  static std::vector<float> times(index_t rows, const std::vector<float>& x, unsigned seed) {
    const auto columns = static_cast<index_t>(x.size());
    const std::vector<float> matrix = normal(rows * columns, seed, 1 / std::sqrt(static_cast<float>(columns)));
    std::vector<float> y(at(rows));
    for (index_t r = 0; r < rows; ++r)
      y[at(r)] = std::inner_product(x.begin(), x.end(), matrix.begin() + r * columns, 0.0f);
    return y;
  }
  /// The states that leave the second layer, one for each of these tokens.
  template <class M>
  std::vector<std::vector<float>> run(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& positions,
                                      const M& mask) {
    std::vector<std::vector<float>> x;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      x.push_back(normal(width, 5000 + static_cast<unsigned>(ids[i])));
      const std::vector<float> place = normal(width, 6000 + static_cast<unsigned>(positions[i]));
      for (std::size_t d = 0; d < place.size(); ++d) x.back()[d] += place[d];
    }
    const auto m = static_cast<index_t>(x.size());
    for (unsigned l = 0; l < 2; ++l) {
      std::vector<float> q, o(at(m * heads * group * dim));
      for (const std::vector<float>& state : x) {
        const auto append = [](std::vector<float>& to, const std::vector<float>& row) {
          to.insert(to.end(), row.begin(), row.end());
        };
        append(q, times(heads * group * dim, state, 10 * l));
        append(keys[l], times(heads * dim, state, 10 * l + 1));
        append(values[l], times(heads * dim, state, 10 * l + 2));
      }
      const auto n = static_cast<index_t>(keys[l].size()) / (heads * dim);
      const index_t extents[] = {1, heads, n, dim}, strides[] = {n * heads * dim, dim, heads * dim, 1};
      const std::int32_t length = static_cast<std::int32_t>(n), indptr[] = {0, static_cast<std::int32_t>(m)};
      const kv::DenseKV<const float> cache{View<const float, 4>(keys[l].data(), extents, strides),
                                           View<const float, 4>(values[l].data(), extents, strides),
                                           View<const std::int32_t, 1>(&length, 1)};
      Cpu cpu;
      attend(cpu, Dense{},
             Queries<float>{View<const float, 3>(q.data(), m, heads * group, dim),
                            View<const std::int32_t, 1>(indptr, 2)},
             cache, View<float, 3>(o.data(), m, heads * group, dim), View<float, 2>{}, mask);
      for (index_t i = 0; i < m; ++i) {
        const auto from = o.begin() + i * heads * group * dim;
        const std::vector<float> update = times(width, {from, from + heads * group * dim}, 10 * l + 3);
        for (std::size_t d = 0; d < update.size(); ++d) x[at(i)][d] += update[d];
        const std::vector<float> mixed = times(width, x[at(i)], 10 * l + 4);
        for (std::size_t d = 0; d < mixed.size(); ++d) x[at(i)][d] += std::tanh(mixed[d]);
      }
    }
    return x;
  }
};

TEST_CASE("tree masks: one run of packed prefixes is a run for each prefix, through two layers") {
  const std::int32_t context = 9, draft = 12, probe = 3;
  const std::vector<std::int32_t> ends{0, 4, 5, 12};
  const std::vector<std::int32_t> probe_ids{90, 91, 92};
  const auto from_to = [](std::int32_t first, std::int32_t count) {
    std::vector<std::int32_t> x(static_cast<std::size_t>(count));
    std::iota(x.begin(), x.end(), first);
    return x;
  };
  const PackedPrefixes packed{draft, ends, probe};
  Parents parents(at(packed.tokens()));
  parents_from_packed_prefixes(packed, parents);
  const Words words = words_of(parents);
  std::vector<std::int32_t> ids = from_to(20, draft), positions(parents.size());
  for (std::size_t s = 0; s < ends.size(); ++s) ids.insert(ids.end(), probe_ids.begin(), probe_ids.end());
  tree_positions(parents, context, positions);
  Toy all;
  all.run(from_to(1, context), from_to(0, context), Causal{});
  const auto together = all.run(ids, positions, TreeMask{words});
  for (std::size_t s = 0; s < ends.size(); ++s) {
    std::vector<std::int32_t> alone_ids = from_to(20, ends[s]);
    alone_ids.insert(alone_ids.end(), probe_ids.begin(), probe_ids.end());
    Toy one;
    one.run(from_to(1, context), from_to(0, context), Causal{});
    const auto alone = one.run(alone_ids, from_to(context, ends[s] + probe), Causal{});
    for (index_t i = 0; i < probe; ++i)
      CHECK(oracle::relative_error(doubles(together[at(draft + static_cast<index_t>(s) * probe + i)]),
                                   doubles(alone[at(ends[s] + i)])) < 1e-5);
  }
}

TEST_CASE("tree masks: an accepted path's rows move behind the context in the order of their depth, bit for bit") {
  const index_t context = 70, tokens = 40;
  const Parents parents = random_parents(tokens, 8);
  const Problem<float> p(2, 3, 20, 12, {context + tokens}, {tokens});
  Cpu cpu;
  for (index_t leaf = 0; leaf < tokens; leaf += 3) {
    DenseCache<float> cache(p);
    std::vector<std::int32_t> rows;
    for (index_t i = leaf; i >= 0; i = parents[at(i)])
      rows.insert(rows.begin(), static_cast<std::int32_t>(context + i));
    const auto path = static_cast<index_t>(rows.size());
    for (index_t t = context; t > 0; --t) rows.insert(rows.begin(), static_cast<std::int32_t>(t - 1));
    const auto kept = static_cast<std::int32_t>(rows.size());
    std::int32_t counts[] = {kept, kept};
    const kv::DenseKV<float> writable{View<float, 4>(cache.keys.data(), 1, 2, context + tokens + 3, 20),
                                      View<float, 4>(cache.values.data(), 1, 2, context + tokens + 3, 12),
                                      View<std::int32_t, 1>(cache.lengths)};
    const View<std::int32_t, 2> repeated(rows.data(), {2, kept}, {0, 1});  // the same for both heads
    kv::compact(cpu, writable, {repeated, View<std::int32_t, 1>(counts, 2)});
    REQUIRE(cache.lengths[0] == context + path);
    bool same = true;
    for (index_t h = 0; h < 2; ++h)
      for (index_t t = 0; t < kept; ++t)
        same = same && std::memcmp(writable.key(0, h, t), p.key(0, h, rows[at(t)]), 20 * sizeof(float)) == 0 &&
               std::memcmp(writable.value(0, h, t), p.value(0, h, rows[at(t)]), 12 * sizeof(float)) == 0;
    CHECK(same);
  }
}

TEST_CASE("tree masks: over shared prefixes, the tree behind each request's own keys") {
  const Parents trees[] = {random_parents(7, 3), random_parents(5, 4), {-1, 0, 0}};
  Words words;
  std::vector<index_t> offsets{0};
  for (const Parents& t : trees) {
    const Words w = words_of(t);
    words.insert(words.end(), w.begin(), w.end());
    offsets.push_back(static_cast<index_t>(words.size()));
  }
  const TreeMask mask{words, offsets};
  // The third request's tree begins in the segment that it shares with the second.
  const Forest<float> f =
      make_forest(2, 3, 20, 12, {-1, 0, 0, 2, 2}, {130, 20, 30, 6, 1}, {1, 3, 4}, {7, 5, 3});
  const Exact expected = exact(f.flat, Dense{}, mask);
  const CascadePlan p = plan(Cascade{.piece = 64}, f.segment_view(), f.leaf_view());
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    const Result r = run_cascade(cpu, p, f.flat, DenseCache<float>(f.stored).view, {}, mask);
    CHECK(error(r, expected) <= Dense::error_bound);
    CHECK(lse_error(r, expected) <= 1e-5);
  }
}

TEST_CASE("tree masks: hostile shapes and bits are refused by name, and nothing is written") {
  const Parents good{-1, 0, 0, 2};
  Words words(4, 7), untouched = words;
  const auto parents_refused = [&](const Parents& parents) {
    CHECK_THROWS_WITH(tree_mask_from_parents(parents, words), contains("`parents`"));
    std::vector<std::int32_t> positions(parents.size(), 7);
    CHECK_THROWS_WITH(tree_positions(parents, 3, positions), contains("`parents`"));
    CHECK((words == untouched && positions == std::vector<std::int32_t>(4, 7)));
  };
  parents_refused({0, 0, 0, 2});
  parents_refused({-1, 0, 0, 3});
  parents_refused({-1, 0, 3, 2});
  parents_refused({-1, -2, 0, 0});
  parents_refused({-1, 0, 0, 0x7fffffff});
  Words few(3);
  CHECK_THROWS_WITH(tree_mask_from_parents(good, few), contains("`words`: expected 4, got 3"));
  Parents positions(3), out(4, 7);
  CHECK_THROWS_WITH(tree_positions(good, 0, positions), contains("`positions`"));
  CHECK_THROWS_WITH(tree_positions(good, -1, out), contains("`context`"));
  CHECK_THROWS_WITH(tree_positions(good, 0x7fffffff, out), contains("`context`"));

  // Every single wrong bit in a row is noticed, by either conversion.
  const Words right = words_of(good);
  std::vector<std::uint8_t> bits(at((4 * 9 + 7) / 8));
  bit_mask_from_tree_mask(right, 4, 9, bits);
  int accepted = 0;
  for (index_t i = 0; i < 4; ++i)
    for (index_t j = 0; j < 64; ++j) {
      Words wrong = right;
      wrong[at(i)] ^= std::uint64_t{1} << j;
      Parents parents(4, 7);
      // Flipping a bit may give another forest: those are the flips whose result some parents produce.
      bool forest = false;
      for (std::int32_t a = -1; a < 1; ++a)
        for (std::int32_t b = -1; b < 2; ++b)
          for (std::int32_t c = -1; c < 3; ++c) forest = forest || words_of({-1, a, b, c}) == wrong;
      accepted += forest ? 1 : 0;
      if (forest) continue;
      CHECK_THROWS_WITH(parents_from_tree_mask(wrong, parents), contains("`words`"));
      CHECK(parents == Parents(4, 7));
      if (j >= 4) continue;
      std::vector<std::uint8_t> wrong_bits = bits;
      const index_t bit = i * 9 + 5 + j;
      wrong_bits[at(bit / 8)] = static_cast<std::uint8_t>(wrong_bits[at(bit / 8)] ^ (1 << (bit % 8)));
      CHECK_THROWS_WITH(tree_mask_from_bit_mask(wrong_bits, 4, 9, words), contains("`bits`"));
      CHECK(words == untouched);
    }
  CHECK(accepted == 2);  // token 1 becomes a root, token 3 a child of token 0
  for (index_t j = 0; j < 5; ++j) {  // a key of the context is not seen
    std::vector<std::uint8_t> wrong_bits = bits;
    wrong_bits[at((9 + j) / 8)] = static_cast<std::uint8_t>(wrong_bits[at((9 + j) / 8)] & ~(1 << ((9 + j) % 8)));
    CHECK_THROWS_WITH(tree_mask_from_bit_mask(wrong_bits, 4, 9, words), contains("`bits`: expected 1 for every key"));
  }
  CHECK_THROWS_WITH(tree_mask_from_bit_mask(bits, 4, 3, words), contains("`keys`"));
  CHECK_THROWS_WITH(tree_mask_from_bit_mask(bits, -1, 9, words), contains("`queries`"));
  CHECK_THROWS_WITH(tree_mask_from_bit_mask(bits, 4, 11, words), contains("`bits`"));
  CHECK_THROWS_WITH(tree_mask_from_bit_mask(bits, 4, 9, few), contains("`words`"));
  CHECK_THROWS_WITH(bit_mask_from_tree_mask(right, 4, 3, bits), contains("`keys`"));
  CHECK_THROWS_WITH(bit_mask_from_tree_mask(right, 0x100000000, 0x7fffffff, bits), contains("`queries`"));
  CHECK_THROWS_WITH(bit_mask_from_tree_mask(few, 4, 9, bits), contains("`words`"));
  CHECK_THROWS_WITH(bit_mask_from_tree_mask(right, 4, 12, bits), contains("`bits`"));
  CHECK_THROWS_WITH(parents_from_tree_mask(few, out), contains("`words`"));

  // Packed prefixes.
  const auto packed_refused = [&](const PackedPrefixes& p, const char* argument) {
    CHECK_THROWS_WITH(parents_from_packed_prefixes(p, out), contains(argument));
  };
  const std::vector<std::int32_t> ends{1, 3}, equal{2, 2}, beyond{1, 4}, negative{-1, 2}, many{0, 1, 2, 3, 4};
  packed_refused({-1, ends, 1}, "`draft`");
  packed_refused({index_t{1} << 40, ends, 1}, "`draft`");
  packed_refused({3, ends, -1}, "`probe`");
  packed_refused({3, ends, 0x7fffffff}, "`probe`");
  for (const auto& bad : {equal, beyond, negative, many}) packed_refused({3, bad, 1}, "`ends`");
  packed_refused({3, ends, 1}, "`parents`: expected 5, got 4");
  std::vector<std::int32_t> two(2, 7);
  const Parents packed{-1, 0, 1, 0, 3, 2, 5};
  ends_from_parents(packed, 3, 2, two);
  CHECK(two == ends);
  const auto ends_refused = [&](const Parents& parents, index_t draft, index_t probe, const char* argument) {
    CHECK_THROWS_WITH(ends_from_parents(parents, draft, probe, two), contains(argument));
    CHECK(two == ends);
  };
  ends_refused(packed, 8, 2, "`draft`");
  ends_refused(packed, -1, 2, "`draft`");
  ends_refused(packed, 3, 3, "`probe`");
  ends_refused(packed, 3, 0, "`probe`");
  ends_refused(packed, 3, 1, "`ends`");
  for (const std::size_t i : {std::size_t{1}, std::size_t{4}, std::size_t{6}}) {
    Parents wrong = packed;
    --wrong[i];
    ends_refused(wrong, 3, 2, "`parents`");
  }
  ends_refused({-1, 0, 1, 2, 3, 0, 5}, 3, 2, "`parents`");  // not ascending
  ends_refused({-1, 0, 1, 0, 3, 0, 5}, 3, 2, "`parents`");  // twice the same
  ends_refused({-1, 0, 1, 0, 3, 4, 5}, 3, 2, "`parents`");  // a probe below another

  // As a mask.
  const std::vector<index_t> offsets{0, 4, 6}, backwards{0, 4, 3}, far{0, 4, 7}, short_by_one{0, 3, 6};
  const Words six(6);
  CHECK_NOTHROW(validate(TreeMask{six, offsets}, 2, 0, 4, 9));
  CHECK_THROWS_WITH(validate(TreeMask{six, offsets}, 2, 1, 3, 9), contains("`words`"));
  CHECK_THROWS_WITH(validate(TreeMask{six, backwards}, 2, 1, 0, 9), contains("`offsets`"));
  CHECK_THROWS_WITH(validate(TreeMask{six, far}, 2, 1, 1, 9), contains("`offsets`"));
  CHECK_THROWS_WITH(validate(TreeMask{six, short_by_one}, 2, 0, 4, 9), contains("`words`"));
  CHECK_THROWS_WITH(validate(TreeMask{six, offsets}, 3, 0, 4, 9), contains("`offsets`"));
  CHECK_THROWS_WITH(validate(TreeMask{six}, 2, 0, 4, 9), contains("`offsets`"));
  const Problem<float> p(1, 1, 8, 8, {20}, {7});
  Cpu cpu;
  CHECK_THROWS_WITH(run(cpu, p, DenseCache<float>(p).view, Dense{}, TreeMask{six}), contains("`words`"));
}

}  // namespace
}  // namespace attention_test
