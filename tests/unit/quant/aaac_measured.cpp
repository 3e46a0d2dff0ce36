// What AAAC loses on weights of known distributions, weighted by a log-normal importance, against other 4-bit formats.
#include <decant/quant/if4.hpp>
#include <decant/quant/int_group.hpp>
#include <decant/quant/nf4.hpp>

#include "catch_compat.hpp"
#include "unit/quant/aaac_problem.hpp"

namespace aaac_measured_test {

using namespace aaac_test;

constexpr index_t rows = 64, cols = 1024;

Problem gaussian_problem() { return Problem(Matrix(rows, cols)); }
Problem student_problem() {
  return Problem(Matrix(rows, cols, [](index_t i) { return student(i, 161); }));
}

double if4_of_128(const Problem& p, index_t select) {
  Aaac<> q;
  q.entries = 15;
  q.passes = 0;
  q.refit = AaacRefit::no;
  q.starts = only(3);
  q.select = select;
  return p.loss(q);
}

TEST_CASE("What mode paper loses", "[quant][aaac][statistics]") {
  for (const Problem& p : {gaussian_problem(), student_problem()}) {
    const double fitted = p.loss(paper<fp16>(3, 10));
    CHECK(fitted <= 0.80 * if4_of_128(p, 128));
    CHECK(p.loss(paper<fp16>(3, 10, 16, 16)) <= 0.92 * fitted);
    CHECK(fitted <= p.loss(paper<fp16>(1, 10)));
    const double fifteen = p.loss(paper<fp8_e4m3>(3, 10));
    CHECK(fifteen <= 0.93 * p.loss(quant::Rtn<quant::If4>{}));
    CHECK(p.loss(paper<fp8_e4m3>(3, 10, 16)) <= 0.90 * fifteen);
  }
  const Problem p = gaussian_problem();
  CHECK(p.loss(paper<fp16>(1, 10)) == Approx(0.00908).epsilon(0.04));
  CHECK(p.loss(paper<fp16>(3, 10)) == Approx(0.00797).epsilon(0.04));
  CHECK(p.loss(paper<fp16>(3, 10, 16, 16)) == Approx(0.00675).epsilon(0.04));
  CHECK(p.loss(paper<fp16>(3, 10, 16, 16)) <= 0.88 * p.loss(paper<fp16>(3, 10)));
  CHECK(p.loss(paper<fp8_e4m3>(3, 10)) == Approx(0.00498).epsilon(0.04));
  CHECK(if4_of_128(p, 128) == Approx(0.01077).epsilon(0.04));
}

TEST_CASE("What mode best_of loses", "[quant][aaac][statistics]") {
  const Problem p = gaussian_problem();
  const double best = p.loss(Aaac<>{});
  quant::Nf4 nf4;
  nf4.block = 128;
  quant::Int<4> symmetric;
  symmetric.grid = quant::IntGrid::symmetric;
  CHECK(best <= 0.88 * p.loss(quant::Rtn<quant::Nf4>{nf4}));
  CHECK(best <= 0.60 * p.loss(quant::Rtn<quant::Int<4>>{symmetric}));
  CHECK(best <= 0.95 * p.loss(paper<fp16>(3, 10)));
  CHECK(best == Approx(0.00713).epsilon(0.04));
  CHECK(p.loss(Aaac<fp8_e4m3>{}) <= 0.80 * p.loss(quant::Rtn<quant::If4>{}));
}

TEST_CASE("What mode best_of loses on Student-t(4) weights", "[quant][aaac][statistics]") {
  const Problem p = student_problem();
  CHECK(p.loss(Aaac<>{}) <= 0.95 * p.loss(paper<fp16>(3, 10)));
}

TEST_CASE("The starts of best_of", "[quant][aaac][statistics]") {
  // Without and with refitted scales: density_tail, signed_extreme, if4.
  const Problem p = gaussian_problem();
  const double expected[3][2] = {{0.00768, 0.00716}, {0.00764, 0.00713}, {0.00804, 0.00788}};
  for (int which = 1; which < 4; ++which)
    for (const bool refit : {false, true}) {
      Aaac<> q;
      q.starts = only(which);
      q.refit = refit ? AaacRefit::yes : AaacRefit::no;
      CHECK(p.loss(q) == Approx(expected[which - 1][refit]).epsilon(0.04));
    }
}

}  // namespace aaac_measured_test
