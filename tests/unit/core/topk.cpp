// top-k against a stable sort, on data full of ties, NaN, infinities and signed zeros.
#include "decant/core/topk.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "threads.hpp"

namespace {

using decant::index_t;
using decant::View;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

struct Element {
  float score;
  bool keep;
  index_t index;  // the position in the flattened rows
};

/// The definition: sort stably by (protected first, score descending), NaN as -inf.
std::vector<index_t> oracle(std::vector<Element> elements, index_t k) {
  for (Element& e : elements) e.score = std::isnan(e.score) ? -inf : e.score;
  std::stable_sort(elements.begin(), elements.end(), [](const Element& a, const Element& b) {
    return a.keep != b.keep ? a.keep : !a.keep && a.score > b.score;
  });
  std::vector<index_t> out;
  for (index_t i = 0; i < k; ++i) out.push_back(elements[static_cast<std::size_t>(i)].index);
  std::sort(out.begin(), out.end());
  return out;
}

/// kind 0: few distinct values and every special one; 1: continuous; 2: any bit pattern; 3: all equal; 4: one binade.
float draw(const decant::Philox& rng, std::uint32_t i, int kind) {
  const std::uint32_t word = rng(i).word[0];
  const float unit = decant::Philox::to_unit(word);
  constexpr float special[] = {0.0f, -0.0f, nan, -nan, inf, -inf, 1.0f, -1.0f, 1e-42f, -1e-42f, 2.0f, 2.0000002f};
  switch (kind) {
    case 0: return special[word % 12];
    case 1: return 8.0f * unit - 4.0f;
    case 2: return std::bit_cast<float>(word);
    case 3: return -3.5f;
    default: return 1.0f + unit;
  }
}

std::vector<index_t> run_top_k(decant::Cpu& cpu, const std::vector<Element>& elements, index_t k, bool masked) {
  std::vector<float> scores;
  std::vector<std::uint8_t> keep;
  for (const Element& e : elements) {
    scores.push_back(e.score);
    keep.push_back(e.keep ? std::uint8_t{255} : std::uint8_t{0});
  }
  std::vector<std::int32_t> out(static_cast<std::size_t>(k) + 1, -7);
  if (masked) decant::top_k(cpu, scores, keep, k, out.data());
  else decant::top_k(cpu, scores, k, out.data());
  REQUIRE(out.back() == -7);  // no store behind the k-th
  return std::vector<index_t>(out.begin(), out.end() - 1);
}

std::vector<Element> elements_of(index_t n, int kind, bool masked) {
  const decant::Philox rng{static_cast<std::uint64_t>(1000 * n + kind)};
  std::vector<Element> elements;
  for (index_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::uint32_t>(i);
    elements.push_back({draw(rng, at, kind), masked && rng(at, 1).word[0] % 5 == 0, i});
  }
  return elements;
}

index_t kept_of(const std::vector<Element>& elements) {
  return std::count_if(elements.begin(), elements.end(), [](const Element& e) { return e.keep; });
}

std::vector<decant::Isa> isas() {
  std::vector<decant::Isa> all{decant::Isa::portable};
  if (decant::best_isa() >= decant::Isa::avx2) all.push_back(decant::Isa::avx2);
  if (decant::best_isa() >= decant::Isa::avx512) all.push_back(decant::Isa::avx512);
  return all;
}

TEST_CASE("score keys order as scores do, NaN as -inf and -0 as +0") {
  const float ascending[] = {-inf, -3e38f, -1.0f, -1e-38f, -1e-45f, 0.0f, 1e-45f, 1e-38f, 0.5f, 1.0f, 3e38f, inf};
  for (std::size_t i = 0; i + 1 < std::size(ascending); ++i) {
    REQUIRE(decant::score_key(ascending[i]) < decant::score_key(ascending[i + 1]));
  }
  REQUIRE(decant::score_key(inf) < decant::protected_key);
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc00000u, 0xffffffffu}) {
    REQUIRE(decant::score_key(std::bit_cast<float>(bits)) == decant::score_key(-inf));
  }
  REQUIRE(decant::score_key(-0.0f) == decant::score_key(0.0f));
  static_assert(decant::score_key(1.0f) > decant::score_key(-1.0f));
  const decant::Philox rng{5};
  for (std::uint32_t i = 0; i < 200000; ++i) {
    const float a = draw(rng, 2 * i, 2);
    const float b = draw(rng, 2 * i + 1, 2);
    if (std::isnan(a) || std::isnan(b)) continue;
    if ((a < b) != (decant::score_key(a) < decant::score_key(b))) FAIL("order of " << a << " and " << b);
  }
}

TEST_CASE("top_k is the stable sort's choice for every size, k and kind of data") {
  for (const decant::Isa isa : isas()) {
    decant::Cpu cpu;
    cpu.set_isa(isa);
    for (index_t n = 0; n <= 300; ++n) {
      const int kind = static_cast<int>(n % 5);
      const bool masked = n % 2 == 1;
      const auto elements = elements_of(n, kind, masked);
      const index_t kept = kept_of(elements);
      for (const index_t k : {kept, kept + (n - kept) / 4, kept + (n - kept) / 2, n > kept ? n - 1 : n, n}) {
        INFO("n = " << n << ", k = " << k << ", kind " << kind << ", " << decant::name(isa));
        REQUIRE(run_top_k(cpu, elements, k, masked) == oracle(elements, k));
      }
    }
    for (const index_t n : {4096, 65537, 100000}) {
      for (int kind = 0; kind < 5; ++kind) {
        const auto elements = elements_of(n, kind, kind % 2 == 0);
        const index_t k = std::max<index_t>(n / 4 + kind, kept_of(elements));
        REQUIRE(run_top_k(cpu, elements, k, true) == oracle(elements, k));
      }
    }
  }
}

TEST_CASE("top_k does not depend on the number of threads", "[threads]") {
  for (int kind = 0; kind < 5; ++kind) {
    const auto elements = elements_of(200003, kind, true);
    const index_t k = kept_of(elements) + 12345;
    decant::Cpu serial;
    const auto expected = run_top_k(serial, elements, k, true);
    for (const int threads : {2, 3, 7}) {
      decant::Cpu cpu(reversed_threads(threads));
      REQUIRE(run_top_k(cpu, elements, k, true) == expected);
    }
  }
}

TEST_CASE("top_k reads strided scores and masks") {
  const auto elements = elements_of(257, 0, true);
  std::vector<float> scores(257 * 3, nan);
  std::vector<std::uint8_t> keep(257 * 2, 1);
  for (std::size_t i = 0; i < 257; ++i) {
    scores[3 * i] = elements[i].score;
    keep[2 * i] = elements[i].keep;
  }
  decant::Cpu cpu;
  std::vector<std::int32_t> out(128);
  decant::top_k(cpu, View<const float, 1>(scores.data(), {257}, {3}),
                View<const std::uint8_t, 1>(keep.data(), {257}, {2}), 128, out.data());
  REQUIRE(std::vector<index_t>(out.begin(), out.end()) == oracle(elements, 128));
}

TEST_CASE("the threshold says the key and how many equal ones to take") {
  decant::Cpu cpu;
  const std::vector<float> scores{1, 3, 2, 2, nan, 2, -inf, 5};
  const auto threshold = [&](index_t k) { return decant::top_k_threshold(cpu, scores, {}, k); };
  REQUIRE(threshold(0) == decant::Threshold{decant::protected_key, 0});
  REQUIRE(threshold(1) == decant::Threshold{decant::score_key(5), 1});
  REQUIRE(threshold(4) == decant::Threshold{decant::score_key(2), 2});
  REQUIRE(threshold(7) == decant::Threshold{decant::score_key(-inf), 1});
  REQUIRE(threshold(8) == decant::Threshold{decant::score_key(-inf), 2});
}

TEST_CASE("top_k_rows counts and top_k_each_row picks the global top", "[threads]") {
  for (const int threads : {1, 3}) {
    for (int kind = 0; kind < 5; ++kind) {
      const index_t rows = 7, columns = 500;
      const std::vector<std::int32_t> lengths{500, 0, 1, 499, 250, 33, 500};
      const bool masked = kind != 1;
      const auto all = elements_of(rows * columns, kind, masked);
      std::vector<Element> present;
      std::vector<float> scores;
      std::vector<std::uint8_t> mask;
      for (const Element& e : all) {
        const bool inside = e.index % columns < lengths[static_cast<std::size_t>(e.index / columns)];
        if (inside) present.push_back(e);
        scores.push_back(inside ? e.score : inf);  // must never be read
        mask.push_back(inside ? e.keep : 1);
      }
      const View<const float, 2> s(scores.data(), rows, columns);
      const View<const std::uint8_t, 2> keep =
          masked ? View<const std::uint8_t, 2>(mask.data(), rows, columns) : View<const std::uint8_t, 2>{};
      const auto n = static_cast<index_t>(present.size());
      decant::Cpu cpu(reversed_threads(threads));
      for (const index_t total : {kept_of(present), (kept_of(present) + n) / 2, n}) {
        std::vector<std::int32_t> counts(rows, -1);
        decant::top_k_rows(cpu, s, lengths, keep, total, counts);
        std::vector<std::int32_t> expected_counts(rows, 0);
        const auto expected = oracle(present, total);
        for (const index_t i : expected) ++expected_counts[static_cast<std::size_t>(i / columns)];
        REQUIRE(counts == expected_counts);

        std::vector<std::int32_t> picked(rows * columns, -7);
        decant::top_k_each_row(cpu, s, lengths, keep, counts, View<std::int32_t, 2>(picked.data(), rows, columns));
        std::vector<index_t> flat;
        for (index_t r = 0; r < rows; ++r) {
          for (index_t i = 0; i < columns; ++i) {
            const std::int32_t token = picked[static_cast<std::size_t>(r * columns + i)];
            if (i < counts[static_cast<std::size_t>(r)]) flat.push_back(r * columns + token);
            else REQUIRE(token == -7);
          }
        }
        REQUIRE(flat == expected);
      }
    }
  }
}

TEST_CASE("top_k refuses counts that do not fit, before it writes") {
  using catch_compat::contains;
  decant::Cpu cpu;
  const std::vector<float> scores{1, 2, 3};
  const std::vector<std::uint8_t> keep{1, 1, 0};
  std::int32_t out[3] = {-7, -7, -7};
  REQUIRE_THROWS_WITH(decant::top_k(cpu, scores, 4, out),
                      "decant::top_k: argument `k`: expected 0 (the protected) to 3 (all), got 4");
  REQUIRE_THROWS_WITH(decant::top_k(cpu, scores, -1, out), contains("got -1"));
  REQUIRE_THROWS_WITH(decant::top_k(cpu, scores, keep, 1, out),
                      "decant::top_k: argument `k`: expected 2 (the protected) to 3 (all), got 1");
  REQUIRE_THROWS_AS(decant::top_k(cpu, scores, std::vector<std::uint8_t>(2), 1, out), decant::ArgumentError);
  const View<const float, 2> rows(scores.data(), 1, 3);
  std::vector<std::int32_t> counts{-7};
  REQUIRE_THROWS_WITH(decant::top_k_rows(cpu, rows, std::vector<std::int32_t>{4}, {}, 1, counts),
                      "decant::top_k_rows: argument `lengths`: expected 0 to the 3 columns of scores, got 4");
  REQUIRE_THROWS_WITH(decant::top_k_rows(cpu, rows, std::vector<std::int32_t>{2}, {}, 3, counts),
                      "decant::top_k_rows: argument `total`: expected 0 (the protected) to 2 (all), got 3");
  REQUIRE_THROWS_WITH(decant::top_k_each_row(cpu, rows, std::vector<std::int32_t>{3}, {}, std::vector<std::int32_t>{2},
                                             View<std::int32_t, 2>(out, 1, 1)),
                      contains("argument `out`: expected room for 2 indices in a row, got 1"));
  REQUIRE(out[0] == -7);
  REQUIRE(counts[0] == -7);
  REQUIRE(cpu.workspace().used() == 0);
}

}  // namespace
