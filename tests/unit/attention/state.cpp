// The laws of the attention state, and that Dense's states obey them: merging any partition of the keys gives what
// attention over all of them gives.

#include "catch_compat.hpp"
#include "problem.hpp"

using namespace decant;
using attention::State;

namespace attention_test {
namespace {

struct OwnedState {
  index_t queries, heads, dim;
  std::vector<float> o, lse;

  OwnedState(index_t q, index_t h, index_t d)
      : queries(q), heads(h), dim(d), o(at(q * h * d), 0.0f), lse(at(q * h), -infinity) {}
  State<float> out() {
    return {View<float, 3>(o.data(), queries, heads, dim), View<float, 2>(lse.data(), queries, heads)};
  }
  State<const float> view() const {
    return {View<const float, 3>(o.data(), queries, heads, dim), View<const float, 2>(lse.data(), queries, heads)};
  }
  bool same_bits(const OwnedState& other) const {
    return std::memcmp(o.data(), other.o.data(), o.size() * 4) == 0 &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * 4) == 0;
  }
};

OwnedState random_state(unsigned seed, float deviation = 3) {
  OwnedState s(5, 3, 17);
  s.o = normal(5 * 3 * 17, seed);
  s.lse = normal(15, seed + 100, deviation);
  return s;
}

OwnedState merged(const OwnedState& a, const OwnedState& b) {
  Cpu cpu;
  OwnedState out(a.queries, a.heads, a.dim);
  merge(cpu, a.view(), b.view(), out.out());
  return out;
}

double distance(const OwnedState& a, const OwnedState& b) {
  return std::max(oracle::relative_error(doubles(a.o), doubles(b.o)),
                  oracle::relative_error(doubles(a.lse), doubles(b.lse)));
}

TEST_CASE("merge: (0, -inf) is the identity on both sides, bit by bit") {
  OwnedState a = random_state(1);
  a.o[3] = -0.0f;
  a.o[4] = 1e-42f;  // subnormal
  a.lse[7] = -infinity;
  for (int d = 0; d < 17; ++d) a.o[7 * 17 + static_cast<std::size_t>(d)] = 0;
  const OwnedState empty(5, 3, 17);
  CHECK(merged(a, empty).same_bits(a));
  CHECK(merged(empty, a).same_bits(a));
  CHECK(merged(empty, empty).same_bits(empty));
}

TEST_CASE("merge: what an empty state holds in o is never read into a sum") {
  const OwnedState a = random_state(1);
  OwnedState empty(5, 3, 17);
  for (float& x : empty.o) x = quiet_nan;
  CHECK(merged(a, empty).same_bits(a));
}

TEST_CASE("merge: commutes bit by bit, associates to 1e-6") {
  const OwnedState a = random_state(1), b = random_state(2), c = random_state(3);
  CHECK(merged(a, b).same_bits(merged(b, a)));
  CHECK(distance(merged(merged(a, b), c), merged(a, merged(b, c))) < 1e-6);
}

TEST_CASE("merge: logits of 1e4 and -1e4 neither overflow nor drown") {
  OwnedState a = random_state(1), b = random_state(2);
  for (float& x : a.lse) x = 1e4f;
  for (float& x : b.lse) x = -1e4f;
  CHECK(merged(a, b).same_bits(a));
  for (float& x : b.lse) x = 1e4f;
  const OwnedState half = merged(a, b);
  for (std::size_t i = 0; i < half.o.size(); ++i) CHECK(half.o[i] == Approx(0.5f * (a.o[i] + b.o[i])).margin(1e-6));
  for (const float x : half.lse) CHECK(x == Approx(1e4f + std::log(2.0f)));
  for (float& x : a.lse) x = -1e4f;
  for (float& x : b.lse) x = -1e4f;
  for (const float x : merged(a, b).lse) CHECK(x == Approx(-1e4f + std::log(2.0f)));
}

TEST_CASE("merge: NaN stays in its query and head") {
  const OwnedState a = random_state(1);
  OwnedState b = random_state(2);
  const OwnedState clean = merged(a, b);
  b.lse[4] = quiet_nan;
  b.o[9 * 17 + 2] = quiet_nan;
  const OwnedState dirty = merged(a, b);
  CHECK(std::isnan(dirty.lse[4]));
  CHECK(std::isnan(dirty.o[4 * 17]));
  CHECK(std::isnan(dirty.o[9 * 17 + 2]));
  for (std::size_t i = 0; i < dirty.o.size(); ++i)
    if (i / 17 != 4 && i != 9 * 17 + 2) CHECK(dirty.o[i] == clean.o[i]);
}

TEST_CASE("merge: many parts at once, none, in place, and on threads", "[threads]") {
  std::vector<OwnedState> owned;
  for (unsigned i = 0; i < 7; ++i) owned.push_back(random_state(10 + i));
  owned.insert(owned.begin() + 3, OwnedState(5, 3, 17));
  std::vector<State<const float>> parts;
  for (const OwnedState& s : owned) parts.push_back(s.view());

  Cpu cpu;
  OwnedState all(5, 3, 17);
  merge(cpu, View<const State<const float>, 1>(parts), all.out());
  OwnedState folded = owned[0];
  for (std::size_t i = 1; i < owned.size(); ++i) folded = merged(folded, owned[i]);
  CHECK(distance(all, folded) < 1e-6);

  Cpu parallel(real_threads(3));
  OwnedState same(5, 3, 17);
  merge(parallel, View<const State<const float>, 1>(parts), same.out());
  CHECK(same.same_bits(all));

  merge(cpu, owned[0].view(), owned[1].view(), owned[0].out());
  CHECK(owned[0].same_bits(merged(random_state(10), random_state(11))));

  OwnedState none = random_state(5);
  merge(cpu, View<const State<const float>, 1>{}, none.out());
  CHECK(none.same_bits(OwnedState(5, 3, 17)));
}

TEST_CASE("merge: unequal shapes are refused by name and nothing is written") {
  Cpu cpu;
  const OwnedState a = random_state(1), b = random_state(2), narrow(5, 3, 16), few(4, 3, 17);
  OwnedState out = random_state(3);
  const OwnedState before = out;
  CHECK_THROWS_WITH(merge(cpu, a.view(), narrow.view(), out.out()), catch_compat::contains("`parts`"));
  CHECK_THROWS_AS(merge(cpu, few.view(), b.view(), out.out()), ArgumentError);
  CHECK_THROWS_WITH(merge(cpu, a.view(), b.view(), State<float>{out.out().o, OwnedState(5, 2, 1).out().lse}),
                    catch_compat::contains("`out.lse`"));
  CHECK(out.same_bits(before));
}

TEST_CASE("merge: any partition of the keys gives attention over all of them, to 2e-6") {
  const Problem<float> whole(2, 3, 32, 24, {517});
  Cpu cpu;
  const DenseCache<float> cache(whole);
  const Result expected = run(cpu, whole, cache.view, {}, attention::Full{});
  for (const std::vector<index_t>& cuts :
       {std::vector<index_t>{0, 1, 517}, {0, 0, 64, 64, 100, 517, 517}, {0, 516, 517}}) {
    std::vector<OwnedState> owned;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      kv::DenseKV<const float> part = cache.view;
      part.keys = part.keys.slice(2, cuts[i], cuts[i + 1] - cuts[i]);
      part.values = part.values.slice(2, cuts[i], cuts[i + 1] - cuts[i]);
      const std::int32_t length[] = {static_cast<std::int32_t>(cuts[i + 1] - cuts[i])};
      part.lengths = View<const std::int32_t, 1>(length, 1);
      OwnedState s(1, 6, 24);
      attend(cpu, attention::Dense{}, whole.views().rows, part, s.out().o, s.out().lse, attention::Full{});
      owned.push_back(s);
    }
    std::vector<State<const float>> parts;
    for (const OwnedState& s : owned) parts.push_back(s.view());
    OwnedState all(1, 6, 24);
    merge(cpu, View<const State<const float>, 1>(parts), all.out());
    CHECK(oracle::relative_error(doubles(all.o), doubles(expected.o)) < 2e-6);
    CHECK(oracle::relative_error(doubles(all.lse), doubles(expected.lse)) < 2e-6);
  }
}

}  // namespace
}  // namespace attention_test
