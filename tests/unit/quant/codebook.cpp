// Codebook2x16 as a format: its bytes, its selectors, its scales, and its fit. (The laws of all formats are in
// conformance/weight_format.cpp.)
#include <cmath>
#include <set>

#include <decant/quant/codebook.hpp>
#include <decant/quant/if4.hpp>

#include "catch_compat.hpp"
#include "unit/quant/quantized.hpp"

namespace codebook_test {

using namespace quant_test;
using decant::bf16;
using decant::fp16;
using decant::fp8_e4m3;
using quant::Codebook2x16;

static_assert(quant::Codes<Codebook2x16<>> && quant::Codes<Codebook2x16<fp8_e4m3>>);
static_assert(quant::Grid<Codebook2x16<>, Cpu>);

/// Two tables with nothing in common.
template <class F>
typename F::Layer some_layer(int refits = 0) {
  float tables[2][16];
  for (int c = 0; c < 16; ++c) {
    const float x = (static_cast<float>(c) - 7.5f) / 7.5f;
    tables[0][c] = c == 8 ? 0.0f : 0.65f * x;
    tables[1][c] = c == 8 ? 0.0f : 0.65f * x * (0.6f + 0.4f * std::abs(x));
  }
  return F::of_tables(tables, F::two_scales ? 0.25f : 1.0f, refits);
}

TEST_CASE("Bits per weight of two tables", "[quant][codebook]") {
  const auto bits = [](const auto& f, index_t rows, index_t cols) {
    return 8.0 * static_cast<double>(packed_bytes(f, rows, cols)) / static_cast<double>(rows * cols);
  };
  // Rows of 8192 have no padding.
  constexpr index_t rows = 64, cols = 8192;
  constexpr double n = rows * cols;
  CHECK(bits(Codebook2x16<>{}, rows, cols) == 4 + 16.0 / 128 + 8 * 64 / n);
  CHECK(bits(Codebook2x16<>{.select = 16}, rows, cols) == 4 + 16.0 / 128 + 1.0 / 16 + 8 * 64 / n);
  CHECK(bits(Codebook2x16<>{.group = 64}, rows, cols) == 4 + 16.0 / 64 + 8 * 64 / n);
  CHECK(bits(Codebook2x16<fp8_e4m3>{}, rows, cols) == 4 + 8.0 / 16 + 8 * 128 / n);
}

template <class F>
void check_every_code(const F& f, index_t cols) {
  const auto layer = some_layer<F>();
  const index_t groups = f.groups(cols);
  std::vector<std::byte> row(at(f.row_bytes(cols)));
  const index_t per_group = f.group / f.select;
  const auto group_of = [&](index_t j) {
    typename F::Group g{static_cast<float>(j % 15 + 1) * 0.5f, 0};
    for (index_t i = 0; i < per_group && j * f.group + i * f.select < cols; ++i)
      g.second |= static_cast<std::uint32_t>((j + i) % 3 == 0) << i;
    return g;
  };
  for (index_t k = 0; k < cols; ++k) f.store_code(static_cast<std::uint8_t>(k * 7 % 16), row.data(), cols, k);
  for (index_t j = 0; j < groups; ++j) f.store_group(layer, group_of(j), row.data(), cols, j);
  int wrong = 0;
  for (index_t k = 0; k < cols; ++k) {
    const index_t j = k / f.group_size(cols);
    const index_t i = k % f.group_size(cols);
    const auto g = f.load_group(layer, row.data(), cols, j);
    const auto expected = group_of(j);
    wrong += g.scale != expected.scale || g.second != expected.second;
    const unsigned table = expected.second >> (i / f.select) & 1u;
    const auto code = f.load_code(row.data(), cols, k);
    wrong += code != k * 7 % 16;
    wrong += f.value(layer, g, i, code) != layer.scale * expected.scale * layer.table[table][code];
  }
  CHECK(wrong == 0);
}

TEST_CASE("Codes, scales and selectors come back", "[quant][codebook]") {
  for (const index_t cols : {1, 15, 16, 127, 128, 129, 300, 1024}) {
    CAPTURE(cols);
    check_every_code(Codebook2x16<>{}, cols);
    check_every_code(Codebook2x16<>{.select = 16}, cols);
    check_every_code(Codebook2x16<>{.group = 48, .select = 8}, cols);
    check_every_code(Codebook2x16<>{.group = 32, .select = 1}, cols);
    check_every_code(Codebook2x16<fp8_e4m3>{}, cols);
    check_every_code(Codebook2x16<fp8_e4m3>{.group = 16, .select = 4}, cols);
  }
}

TEST_CASE("A layer's tables come back as bf16, without negative zero", "[quant][codebook]") {
  const Codebook2x16<fp8_e4m3> f;
  float tables[2][16];
  for (int c = 0; c < 32; ++c) tables[c / 16][c % 16] = static_cast<float>(c % 16 - 8) * 0.07f;
  tables[1][8] = -0.0f;
  const auto layer = f.of_tables(tables, 0.3f);
  std::vector<std::byte> bytes(at(f.layer_bytes()));
  f.store_layer(layer, bytes.data());
  const auto back = f.load_layer(bytes.data());
  CHECK(back.scale == 0.3f);
  for (int c = 0; c < 32; ++c) {
    CHECK(back.table[c / 16][c % 16] == static_cast<float>(bf16(tables[c / 16][c % 16])));
    CHECK(back.table[c / 16][c % 16] == layer.table[c / 16][c % 16]);
    CHECK(back.limit[c / 16][c % 16] == layer.limit[c / 16][c % 16]);
  }
  CHECK_FALSE(std::signbit(back.table[1][8]));
}

template <class F>
void check_flip(const F& format, std::size_t sign_byte, std::byte sign, index_t first, index_t last) {
  Quantized<F> q(format, Matrix(2, 256));
  const std::vector<float> before = q.values();
  const auto layer = q.packed().layer();
  q.packed().row(1)[sign_byte] ^= sign;
  const std::vector<float> after = q.values();
  int changed = 0;
  for (index_t i = 0; i < 512; ++i) {
    const bool inside = i >= 256 + first && i < 256 + last;
    if (!inside) CHECK(after[at(i)] == before[at(i)]);
    changed += after[at(i)] != before[at(i)];
    if (inside) {
      const auto g = q.group(1, (i - 256) / format.group);
      const unsigned table = g.second >> ((i - 256) % format.group / format.select) & 1u;
      CHECK(after[at(i)] == layer.scale * g.scale * layer.table[table][q.code(1, i - 256)]);
    }
  }
  CHECK(changed > (last - first) / 2);
}

TEST_CASE("A selector changes its selection group alone", "[quant][codebook]") {
  check_flip(Codebook2x16<>{}, at(Codebook2x16<>{}.scales_at(256)) + 3, std::byte{0x80}, 128, 256);
  const Codebook2x16<fp8_e4m3> small;
  check_flip(small, at(small.scales_at(256)) + 5, std::byte{0x80}, 80, 96);
  const Codebook2x16<> part{.select = 16};
  check_flip(part, at(part.selectors_at(256)) + 1, std::byte{0x10}, 192, 208);
}

TEST_CASE("The nearest of 16 entries", "[quant][codebook]") {
  float table[16], limit[16];
  for (int c = 0; c < 16; ++c) table[c] = static_cast<float>(c * c) / 64 - 1 + (c == 5 ? 0.125f : 0.0f);
  quant::detail::set_limits(table, limit);
  const auto by_definition = [&](float u) {
    int best = 0;
    for (int c = 1; c < 16; ++c)
      if (std::abs(static_cast<double>(u) - static_cast<double>(table[c])) <
          std::abs(static_cast<double>(u) - static_cast<double>(table[best])))
        best = c;
    return best;
  };
  int wrong = 0;
  for (int i = -2000; i < 4000; ++i) {
    const float u = static_cast<float>(i) / 1024;
    wrong += quant::detail::nearest_entry(limit, u) != by_definition(u);
  }
  CHECK(wrong == 0);
  CHECK(quant::detail::nearest_entry(limit, -1e30f) == 0);
  CHECK(quant::detail::nearest_entry(limit, 1e30f) == 15);
  // A table of fewer entries repeats its last: no code above it.
  for (int c = 5; c < 16; ++c) table[c] = table[4];
  quant::detail::set_limits(table, limit);
  CHECK(quant::detail::nearest_entry(limit, 1e30f) == 4);
  CHECK(quant::detail::nearest_entry(limit, table[4]) == 4);
  CHECK(quant::detail::nearest_entry(limit, table[3]) == 3);
}

TEST_CASE("fit chooses the table with the lesser weighted error", "[quant][codebook]") {
  const Matrix m(40, 128);
  std::vector<float> importance;
  for (index_t k = 0; k < 128; ++k) importance.push_back(static_cast<float>(std::exp(gaussian(k, 3))));
  for (const index_t select : {128, 16, 4}) {
    const Codebook2x16<> f{.select = select};
    const auto layer = some_layer<Codebook2x16<>>();
    int wrong = 0;
    std::set<std::uint32_t> seen;
    for (index_t r = 0; r < m.rows; ++r) {
      const float* const w = m.w.data() + r * 128;
      const auto g = f.fit(layer, w, importance.data(), 128);
      seen.insert(g.second);
      for (index_t first = 0; first < 128; first += select) {
        double error[2] = {};
        for (unsigned table = 0; table < 2; ++table)
          for (index_t k = first; k < first + select; ++k) {
            double least = 1e30;
            for (int c = 0; c < 16; ++c)
              least = std::min(least, std::pow(static_cast<double>(w[k]) - static_cast<double>(g.scale) *
                                                       static_cast<double>(layer.table[table][c]), 2));
            error[table] += static_cast<double>(importance[at(k)]) * least;
          }
        const unsigned chosen = g.second >> (first / select) & 1u;
        wrong += error[chosen] > error[1 - chosen] * (1 + 1e-6);
      }
    }
    CHECK(wrong == 0);
    CHECK(seen.size() > 1);
  }
}

TEST_CASE("A refitted scale never errs more, and often less", "[quant][codebook]") {
  const Matrix m(50, 128);
  std::vector<float> importance;
  for (index_t k = 0; k < 128; ++k) importance.push_back(static_cast<float>(std::exp(gaussian(k, 4))));
  const auto check = [&](const auto& f, int at_least) {
    using F = std::remove_cvref_t<decltype(f)>;
    const auto plain = some_layer<F>();
    const auto refit = some_layer<F>(4);
    int less = 0;
    for (index_t r = 0; r < m.rows; ++r) {
      const float* const w = m.w.data() + r * 128;
      const index_t n = f.group;
      const auto error = [&](const typename F::Group& g) {
        return quant::detail::group_error(f, quant::BlockError::mse, plain, g, w, importance.data(), n);
      };
      const auto first = f.fit(plain, w, importance.data(), n);
      const auto second = f.fit(refit, w, importance.data(), n);
      CHECK(error(second) <= error(first) * (1 + 1e-6));
      less += error(second) < 0.99 * error(first);
      CHECK(second.scale == F::stored(second.scale));
    }
    CHECK(less >= at_least);
  };
  check(Codebook2x16<>{}, 25);
  check(Codebook2x16<>{.select = 16}, 25);
  check(Codebook2x16<fp8_e4m3>{}, 2);  // E4M3 has few other scales near
}

TEST_CASE("Without a fit the tables are those of If4", "[quant][codebook]") {
  const Matrix m(8, 256);
  std::vector<float> importance;
  for (index_t k = 0; k < 256; ++k) importance.push_back(static_cast<float>(std::exp(gaussian(k, 5))));
  quant::Calibration c;
  c.importance = View<const float, 1>(importance);
  const Quantized<quant::If4> theirs(quant::If4{}, m, c);
  const Quantized<Codebook2x16<fp8_e4m3>> ours(Codebook2x16<fp8_e4m3>{}, m, c);
  const auto layer = ours.packed().layer();
  const std::vector<float> values = theirs.values();
  int other_table = 0, other_value = 0, seconds = 0;
  for (index_t i = 0; i < 8 * 256; ++i) {
    const auto g = theirs.group(i / 256, i % 256 / 16);
    const auto mine = ours.group(i / 256, i % 256 / 16);
    CHECK(std::abs(g.scale) == mine.scale);
    seconds += static_cast<int>(mine.second);
    // A half step, the 16th entry, may make integers better where If4 has them not.
    const std::uint8_t code = ours.code(i / 256, i % 256);
    const bool half_step = mine.second == 1 && layer.table[1][code] == layer.table[1][8];
    other_table += (g.scale < 0) != (mine.second == 1);
    if ((g.scale < 0) != (mine.second == 1) || half_step) continue;
    const float value = ours.format.value(layer, mine, i % 16, code);
    other_value += std::abs(value - values[at(i)]) > 4e-7f * std::abs(value);
  }
  CHECK(other_value == 0);
  CHECK(other_table < 8 * 256 / 8);
  CHECK(seconds > 200);
}

TEST_CASE("Extremes of scale", "[quant][codebook]") {
  const Codebook2x16<> f;
  const auto layer = some_layer<Codebook2x16<>>(4);
  const std::vector<float> zero(128, -0.0f);
  const auto none = f.fit(layer, zero.data(), nullptr, 128);
  CHECK(none.scale == 0);
  CHECK(none.second == 0);
  const std::uint8_t code = f.nearest(layer, none, 3, 0.0f);
  CHECK(layer.table[0][code] == 0);
  for (std::uint8_t c = 0; c < 16; ++c) CHECK_FALSE(std::signbit(f.value(layer, none, 0, c)));
  std::vector<std::byte> row(at(f.row_bytes(128)));
  f.store_group(layer, {0, 1}, row.data(), 128, 0);
  CHECK(f.load_group(layer, row.data(), 128, 0).second == 0);

  // Tiny and huge weights: a scale that fp16 has.
  for (const float w : {1e-12f, 3e-8f, 1e-5f, 6e4f, 1e9f}) {
    std::vector<float> group(128, w);
    const auto g = f.fit(layer, group.data(), nullptr, 128);
    CHECK(g.scale >= 0x1p-24f);
    CHECK(g.scale <= 65504.0f);
  }
  const Codebook2x16<fp8_e4m3> small;
  const auto matrix = small.layer(Matrix(1, 16, [](index_t) { return 3.0; }).view());
  std::vector<float> larger(16, 90.0f);
  CHECK(small.fit(matrix, larger.data(), nullptr, 16).scale == 448);
  const auto nothing = small.layer(Matrix(1, 16, [](index_t) { return 0.0; }).view());
  CHECK(small.fit(nothing, larger.data(), nullptr, 16).scale == 0);
}

TEST_CASE("Codebook2x16 names what it cannot be", "[quant][codebook]") {
  CHECK_NOTHROW(validate(Codebook2x16<>{}, 1));
  CHECK_THROWS_WITH(validate(Codebook2x16<>{}, 0), catch_compat::contains("cols"));
  CHECK_THROWS_WITH(validate(Codebook2x16<>{.group = 0}, 8), catch_compat::contains("group"));
  CHECK_THROWS_WITH(validate(Codebook2x16<>{.select = 48}, 8), catch_compat::contains("select"));
  CHECK_THROWS_WITH(validate(Codebook2x16<>{.select = 2}, 8), catch_compat::contains("at most 32"));
  CHECK_THROWS_AS(validate(Codebook2x16<>{.select = 0}, 8), decant::ArgumentError);
}

}  // namespace codebook_test
