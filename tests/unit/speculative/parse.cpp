// PARSE: one packed forward is a forward for each prefix, masks by their definition, decisions, costs.
#include <decant/attention/dense.hpp>
#include <decant/kv/dense_kv.hpp>
#include <decant/speculative/parse.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch_compat.hpp"

namespace parse_tests {

using namespace decant;
using namespace decant::speculative;
using Ends = std::vector<std::int32_t>;

constexpr Parse two{};
constexpr Parse one{.schedule = Parse::Schedule::one_pass};
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float inf = std::numeric_limits<float>::infinity();

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// What a row is: a token of the sequence that its prefix and the suffix would be, by the definition.
struct Row {
  index_t copy;   // -1: the draft
  index_t token;  // of the draft, or of the suffix
};

std::vector<Row> rows_of(const ParsePass& pass) {
  std::vector<Row> rows;
  for (index_t t = 0; t < pass.draft && !pass.draft_cached; ++t) rows.push_back({-1, t});
  for (index_t i = 0; i < pass.ends.extent(0); ++i)
    for (index_t j = 0; j < pass.suffix; ++j) rows.push_back({i, j});
  return rows;
}

bool sees(const ParsePass& pass, const Row& row, index_t key) {
  std::vector<Row> keys;
  for (index_t t = 0; t < pass.prompt; ++t) keys.push_back({-2, t});
  for (index_t t = 0; t < pass.draft; ++t) keys.push_back({-1, t});
  for (index_t i = 0; i < pass.ends.extent(0); ++i)
    for (index_t j = 0; j < pass.suffix; ++j) keys.push_back({i, j});
  const Row& k = keys[at(key)];
  if (k.copy == -2) return true;
  if (row.copy == -1) return k.copy == -1 && k.token <= row.token;
  if (k.copy == -1) return k.token < pass.ends[row.copy];
  return k.copy == row.copy && k.token <= row.token;
}

TEST_CASE("PARSE: every bit of the masks, counts of rows and bits, positions", "[speculative]") {
  for (const Ends& ends : {Ends{5}, Ends{1, 2, 3}, Ends{3, 7, 12, 13}}) {
    for (const index_t prompt : {0, 4}) {
      for (const Parse& policy : {one, two}) {
        const index_t s = 3;
        const auto n = static_cast<index_t>(ends.size());
        const index_t draft = ends.back();
        const ParseLayout layout = build(policy, prompt, ends, s);
        CHECK(layout.passes == (policy == one || n == 1 ? 1 : 2));
        for (int i = 0; i < layout.passes; ++i) {
          const ParsePass& pass = layout.pass[i];
          const std::vector<Row> rows = rows_of(pass);
          const index_t keys = prompt + draft + pass.ends.extent(0) * s;
          REQUIRE(pass.rows() == static_cast<index_t>(rows.size()));
          REQUIRE(pass.keys() == keys);
          std::vector<std::uint8_t> bits(at((pass.rows() * keys + 7) / 8), 0xff);
          parse_bits(pass, bits);
          const attention::BitMask packed{View<const std::uint8_t, 1>(bits)};
          const ParseMask mask{pass};
          index_t set = 0;
          bool same = true;
          for (index_t r = 0; r < pass.rows(); ++r) {
            const Row& row = rows[at(r)];
            CHECK(pass.position(r) == prompt + (row.copy < 0 ? 0 : pass.ends[row.copy]) + row.token);
            for (index_t k = 0; k < keys; ++k) {
              const bool expected = sees(pass, row, k);
              const attention::KeyRange range = mask.range(0, r, pass.rows(), keys);
              const attention::KeyRange whole = mask.whole(0, r, pass.rows(), keys);
              same = same && packed.allowed(0, r, k, pass.rows(), keys) == expected;
              same = same && pass.sees(r, k) == expected;
              same = same && (!expected || (k >= range.first && k < range.last));
              same = same && (k >= whole.last || expected);
              set += expected ? 1 : 0;
            }
          }
          CHECK(same);
          index_t formula = pass.draft_cached ? 0 : draft * prompt + draft * (draft + 1) / 2;
          for (index_t c = 0; c < pass.ends.extent(0); ++c) {
            formula += s * (prompt + pass.ends[c]) + s * (s + 1) / 2;
            CHECK(rows[at(pass.verdict_row(c))].copy == c);
            CHECK(rows[at(pass.verdict_row(c))].token == s - 1);
          }
          CHECK(set == formula);
          if (pass.draft_cached) continue;
          // The same forest by attention's own helpers.
          std::vector<std::int32_t> parents(at(pass.rows())), positions(parents);
          attention::parents_from_packed_prefixes(pass.packed(), parents);
          attention::tree_positions(parents, prompt, positions);
          std::vector<std::uint64_t> words(at(attention::tree_words(pass.rows())));
          attention::tree_mask_from_parents(parents, words);
          const attention::TreeMask tree{View<const std::uint64_t, 1>(words)};
          for (index_t r = 0; r < pass.rows(); ++r) {
            same = same && positions[at(r)] == pass.position(r);
            for (index_t k = 0; k < tree.range(0, r, pass.rows(), keys).last; ++k)
              same = same && tree.allowed(0, r, k, pass.rows(), keys) == pass.sees(r, k);
          }
          CHECK(same);
        }
        if (policy == one) CHECK(layout.pass[0].keys() == prompt + draft + n * s);
      }
    }
  }
}

/// Two layers of attention over tokens at positions; what a token brings depends on both.
using Hidden = std::vector<std::vector<double>>;

Hidden embedded(const std::vector<std::pair<index_t, index_t>>& tokens) {  // (token, position)
  Hidden x;
  for (const auto& [token, position] : tokens) {
    x.emplace_back();
    for (int d = 0; d < 8; ++d) {
      x.back().push_back(std::sin(0.7 * static_cast<double>(token * (d + 1))) +
                         std::cos(0.3 * static_cast<double>(position) * (d + 1)));
    }
  }
  return x;
}

template <class Sees>
Hidden forward(Hidden x, const Sees& sees_key) {
  for (int layer = 0; layer < 2; ++layer) {
    Hidden y = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::vector<double> sum(8);
      double total = 0;
      for (std::size_t j = 0; j < x.size(); ++j) {
        if (!sees_key(i, j)) continue;
        double dot = 0;
        for (std::size_t d = 0; d < 8; ++d) dot += x[i][d] * x[j][(d + 3) % 8];
        const double w = std::exp(dot);
        total += w;
        for (std::size_t d = 0; d < 8; ++d) sum[d] += w * x[j][d];
      }
      for (std::size_t d = 0; d < 8; ++d) y[i][d] = x[i][d] + sum[d] / total;
    }
    x = y;
  }
  return x;
}

TEST_CASE("PARSE: a packed forward is a forward for each prefix", "[speculative]") {
  const Ends ends = {2, 5, 6};
  const index_t prompt = 4, draft = 6, s = 2;
  using Tokens = std::vector<std::pair<index_t, index_t>>;
  for (const Parse& policy : {one, two}) {
    const ParseLayout layout = build(policy, prompt, ends, s);
    for (int i = 0; i < layout.passes; ++i) {
      const ParsePass& pass = layout.pass[i];
      Tokens tokens;
      for (index_t t = 0; t < prompt + (pass.draft_cached ? draft : 0); ++t) tokens.push_back({t, t});
      const index_t cached = static_cast<index_t>(tokens.size());
      for (index_t r = 0; r < pass.rows(); ++r) {
        const index_t t = pass.draft_token(r);
        tokens.push_back({t >= 0 ? prompt + t : 100 + pass.suffix_token(r), pass.position(r)});
      }
      const Hidden together = forward(embedded(tokens), [&](std::size_t row, std::size_t key) {
        const auto r = static_cast<index_t>(row);
        const auto k = static_cast<index_t>(key);
        return r < cached ? k <= r : pass.sees(r - cached, k);
      });
      for (index_t c = 0; c < pass.ends.extent(0); ++c) {
        Tokens alone;
        for (index_t t = 0; t < prompt + pass.ends[c]; ++t) alone.push_back({t, t});
        for (index_t j = 0; j < s; ++j) alone.push_back({100 + j, static_cast<index_t>(alone.size())});
        const Hidden separate = forward(embedded(alone), [](std::size_t r, std::size_t k) { return k <= r; });
        for (std::size_t d = 0; d < 8; ++d) {
          CHECK(together[at(cached + pass.verdict_row(c))][d] == Approx(separate.back()[d]).epsilon(1e-12));
        }
      }
    }
  }
}

TEST_CASE("PARSE: attend() takes a pass as its mask, as bits too", "[speculative]") {
  const Ends ends = {30, 64, 70};
  for (const int i : {0, 1}) {
    const ParseLayout layout = build(two, 50, ends, 5);
    const ParsePass pass = i == 0 ? build(one, 50, ends, 5).pass[0] : layout.pass[1];
    const index_t m = pass.rows(), n = pass.keys(), d = 16;
    std::vector<float> q(at(m * d)), k(at(n * d)), v(k), out(q), expected(q);
    for (std::size_t e = 0; e < q.size(); ++e) q[e] = std::sin(1.3f * static_cast<float>(e));
    for (std::size_t e = 0; e < k.size(); ++e) {
      k[e] = std::cos(0.9f * static_cast<float>(e));
      v[e] = std::sin(0.37f * static_cast<float>(e + 5));
    }
    std::int32_t length = static_cast<std::int32_t>(n);
    const kv::DenseKV<const float> cache{View<const float, 4>(k.data(), 1, 1, n, d),
                                         View<const float, 4>(v.data(), 1, 1, n, d),
                                         View<const std::int32_t, 1>(&length, 1)};
    std::vector<std::uint8_t> bits(at((m * n + 7) / 8));
    parse_bits(pass, bits);
    Cpu cpu;
    const auto run = [&](const auto& mask, std::int32_t rows, std::vector<float>& to) {
      const std::vector<std::int32_t> indptr = {0, rows};
      attend(cpu, attention::Dense{},
             attention::Queries{View<const float, 3>(q.data(), rows, 1, d), View<const std::int32_t, 1>(indptr)}, cache,
             View<float, 3>(to.data(), rows, 1, d), {}, mask);
    };
    const auto rows = static_cast<std::int32_t>(m);
    run(ParseMask{pass}, rows, out);
    run(attention::BitMask{View<const std::uint8_t, 1>(bits)}, rows, expected);
    for (std::size_t e = 0; e < out.size(); ++e) REQUIRE(out[e] == Approx(expected[e]).margin(1e-6));
    CHECK_THROWS_AS(run(ParseMask{pass}, rows - 1, out), ArgumentError);
  }
}

TEST_CASE("PARSE: where prefixes end", "[speculative]") {
  CHECK(parse_grid(0).empty());
  CHECK(parse_grid(5) == Ends{5});
  CHECK(parse_grid(32) == Ends{32});
  CHECK(parse_grid(33) == Ends{32, 33});
  CHECK(parse_grid(512).size() == 16);
  CHECK(parse_grid(3, 1) == Ends{1, 2, 3});
  // Line breaks (7): too early, fitting, and none for too long.
  const std::vector<std::int32_t> text = {1, 7, 1, 1, 7, 1, 1, 1, 1, 1, 1, 7, 7, 7, 7, 1};
  const auto breaks = [](std::int32_t token) { return token == 7; };
  CHECK(parse_delimited(View<const std::int32_t, 1>(text), breaks, 3, 5) == Ends{5, 10, 13, 16});
  CHECK(parse_delimited(View<const std::int32_t, 1>(), breaks).empty());
  CHECK(parse_delimited(View<const std::int32_t, 1>(text), breaks) == Ends{16});
  for (const Ends& ends : {parse_grid(100, 7), parse_delimited(View<const std::int32_t, 1>(text), breaks, 1, 2)}) {
    CHECK_NOTHROW(build(two, 3, ends, 2));
  }
}

TEST_CASE("PARSE: scores of verdicts", "[speculative]") {
  const std::vector<float> logits = {1, 2, 3, 0, -inf, -inf, 5, 5, 1000, 0, 1000, 0, nan, 1, 1, 1, -inf, -inf, -inf, 4};
  const std::vector<std::int32_t> correct = {0, 1}, incorrect = {2};
  std::vector<float> scores(5);
  parse_scores(View<const float, 2>(logits.data(), 5, 4), correct, incorrect, scores);
  CHECK(scores[0] == Approx(std::log(std::exp(1.0) + std::exp(2.0)) - 3));
  CHECK(scores[1] == -inf);
  CHECK(scores[2] == 0);
  CHECK(std::isnan(scores[3]));
  CHECK(std::isnan(scores[4]));  // neither verdict is possible
  const std::vector<std::int32_t> outside = {4}, none;
  const View<const float, 2> rows(logits.data(), 5, 4);
  CHECK_THROWS_AS(parse_scores(rows, outside, incorrect, scores), ArgumentError);
  CHECK_THROWS_AS(parse_scores(rows, correct, none, scores), ArgumentError);
}

TEST_CASE("PARSE: decisions", "[speculative]") {
  const Ends ends = {10, 20, 30, 40};
  const auto tokens = [&](const std::vector<float>& scores, const Parse& policy = {}) {
    return decide(policy, scores, ends).tokens;
  };
  const Parse last{.mode = Parse::Mode::last_success};
  CHECK(tokens({1, 1, 1, 1}) == 40);
  CHECK(tokens({-1, -1, -1, 1}) == 40);  // the whole decides
  CHECK(tokens({1, 1, -1, -1}) == 20);
  CHECK(tokens({1, -1, 1, -1}) == 10);
  CHECK(tokens({1, -1, 1, -1}, last) == 30);
  CHECK(tokens({-1, 1, 1, -1}) == 0);
  CHECK(tokens({1, nan, 1, nan}) == 10);
  CHECK(tokens({1, 1, 1}) == 30);  // the whole was refused before
  CHECK(tokens({0, 0, 0, 0}) == 40);  // confidence 1/2, at the default threshold
  CHECK(tokens({0.8f, 0.8f, 0.9f, 0.8f}, {.threshold = 0.7}) == 0);  // logit(0.7) = 0.847
  CHECK(tokens({nan, -inf, 3, -5}, {.threshold = 0}) == 40);
  CHECK(tokens({9, inf, 9, 9}, {.threshold = 1, .mode = Parse::Mode::last_success}) == 20);
  CHECK(decide({}, std::vector<float>{1, 1, -1, -1}, ends) == ParseDecision{2, 20, false});
  CHECK(decide({}, std::vector<float>{1, 1, 1, 1}, ends) == ParseDecision{4, 40, true});
  CHECK(decide({}, View<const float, 1>(), View<const std::int32_t, 1>()) == ParseDecision{});
  const Ends short_draft = {7};
  CHECK(decide({}, std::vector<float>{-1}, short_draft).tokens == 0);
  CHECK(decide({}, View<const float, 1>(), short_draft).tokens == 0);
  CHECK_THROWS_AS(tokens({1, 1}), ArgumentError);
  CHECK_THROWS_AS(tokens({1, 1, 1, 1}, {.threshold = 1.5}), ArgumentError);
  CHECK_THROWS_AS(tokens({1, 1, 1, 1}, {.threshold = std::nan("")}), ArgumentError);

  // Both schedules say the same; a higher threshold never lengthens what stands up to the first failure.
  std::uint32_t state = 1;
  for (int trial = 0; trial < 10000; ++trial) {
    std::vector<float> scores;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525u + 1013904223u;
      scores.push_back((state >> 28) == 0 ? nan : static_cast<float>(state >> 8) * 0x1p-22f - 2);
    }
    for (const Parse& policy : {Parse{}, last, Parse{.threshold = 0.8}}) {
      const ParseDecision together = decide(policy, scores, ends);
      const ParseDecision apart = parse_accepts(policy, scores[3])
                                      ? ParseDecision{4, 40, true}
                                      : decide(policy, View<const float, 1>(scores.data(), 3), ends);
      REQUIRE(together == apart);
    }
    index_t before = 40;
    for (const double threshold : {0.0, 0.2, 0.5, 0.7, 0.9, 1.0}) {
      const index_t now = tokens(scores, {.threshold = threshold});
      REQUIRE(now <= before);
      before = now;
    }
  }
}

TEST_CASE("PARSE: layouts that do not fit are refused", "[speculative]") {
  const auto refused = [](index_t prompt, const Ends& ends, index_t suffix, const char* argument) {
    CHECK_THROWS_WITH(build(two, prompt, ends, suffix), catch_compat::contains(argument));
  };
  refused(-1, {4}, 2, "`prompt`");
  refused(1, {4}, 0, "`suffix`");
  refused(1, {4, 4}, 2, "`boundaries`");
  refused(1, {0, 4}, 2, "`boundaries`");
  refused(0x7fffffff, {4}, 2, "`suffix`");
  refused(1, {1, 2, 3}, 0x7ffffffe, "`suffix`");
  CHECK(build(two, 5, View<const std::int32_t, 1>(), 3).passes == 0);
  const Ends three = {3};
  const ParsePass pass = build(two, 5, three, 2).pass[0];
  std::vector<std::uint8_t> few(3);
  CHECK_THROWS_AS(parse_bits(pass, few), ArgumentError);
  CHECK_THROWS_AS(parse_grid(10, 0), ArgumentError);
  const auto always = [](std::int32_t) { return true; };
  CHECK_THROWS_AS(parse_delimited(View<const std::int32_t, 1>(), always, 8, 7), ArgumentError);
}

TEST_CASE("PARSE: rows and seconds", "[speculative]") {
  const Ends ends = parse_grid(512, 32);
  const ParseLayout together = build(one, 100, ends, 12);
  const ParseLayout apart = build(two, 100, ends, 12);
  CHECK(together.pass[0].rows() == 704);
  CHECK(apart.pass[0].rows() == 524);
  CHECK(apart.pass[1].rows() == 180);
  index_t separate = 0;
  for (const std::int32_t end : ends) separate += end + 12;
  CHECK(separate == 4544);
  CHECK(parse_rows(512, 16, 12, one.schedule, 0.3) == 704);
  CHECK(parse_rows(512, 16, 12, two.schedule, 0.25) == 524 + 0.75 * 180);
  CHECK(parse_rows(512, 1, 12, two.schedule, 0) == 524);
  CHECK(parse_rows(0, 0, 12, two.schedule, 0) == 0);

  // The definition, answer by answer: accepted as a whole, or revised from where it is good.
  const ParseCosts costs{0.01, 0.05, 0.2, 0.1};
  const double kept[] = {0.5, 0.25, 0};
  double seconds = 0;
  for (int i = 0; i < 4; ++i) {
    seconds += 512 * 0.01 + 0.2;
    if (i < 3) seconds += 0.1 + (1 - kept[i]) * 512 * 0.05;
  }
  CHECK(parse_speedup(costs, 512, 0.25, 0.25) == Approx(4 * 512 * 0.05 / seconds).epsilon(1e-12));
  const ParseCosts free_passes{0.01, 0.05, 0, 0};
  CHECK(parse_speedup(free_passes, 512, 1, 0) == Approx(5).epsilon(1e-12));
  CHECK(parse_speedup(free_passes, 512, 0.2, 0.5) == Approx(1 / (0.2 + 0.8 * 0.5)).epsilon(1e-12));
  // Where drafting begins to pay.
  CHECK(parse_pays(free_passes, 0.3, 0) == (parse_speedup(free_passes, 512, 0.3, 0) > 1));
  CHECK(parse_pays(free_passes, 0.1, 0) == (parse_speedup(free_passes, 512, 0.1, 0) > 1));
  CHECK(parse_pays(free_passes, 0.1, 0.2));
  CHECK_FALSE(parse_pays(free_passes, 0.1, 0.1));
}

}  // namespace parse_tests
