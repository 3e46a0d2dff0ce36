// AAAC's algorithm 1 against its definition, and the laws that it has.
#include <cmath>

#include "catch_compat.hpp"
#include "unit/quant/aaac_problem.hpp"

namespace aaac_paper_test {

using namespace aaac_test;
using namespace decant::quant::detail;

template <class Scale>
oracle::AaacProblem problem_of(const Problem& p, const Aaac<Scale>& q) {
  using F = Codebook2x16<Scale>;
  const F f = q.format();
  const auto layer = f.layer(p.m.view());
  oracle::AaacProblem o{{}, {}, at(f.select)};
  for (index_t r = 0; r < p.m.rows; ++r)
    for (index_t k = 0; k < p.m.cols; ++k) {
      const float* const group = p.m.w.data() + r * p.m.cols + k / f.group * f.group;
      const float scale = F::scale_of(layer.scale, largest_magnitude(group, f.group));
      o.u.push_back(static_cast<double>(p.m.w[at(r * p.m.cols + k)] / F::step(layer.scale, scale)));
      o.importance.push_back(static_cast<double>(p.importance[at(k)]));
    }
  return o;
}

template <class Scale>
void check_definition(const Aaac<Scale>& q, index_t rows, index_t cols) {
  const Problem p(Matrix(rows, cols, [](index_t i) { return student(i, 31); }));
  const int entries = q.table_entries();
  const oracle::AaacTables expected = oracle::aaac(problem_of(p, q), entries, q.outer, q.inner);
  Cpu cpu;
  const auto layer = fit_layer(cpu, q, p.m.view(), p.calibration());
  for (int t = 0; t < 2; ++t)
    for (int c = 0; c < entries; ++c) {
      CAPTURE(t, c);
      const double value = expected.table[t][at(c)];
      CHECK(std::abs(static_cast<double>(layer.table[t][c]) - value) <= 0.004 * std::abs(value) + 1e-6);
    }
}

TEST_CASE("Mode paper is algorithm 1", "[quant][aaac]") {
  check_definition(paper<fp16>(0, 0), 6, 256);
  check_definition(paper<fp16>(1, 1), 6, 256);
  check_definition(paper<fp16>(1, 4), 6, 256);
  check_definition(paper<fp16>(3, 5), 6, 256);
  check_definition(paper<fp16>(2, 3, 7), 6, 256);
  check_definition(paper<fp16>(2, 3, 16, 16), 6, 256);
  check_definition(paper<fp8_e4m3>(2, 4), 6, 256);
}

TEST_CASE("Each inner step of mode paper takes its cells' means, and its error never grows", "[quant][aaac]") {
  const Problem p(Matrix(6, 256, [](index_t i) { return student(i, 41); }));
  const Aaac<> q = paper<fp16>(3, 4);
  const oracle::AaacProblem o = problem_of(p, q);
  Cpu cpu;
  const auto layer = q.format().layer(p.m.view());
  const AaacShape shape = AaacShape::of(q.format(), p.m.cols);
  std::vector<float> padded(at(shape.slots()));
  pad_row(shape, p.importance.data(), padded.data());
  decant::Workspace::Scope scope(cpu.workspace());
  const auto data = AaacData<Codebook2x16<>>::of(cpu, q.format(), layer, p.m.view(), padded.data(), false);

  AaacTables tables;
  REQUIRE(paper_start(cpu, data, 16, tables));
  const auto as_oracle = [&] {
    oracle::AaacTables t;
    for (int r = 0; r < 2; ++r) t.table[r].assign(tables.table[r], tables.table[r] + 16);
    return t;
  };
  double sums[64];
  double before = 1e300;
  for (int outer = 0; outer < 3; ++outer) {
    sweep(cpu, data, tables, {.choose = true}, sums);
    const std::vector<int> chosen(data.state.chosen, data.state.chosen + 12);
    CHECK(chosen == oracle::choose(o, as_oracle()));
    for (int inner = 0; inner < 4; ++inner) {
      const double error = oracle::error(o, as_oracle(), chosen);
      CHECK(error <= before * (1 + 1e-6));
      before = error;
      oracle::AaacTables moved = as_oracle();
      oracle::move(o, moved, chosen);
      settle(cpu, data, 1, AaacTail::plain, 16, tables);
      const oracle::AaacTables now = as_oracle();
      for (int i = 0; i < 32; ++i)
        CHECK(now.table[i / 16][at(i % 16)] == Approx(moved.table[i / 16][at(i % 16)]).margin(1e-6));
    }
  }
}

TEST_CASE("Mode paper by hand", "[quant][aaac]") {
  const Matrix m = row_of({-1, -1, 1, 1});
  Aaac<> q = paper<fp16>(3, 10, 2);
  q.group = q.select = 4;
  Cpu cpu;
  const auto layer = fit_layer(cpu, q, m.view(), {});
  const float top = Codebook2x16<>::top;
  CHECK(layer.table[0][0] == Approx(-top).epsilon(0.004));
  CHECK(layer.table[0][1] == Approx(top).epsilon(0.004));
  CHECK(layer.table[1][0] == 0);
  CHECK(layer.table[1][1] == Approx(top).epsilon(0.004));
  Quantized<Codebook2x16<>> out(q.format(), 1, 4);
  quantize(cpu, q, m.view(), {}, out.packed());
  CHECK(out.group(0, 0).second == 0);
  const quant::Packed<Codebook2x16<>> packed = out.packed();
  CHECK(squared_error(cpu, packed, m.view()).relative() < 1e-4);
}

TEST_CASE("With 15 entries code 15 is not used", "[quant][aaac]") {
  const Problem p(Matrix(16, 256));
  Cpu cpu;
  for (const auto& q : {paper<fp8_e4m3>(2, 3), [] {
                          Aaac<fp8_e4m3> own;
                          own.entries = 15;
                          own.passes = 4;
                          return own;
                        }()}) {
    const auto out = p.quantized(q, cpu);
    const auto layer = out.packed().layer();
    CHECK(layer.table[0][15] == layer.table[0][14]);
    CHECK(layer.table[1][15] == layer.table[1][14]);
    int used = 0;
    for (index_t i = 0; i < 16 * 256; ++i) used += out.code(i / 256, i % 256) == 15;
    CHECK(used == 0);
  }
  CHECK(paper<fp8_e4m3>(1, 1).table_entries() == 15);
  CHECK(paper<fp16>(1, 1).table_entries() == 16);
  CHECK(Aaac<fp8_e4m3>{}.table_entries() == 16);
}

TEST_CASE("Order statistics are those of a sorted list", "[quant][aaac]") {
  std::vector<float> values;
  for (index_t i = 0; i < 5000; ++i) {
    const float x = static_cast<float>(gaussian(i, 61));
    values.push_back(i % 7 == 0 ? 0.25f : i % 11 == 0 ? -0.0f : i % 13 == 0 ? -1e-40f : x);
  }
  std::vector<float> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  index_t rank[64];
  float got[64];
  for (index_t i = 0; i < 64; ++i) rank[i] = i == 63 ? 4999 : i * 79;
  Cpu cpu;
  order_statistics(
      cpu, 50,
      [&](index_t first, index_t last, auto&& f) {
        for (index_t i = first * 100; i < last * 100; ++i) f(values[at(i)]);
      },
      rank, 64, got);
  for (int i = 0; i < 64; ++i) CHECK(got[i] == sorted[at(rank[i])]);
}

}  // namespace aaac_paper_test
