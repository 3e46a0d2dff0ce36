// AAAC's mode best_of: its descent, its bounds, and what it does with odd matrices.
#include <algorithm>
#include <cmath>
#include <limits>

#include <decant/quant/if4.hpp>

#include "catch_compat.hpp"
#include "unit/quant/aaac_problem.hpp"

namespace aaac_best_of_test {

using namespace aaac_test;
using namespace decant::quant::detail;

/// A matrix made ready for descend(), with the importance as it is.
template <class F = Codebook2x16<>>
struct Descent {
  Cpu cpu;
  decant::Workspace::Scope scope;
  std::vector<float> padded;
  AaacData<F> data;

  Descent(const Problem& p, const F& f)
      : scope(cpu.workspace()), padded(at(AaacShape::of(f, p.m.cols).slots())), data(begin(p, f)) {}
  AaacData<F> begin(const Problem& p, const F& f) {
    pad_row(AaacShape::of(f, p.m.cols), p.importance.data(), padded.data());
    return AaacData<F>::of(cpu, f, f.layer(p.m.view()), p.m.view(), padded.data(), true);
  }
};

template <class Scale>
void check_falls(const Aaac<Scale>& format) {
  const Problem p(Matrix(16, 256, [](index_t i) { return student(i, 91); }));
  for (int which = 0; which < 4; ++which) {
    for (const bool refit : {false, true}) {
      CAPTURE(which, refit, format.group, format.select);
      Descent<Codebook2x16<Scale>> d(p, format.format());
      Aaac<Scale> q = format;
      q.starts = only(which);
      AaacTables tables;
      REQUIRE(aaac_start(d.cpu, q, d.data, which, tables));
      double trace[16];
      std::fill(trace, trace + 16, -1.0);
      const double least = descend(d.cpu, d.data, 15, refit, 16, tables, trace);
      int passes = 0;
      for (; passes < 16 && trace[passes] >= 0; ++passes)
        if (passes > 0) CHECK(trace[passes] <= trace[passes - 1] * (1 + 1e-6));
      CHECK(passes > 3);
      CHECK(least == *std::min_element(trace, trace + passes));
      CHECK(trace[passes - 1] < 0.95 * trace[0]);
    }
  }
}

TEST_CASE("The error of best_of never grows from pass to pass", "[quant][aaac]") {
  check_falls(Aaac<>{});
  check_falls(Aaac<>{.select = 16});
  check_falls(Aaac<fp8_e4m3>{});
}

TEST_CASE("Without passes, from IF4's tables, best_of is IF4", "[quant][aaac]") {
  const Problem p(Matrix(8, 256));
  Aaac<fp8_e4m3> q;
  q.entries = 15;
  q.passes = 0;
  q.refit = AaacRefit::no;
  q.starts = only(3);
  Cpu cpu;
  for (const bool weighted : {false, true}) {
    const quant::Calibration c = weighted ? p.calibration() : quant::Calibration{};
    const Quantized<quant::If4> theirs(quant::If4{}, p.m, c);
    Quantized<Codebook2x16<fp8_e4m3>> ours(q.format(), 8, 256);
    quantize(cpu, q, p.m.view(), c, ours.packed());
    const std::vector<float> a = theirs.values();
    const std::vector<float> b = ours.values();
    int integers = 0;
    for (index_t i = 0; i < 8 * 256; ++i) {
      CHECK(b[at(i)] == Approx(a[at(i)]).epsilon(4e-7).margin(0));
      integers += theirs.group(i / 256, i % 256 / 16).scale < 0;
      CHECK((theirs.group(i / 256, i % 256 / 16).scale < 0) == (ours.group(i / 256, i % 256 / 16).second == 1));
    }
    CHECK(integers > 300);
  }
}

/// Matrices that a fit may do badly on.
std::vector<Problem> odd_problems() {
  std::vector<Problem> all;
  const auto add = [&](auto value) { all.emplace_back(Matrix(4, 256, value)); };
  add([](index_t i) { return gaussian(i, 101); });
  add([](index_t i) { return student(i, 103); });
  add([](index_t i) { return 2 * uniform(i, 105) - 1; });
  add([](index_t i) { return uniform(i, 106); });                            // nothing negative
  add([](index_t i) { return i % 3 == 0 ? 1.0 : -1.0; });                    // two values
  add([](index_t i) { return i % 64 == 5 ? 1.0 : 0.0; });                    // mostly zeros
  add([](index_t i) { return i == 700 ? 100.0 : 0.01 * gaussian(i, 107); });  // an outlier
  add([](index_t) { return 0.25; });
  add([](index_t i) { return i < 900 ? 0.0 : gaussian(i, 108); });  // rows of zeros
  add([](index_t i) { return 1e-7 * gaussian(i, 109); });           // scales that fp16 hardly has
  add([](index_t i) { return std::round(8 * gaussian(i, 110)) / 7; });
  for (index_t k = 0; k < 256; k += 2) all[2].importance[at(k)] = 0;
  return all;
}

TEST_CASE("best_of never errs more than IF4 chosen by importance", "[quant][aaac]") {
  for (const Problem& p : odd_problems()) {
    Aaac<fp8_e4m3> q;
    q.passes = 3;
    q.refit = AaacRefit::yes;
    q.starts = only(0);
    // To the rounding of E4M3's operand, which the two divide in another order.
    CHECK(p.loss(q) <= p.loss(quant::Rtn<quant::If4>{}) * (1 + 1e-6) + 1e-12);
    // In groups of 128 IF4's tables are those that Codebook2x16 has on its own.
    Aaac<> large;
    large.passes = 3;
    large.starts = {.paper = true, .density_tail = false, .signed_extreme = true, .if4 = false};
    CHECK(p.loss(large) <= p.loss(quant::Rtn<Codebook2x16<>>{}) * (1 + 1e-9));
    large.select = 16;
    CHECK(p.loss(large) <= p.loss(quant::Rtn<Codebook2x16<>>{large.format()}) * (1 + 1e-9));
  }
}

TEST_CASE("best_of never errs more than any of its starts", "[quant][aaac]") {
  const Problem p(Matrix(8, 256, [](index_t i) { return student(i, 111); }));
  Aaac<> q;
  q.passes = 8;
  const double all = p.loss(q);
  for (int which = 0; which < 4; ++which)
    for (const AaacRefit refit : {AaacRefit::no, AaacRefit::yes}) {
      Aaac<> one = q;
      one.starts = only(which);
      one.refit = refit;
      CHECK(all <= p.loss(one) * (1 + 1e-6));
    }
}

TEST_CASE("Tables fitted to some of the rows serve all", "[quant][aaac]") {
  const Problem p(Matrix(64, 256, [](index_t i) { return student(i, 113); }));
  Aaac<> all;
  all.passes = 6;
  Aaac<> some = all;
  some.sample = 2048;
  some.most = 8192;
  const double best = p.loss(all);
  const double found = p.loss(some);
  CHECK(found != best);
  CHECK(found < 1.1 * best);
  some.most = 2047;
  CHECK_THROWS_WITH(validate(some, 256), catch_compat::contains("sample"));
}

TEST_CASE("No other table and no other code errs less", "[quant][aaac]") {
  const Problem p(Matrix(6, 256));
  for (const index_t select : {128, 16}) {
    Aaac<> q;
    q.select = select;
    q.passes = 4;
    Cpu cpu;
    const auto out = p.quantized(q, cpu);
    const auto layer = out.packed().layer();
    const std::vector<float> values = out.values();
    int wrong = 0;
    for (index_t first = 0; first < 6 * 256; first += select) {
      const double scale = static_cast<double>(out.group(first / 256, first % 256 / 128).scale);
      double mine = 0, best[2] = {};
      for (index_t i = first; i < first + select; ++i) {
        const double weight = static_cast<double>(p.importance[at(i % 256)]);
        const double w = static_cast<double>(p.m.w[at(i)]);
        mine += weight * std::pow(static_cast<double>(values[at(i)]) - w, 2);
        for (int t = 0; t < 2; ++t) {
          double least = std::numeric_limits<double>::infinity();
          for (const float entry : layer.table[t])
            least = std::min(least, std::pow(scale * static_cast<double>(entry) - w, 2));
          best[t] += weight * least;
        }
      }
      wrong += mine > std::min(best[0], best[1]) * (1 + 1e-5);
    }
    CHECK(wrong == 0);
  }
}

/// The least sum of importance (u - c)^2 with `entries` values for sorted u, by trying every cut into runs.
double least_error(const std::vector<double>& u, const std::vector<double>& weight, std::size_t first, int entries) {
  const auto of_run = [&](std::size_t a, std::size_t b) {
    double sum = 0, mass = 0, error = 0;
    for (std::size_t i = a; i < b; ++i) {
      sum += weight[i] * u[i];
      mass += weight[i];
    }
    for (std::size_t i = a; i < b; ++i) error += weight[i] * std::pow(u[i] - sum / mass, 2);
    return error;
  };
  if (first == u.size()) return 0;
  if (entries == 1) return of_run(first, u.size());
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t end = first + 1; end <= u.size(); ++end)
    least = std::min(least, of_run(first, end) + least_error(u, weight, end, entries - 1));
  return least;
}

TEST_CASE("On tiny matrices the descent is near the least error of all choices", "[quant][aaac]") {
  // Four groups of 4 and tables of 3: every assignment of groups to tables, and for each the best tables.
  int optimal = 0;
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    const Problem p(Matrix(1, 16, 120 + seed), 140 + seed);
    const Codebook2x16<> f{.group = 4, .select = 4};
    Descent<> d(p, f);
    double least = std::numeric_limits<double>::infinity();
    for (int assignment = 0; assignment < 16; ++assignment) {
      double error = 0;
      for (int t = 0; t < 2; ++t) {
        std::vector<std::pair<double, double>> items;
        for (index_t i = 0; i < 16; ++i) {
          if ((assignment >> (i / 4) & 1) != t) continue;
          const double s = static_cast<double>(d.data.state.scale[i / 4]);
          items.emplace_back(static_cast<double>(d.data.state.u[i / 4 * 16 + i % 4]),
                             static_cast<double>(p.importance[at(i)]) * s * s);
        }
        std::sort(items.begin(), items.end());
        std::vector<double> u, weight;
        for (const auto& [value, mass] : items) {
          u.push_back(value);
          weight.push_back(mass);
        }
        error += least_error(u, weight, 0, 3);
      }
      least = std::min(least, error);
    }
    double found = std::numeric_limits<double>::infinity();
    for (int which = 0; which < 3; ++which) {
      Aaac<> q;
      q.entries = 3;
      q.starts = only(which);
      AaacTables tables;
      REQUIRE(aaac_start(d.cpu, q, d.data, which, tables));
      found = std::min(found, descend(d.cpu, d.data, 30, false, 3, tables));
    }
    CHECK(found >= least * (1 - 1e-5));
    optimal += found < 1.5 * least;
  }
  CHECK(optimal >= 6);
}

TEST_CASE("A table that no group chose is taken from the worst groups", "[quant][aaac]") {
  // Uniform groups, and some with all weight at three values that the one table in use has not.
  const Problem p(Matrix(32, 128, [](index_t i) {
    return i / 128 % 8 == 0 ? static_cast<double>(i % 3 - 1) : 2 * uniform(i, 131) - 1;
  }));
  Descent<> d(p, Codebook2x16<>{});
  AaacTables tables;
  if4_start(16, tables);
  for (int c = 0; c < 16; ++c) {
    tables.table[0][c] = 0.5f * tables.table[1][c];
    tables.table[1][c] = static_cast<float>(c) + 40;
  }
  tables.set_limits();
  double trace[31];
  const double least = descend(d.cpu, d.data, 30, false, 16, tables, trace);
  CHECK(least < 0.5 * trace[0]);
  CHECK(tables.table[1][15] < 2);
  sweep(d.cpu, d.data, tables, {.choose = true}, nullptr);
  index_t second = 0;
  for (index_t r = 0; r < 32; ++r) second += d.data.state.chosen[r];
  CHECK(second > 0);
  CHECK(second < 32);
}

TEST_CASE("Weights of two known tables are found again from tables near them", "[quant][aaac]") {
  // Every group has its table's largest entry, so that its scale, a power of two over top, is known too.
  float tables[2][16];
  for (int c = 0; c < 16; ++c) {
    const float x = (static_cast<float>(c) - 7.5f) / 7.5f;
    tables[0][c] = static_cast<float>(decant::bf16(Codebook2x16<>::top * x));
    tables[1][c] = static_cast<float>(decant::bf16(Codebook2x16<>::top * x * std::abs(x)));
  }
  const Problem p(Matrix(32, 256, [&](index_t i) {
    const int table = static_cast<int>(i / 128 % 2);
    const index_t code = i % 128 == 17 ? 15 : static_cast<index_t>(16 * uniform(i, 141));
    return std::ldexp(static_cast<double>(tables[table][code]), static_cast<int>(i / 128 % 5) - 3);
  }));
  Descent<> d(p, Codebook2x16<>{});
  AaacTables near;
  for (int t = 0; t < 2; ++t)
    for (int c = 0; c < 16; ++c)
      near.table[t][c] = tables[t][c] * (1 + 0.05f * static_cast<float>(2 * uniform(t * 16 + c, 142) - 1));
  near.set_limits();
  descend(d.cpu, d.data, 30, false, 16, near);
  const auto layer = Codebook2x16<>::of_tables(near.table, 1);
  for (int i = 0; i < 32; ++i) CHECK(layer.table[i / 16][i % 16] == tables[i / 16][i % 16]);
  const quant::Packed<Codebook2x16<>, std::byte>* const nowhere = nullptr;
  CHECK(pack_all(d.cpu, Codebook2x16<>{}, layer, p.m.view(), d.padded.data(), nowhere) == 0);
}

TEST_CASE("Aaac on matrices of nothing, and short groups", "[quant][aaac]") {
  Cpu cpu;
  for (const AaacMode mode : {AaacMode::paper, AaacMode::best_of}) {
    Aaac<> q;
    q.mode = mode;
    q.passes = q.outer = q.inner = 2;
    const Matrix zeros(3, 200, [](index_t i) { return i % 2 == 0 ? 0.0 : -0.0; });
    Quantized<Codebook2x16<>> out(q.format(), 3, 200);
    quantize(cpu, q, zeros.view(), {}, out.packed());
    for (const float x : out.values()) CHECK((x == 0 && !std::signbit(x)));

    Quantized<Codebook2x16<>> none(q.format(), 0, 200);
    quantize(cpu, q, View<const float, 2>(nullptr, 0, 200), {}, none.packed());

    const Problem one(Matrix(1, 1, [](index_t) { return -0.7; }));
    CHECK(one.loss(q) < 1e-5);
    const Problem narrow(Matrix(40, 5));
    CHECK(narrow.loss(q) < 0.01);
  }
}

TEST_CASE("No importance is importance 1, and only its ratios matter", "[quant][aaac]") {
  Problem p(Matrix(4, 256));
  Aaac<> q;
  q.passes = 4;
  Cpu cpu;
  const auto bytes = [&](const quant::Calibration& c) {
    Quantized<Codebook2x16<>> out(q.format(), 4, 256);
    quantize(cpu, q, p.m.view(), c, out.packed());
    return out.bytes;
  };
  const auto weighted = bytes(p.calibration());
  const auto none = bytes({});
  CHECK(weighted != none);
  for (float& x : p.importance) x *= 1024;
  CHECK(bytes(p.calibration()) == weighted);
  std::fill(p.importance.begin(), p.importance.end(), 1.0f);
  CHECK(bytes(p.calibration()) == none);
}

TEST_CASE("Weights times a power of two have the same codes", "[quant][aaac]") {
  const Problem p(Matrix(4, 256));
  Problem scaled = p;
  for (float& w : scaled.m.w) w *= 0.125f;
  Cpu cpu;
  Aaac<> q;
  q.passes = 4;
  const auto first = p.quantized(q, cpu);
  const auto second = scaled.quantized(q, cpu);
  const std::vector<float> a = first.values();
  const std::vector<float> b = second.values();
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] * 0.125f == b[i]);
  Aaac<fp8_e4m3> small;
  small.passes = 4;
  const auto third = p.quantized(small, cpu);
  const auto fourth = scaled.quantized(small, cpu);
  for (index_t i = 0; i < 4 * 256; ++i) CHECK(third.code(i / 256, i % 256) == fourth.code(i / 256, i % 256));
}

TEST_CASE("Aaac names what it cannot work with", "[quant][aaac]") {
  Problem p(Matrix(2, 128));
  Cpu cpu;
  Aaac<> q;
  Quantized<Codebook2x16<>> out(q.format(), 2, 128);
  const auto before = out.bytes;
  const auto run = [&](const Aaac<>& with) { quantize(cpu, with, p.m.view(), p.calibration(), out.packed()); };
  const auto with = [&](auto change) {
    Aaac<> other;
    change(other);
    return other;
  };
  CHECK_THROWS_WITH(run(with([](Aaac<>& a) { a.entries = 14; })), catch_compat::contains("entries"));
  CHECK_THROWS_WITH(run(with([](Aaac<>& a) { a.starts = {false, false, false, false}; })),
                    catch_compat::contains("starts"));
  CHECK_THROWS_WITH(run(with([](Aaac<>& a) { a.passes = -1; })), catch_compat::contains("passes"));
  CHECK_THROWS_WITH(run(with([](Aaac<>& a) { a.select = 64; })), catch_compat::contains("out"));
  CHECK_THROWS_WITH(validate(with([](Aaac<>& a) { a.select = 100; }), 128), catch_compat::contains("select"));
  CHECK_NOTHROW(validate(paper<fp16>(1, 1, 2), 128));
  CHECK_THROWS_WITH(validate(paper<fp16>(1, 1, 1), 128), catch_compat::contains("entries"));
  p.importance[5] = -1;
  CHECK_THROWS_WITH(run(q), catch_compat::contains("importance"));
  p.importance[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_WITH(run(q), catch_compat::contains("importance"));
  p.importance[5] = 1;
  p.m.w[130] = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH(run(q), catch_compat::contains("(1, 2)"));
  CHECK(out.bytes == before);
}

}  // namespace aaac_best_of_test
