// Tree masks on a device: built there, read by CUDA cores and by tensor cores, packed prefixes too, behind short
// contexts and long ones, and through shared prefixes.

#include "catch_compat.hpp"
#include "decant/attention/tree_mask.cuh"
#include "device_forest.cuh"

using namespace decant;
using namespace decant::attention;
using catch_compat::contains;

namespace attention_test {
namespace {

using Parents = std::vector<std::int32_t>;

Parents random_parents(index_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  Parents parents;
  for (index_t i = 0; i < tokens; ++i) {  // mostly chains, so that trees are deep
    const bool chain = random() % 4 != 0;
    parents.push_back(chain ? static_cast<std::int32_t>(i - 1)
                            : static_cast<std::int32_t>(random() % static_cast<unsigned>(i + 1)) - 1);
  }
  return parents;
}

/// Drafts of a batch.
struct HostDrafts {
  std::vector<Parents> trees;
  std::vector<std::int32_t> parents, indptr{0};
  std::vector<index_t> offsets{0};
  std::vector<std::uint64_t> words;

  explicit HostDrafts(std::vector<Parents> t) : trees(std::move(t)) {
    for (const Parents& tree : trees) {
      parents.insert(parents.end(), tree.begin(), tree.end());
      indptr.push_back(static_cast<std::int32_t>(parents.size()));
      std::vector<std::uint64_t> own(at(tree_words(static_cast<index_t>(tree.size()))));
      tree_mask_from_parents(View<const std::int32_t, 1>(tree), own);
      words.insert(words.end(), own.begin(), own.end());
      offsets.push_back(static_cast<index_t>(words.size()));
    }
  }
};

/// And on the device, where the masks are built.
struct Drafts : HostDrafts {
  DeviceBuffer<std::int32_t> device_parents{parents}, device_indptr{indptr};
  DeviceBuffer<index_t> device_offsets{offsets};
  DeviceBuffer<std::uint64_t> device_words{std::vector<std::uint64_t>(words.size(), 0x5555)};

  using HostDrafts::HostDrafts;
  std::vector<index_t> queries() const {
    std::vector<index_t> counts;
    for (const Parents& tree : trees) counts.push_back(static_cast<index_t>(tree.size()));
    return counts;
  }
  void build(Cuda& cuda) const {
    tree_mask_from_parents(cuda, device_parents.view(device_parents.size()), device_indptr.view(device_indptr.size()),
                           device_offsets.view(device_offsets.size()), device_words.view(device_words.size()));
  }
  TreeMask host() const { return {words, offsets}; }
  TreeMask device() const {
    return {device_words.view(device_words.size()), device_offsets.view(device_offsets.size())};
  }
};

/// Every draft behind a context of so many keys.
template <class T>
Problem<T> behind(const Drafts& d, const std::vector<index_t>& contexts, index_t heads, index_t group,
                  index_t key_dim = 20, index_t value_dim = 12) {
  std::vector<index_t> lengths = d.queries();
  for (std::size_t s = 0; s < lengths.size(); ++s) lengths[s] += contexts[s];
  return {heads, group, key_dim, value_dim, lengths, d.queries()};
}

template <class T>
void agrees(const Drafts& d, const Problem<T>& p, const Dense& a = {}, bool offsets = true) {
  Context c;
  d.build(c.cuda);
  const Result r = run(c.cuda, p, DenseCache<T>(p), a, d.device(), {}, offsets);
  const Exact expected = exact(p, a, d.host());
  CHECK(error(r, expected) <= Dense::error_bound);
  CHECK(lse_error(r, expected) <= 2e-5);
}

TEST_CASE("Cuda TreeMask: built on the device, bit by bit") {
  const Drafts d({{-1}, random_parents(7, 1), {}, random_parents(64, 2), random_parents(65, 3), random_parents(130, 4),
                  Parents(200, -1)});
  Context c;
  d.build(c.cuda);
  c.cuda.check();
  CHECK(d.device_words.download() == d.words);
  // One sequence, and a chain.
  for (const index_t tokens : {0, 1, 63, 130}) {
    Parents chain(at(tokens));
    std::iota(chain.begin(), chain.end(), -1);
    std::vector<std::uint64_t> expected(at(tree_words(tokens)));
    tree_mask_from_parents(View<const std::int32_t, 1>(chain), expected);
    const DeviceBuffer<std::int32_t> parents(chain);
    const DeviceBuffer<std::uint64_t> words(tree_words(tokens));
    tree_mask_from_parents(c.cuda, parents.view(tokens), words.view(words.size()));
    c.cuda.check();
    CHECK(words.download() == expected);
  }
}

TEST_CASE("TreeMask: says itself that all see the whole context, and whether it has rows for all") {
  const Drafts d({random_parents(7, 1), random_parents(65, 2)});
  const KeyRange context = d.host().whole(1, 3, 65, 100);
  CHECK((context.first == 0 && context.last == 35));
  CHECK((d.host().holds(2, 0, 7, 7) && d.host().holds(2, 1, 65, 100)));
  CHECK((!d.host().holds(2, 0, 8, 8) && !d.host().holds(3, 0, 7, 7) && !TreeMask{d.words}.holds(2, 0, 7, 7)));
}

TEST_CASE("Cuda TreeMask: Dense over drafts of many sizes, on CUDA cores") {
  const Drafts d({random_parents(1, 1), random_parents(7, 2), random_parents(64, 3), {}, random_parents(65, 4)});
  agrees(d, behind<float>(d, {5, 90, 0, 9, 130}, 1, 2));
  const Drafts large({random_parents(130, 5), random_parents(7, 6)});
  agrees(large, behind<float>(large, {33, 700}, 1, 1), {.chunk = 96});
  const Drafts roots({{-1}, {-1}, {-1}});
  agrees(roots, behind<bf16>(roots, {5, 90, 0}, 2, 3), {}, false);
}

TEST_CASE("Cuda TreeMask: Dense over drafts of many sizes, on tensor cores") {
  const Drafts d({random_parents(1, 1), random_parents(7, 2), random_parents(64, 3), {}, random_parents(65, 4)});
  agrees(d, behind<bf16>(d, {5, 90, 0, 9, 130}, 2, 3));
  agrees(d, behind<fp16>(d, {600, 0, 64, 0, 1}, 1, 1, 16, 136), {.chunk = 96});
  const Drafts large({random_parents(130, 5), random_parents(7, 6)});
  agrees(large, behind<bf16>(large, {33, 700}, 1, 2));
}

TEST_CASE("Cuda TreeMask: several ends of one draft, packed") {
  const std::vector<std::int32_t> ends{0, 4, 9, 20};
  const PackedPrefixes packed{20, ends, 3};
  Parents parents(at(packed.tokens()));
  parents_from_packed_prefixes(packed, parents);
  const Drafts d({parents, random_parents(5, 1)});
  agrees(d, behind<float>(d, {100, 3}, 2, 1));
  agrees(d, behind<bf16>(d, {100, 3}, 2, 4));
}

template <class T>
void check_unseen() {
  const Drafts d({random_parents(70, 2)});
  Problem<T> p = behind<T>(d, {75}, 1, 2);
  Context c;
  d.build(c.cuda);
  const Result before = run(c.cuda, p, DenseCache<T>(p), Dense{}, d.device(), {}, true);
  // Another number for draft token 20: only its descendants notice.
  std::fill_n(p.key(0, 0, 95), 20, T(2.0f));
  std::fill_n(p.value(0, 0, 95), 12, T(quiet_nan));
  const Result after = run(c.cuda, p, DenseCache<T>(p), Dense{}, d.device(), {}, true);
  for (index_t i = 0; i < 70; ++i) {
    const bool sees = d.host().allowed(0, i, 95, 70, 145);
    const float* const x = before.o.data() + i * 24;
    const float* const y = after.o.data() + i * 24;
    CHECK((sees ? std::isnan(y[0]) : std::memcmp(x, y, 24 * sizeof(float)) == 0));
  }
}

TEST_CASE("Cuda TreeMask: a draft token matters to its descendants alone") {
  check_unseen<float>();
  check_unseen<bf16>();
}

TEST_CASE("Cuda TreeMask: drafts of requests that share prefixes") {
  // Each request's draft is the end of its own segment.
  const Drafts d({random_parents(7, 1), random_parents(30, 2), random_parents(12, 3)});
  const auto check = [&](const auto& f) {
    Context c;
    d.build(c.cuda);
    const Result r = run_cascade(c.cuda, plan_of(f), f.flat, DenseCache(f.stored), Dense{}, d.device());
    CHECK(error(r, exact(f.flat, Dense{}, d.host())) <= Dense::error_bound);
  };
  const std::vector<index_t> parents{-1, 0, 0, 1}, lengths{100, 7, 40, 50}, leaves{1, 2, 3};
  check(make_forest<float>(1, 2, 20, 12, parents, lengths, leaves, d.queries(), 5));
  check(make_forest<bf16>(1, 2, 20, 12, parents, lengths, leaves, d.queries(), 5));
}

TEST_CASE("Cuda TreeMask: faults") {
  Context c;
  for (const std::int32_t bad : {3, -2, 100}) {
    Parents wrong = random_parents(7, 1);
    wrong[3] = bad;
    const DeviceBuffer<std::int32_t> parents(wrong), indptr(std::vector<std::int32_t>{0, 0, 7});
    const DeviceBuffer<index_t> offsets(std::vector<index_t>{0, 0, 7});
    const DeviceBuffer<std::uint64_t> words(std::vector<std::uint64_t>(7, 3));
    tree_mask_from_parents(c.cuda, parents.view(7), words.view(7));
    CHECK_THROWS_WITH(c.cuda.check(), contains("`parents`") && contains("index 3"));
    tree_mask_from_parents(c.cuda, parents.view(7), indptr.view(3), offsets.view(3), words.view(7));
    CHECK_THROWS_WITH(c.cuda.check(), contains("`parents`") && contains("index 3"));
    CHECK(words.download() == std::vector<std::uint64_t>(7, 3));
  }
  const Drafts d({random_parents(7, 1), random_parents(65, 2)});
  const auto build = [&](const std::vector<std::int32_t>& indptr, const std::vector<index_t>& offsets,
                         const char* argument) {
    const DeviceBuffer<std::int32_t> i(indptr);
    const DeviceBuffer<index_t> o(offsets);
    tree_mask_from_parents(c.cuda, d.device_parents.view(72), i.view(3), o.view(3), d.device_words.view(137));
    CHECK_THROWS_WITH(c.cuda.check(), contains(argument));
  };
  build({0, 7, 73}, {0, 7, 137}, "indptr");
  build({0, 7, 6}, {0, 7, 137}, "indptr");
  build({0, 7, 72}, {0, 6, 137}, "TreeMask");
  build({0, 7, 72}, {0, 8, 137}, "TreeMask");
  build({0, 7, 72}, {0, 7, 138}, "TreeMask");
  CHECK(d.device_words.download() == std::vector<std::uint64_t>(137, 0x5555));
  CHECK_THROWS_WITH(tree_mask_from_parents(c.cuda, d.device_parents.view(7), d.device_words.view(6)),
                    contains("`words`"));

  // A mask without rows for all queries, seen by attend().
  d.build(c.cuda);
  const Problem<float> p = behind<float>(d, {9, 0}, 1, 1);
  const OnDevice<DenseCache<float>> cache{DenseCache<float>(p)};
  const DeviceCall<> call(p);
  const auto refused = [&](const TreeMask& mask) {
    attend(c.cuda, Dense{}, call.queries(true), cache.view, call.out(), call.lses(), mask);
    CHECK_THROWS_WITH(c.cuda.check(), contains("TreeMask"));
    for (const float x : call.result().o) CHECK(std::isnan(x));
  };
  refused({d.device_words.view(136), d.device().offsets});
  refused({d.device_words.view(137)});
  const DeviceBuffer<index_t> backwards(std::vector<index_t>{0, 137, 137}), negative(std::vector<index_t>{-1, 7, 137});
  refused({d.device_words.view(137), backwards.view(3)});
  refused({d.device_words.view(137), negative.view(3)});
}

}  // namespace
}  // namespace attention_test
