// The sweeps of AAAC's fit: the same bits on every instruction set, and what the format's own fit gives.
#include <cmath>
#include <cstring>

#include "catch_compat.hpp"
#include "unit/quant/aaac_problem.hpp"

namespace aaac_sweeps_test {

using namespace aaac_test;
using namespace decant::quant::detail;

std::vector<Isa> paths() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
    if (isa <= decant::best_isa()) all.push_back(isa);
  return all;
}

/// What all sweeps say of a row.
struct Said {
  std::vector<std::uint8_t> chosen, codes;
  std::vector<float> error, product, square;
  AaacSums plain{}, tail{};

  bool operator==(const Said& o) const {
    const auto same = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return same(chosen, o.chosen) && same(codes, o.codes) && same(error, o.error) && same(product, o.product) &&
           same(square, o.square) && std::memcmp(&plain, &o.plain, sizeof plain) == 0 &&
           std::memcmp(&tail, &o.tail, sizeof tail) == 0;
  }
};

Said say(Isa isa, const AaacTables& t, const AaacRow& row, const std::vector<float>& scales) {
  const std::size_t n = at(row.groups);
  Said s{std::vector<std::uint8_t>(n), std::vector<std::uint8_t>(n * at(row.pad)), std::vector<float>(n),
         std::vector<float>(n), std::vector<float>(n)};
  choose_tables(isa, t, row, s.chosen.data(), s.error.data());
  scale_sums(isa, t, row, s.chosen.data(), s.product.data(), s.square.data());
  encode(isa, t, row, s.chosen.data(), s.codes.data());
  for (int times = 0; times < 3; ++times) {
    accumulate(isa, t, row, s.chosen.data(), scales.data(), AaacTail::plain, s.plain);
    accumulate(isa, t, row, s.chosen.data(), scales.data(), AaacTail::magnitude, s.tail);
  }
  return s;
}

TEST_CASE("Sweeps give the same bits on every instruction set", "[quant][aaac]") {
  AaacTables t;
  for (int c = 0; c < 16; ++c) {
    t.table[0][c] = static_cast<float>(c - 7) * 0.08f;
    t.table[1][c] = c > 13 ? t.table[1][13] : 0.02f * static_cast<float>((c - 6) * std::abs(c - 6));
  }
  t.set_limits();
  for (const index_t pad : {16, 32, 128}) {
    const index_t groups = 1024 / pad;
    std::vector<float> u, importance, scales;
    for (index_t i = 0; i < 1024; ++i) {
      u.push_back(i % 50 == 0 ? t.table[1][i % 16] : static_cast<float>(0.3 * gaussian(i, 71)));
      importance.push_back(i % 16 > 13 ? 0.0f : static_cast<float>(std::exp(gaussian(i, 72))));
    }
    for (index_t i = 0; i < groups; ++i) scales.push_back(static_cast<float>(std::exp(gaussian(i, 73))));
    const AaacRow row{u.data(), importance.data(), groups, pad};
    const Said first = say(Isa::portable, t, row, scales);
    for (const Isa isa : paths()) {
      CAPTURE(name(isa), pad);
      CHECK(say(isa, t, row, scales) == first);
    }
    // And they are what codebook_search.hpp says.
    for (index_t g = 0; g < groups; ++g) {
      const int chosen = first.chosen[at(g)];
      CHECK(first.error[at(g)] == weighted_error(t.table[chosen], t.limit[chosen], u.data() + g * pad,
                                                 importance.data() + g * pad, pad, 1));
      double product = 0, square = 0;
      scale_sums(t.table[chosen], t.limit[chosen], u.data() + g * pad, importance.data() + g * pad, pad, 1, product,
                 square);
      CHECK(static_cast<double>(first.product[at(g)]) == product);
      CHECK(static_cast<double>(first.square[at(g)]) == square);
      CHECK(first.codes[at(g * pad + 3)] == nearest_entry(t.limit[chosen], u[at(g * pad + 3)]));
    }
  }
}

template <class Scale>
void check_same_as_rtn(Aaac<Scale> q, index_t rows, index_t cols) {
  CAPTURE(rows, cols, q.group, q.select);
  const Problem p(Matrix(rows, cols, [cols](index_t i) {
    return i / cols == 1 && i % cols < 40 ? 0.0 : student(i, 81) * (i % 64 == 3 ? 8 : 1);
  }));
  q.passes = 2;
  std::vector<std::vector<std::byte>> all;
  for (const Isa isa : paths()) {
    Cpu cpu;
    cpu.set_isa(isa);
    all.push_back(p.quantized(q, cpu).bytes);
  }
  Cpu cpu;
  all.push_back(p.quantized(quant::Rtn<Aaac<Scale>>{q}, cpu).bytes);
  for (const auto& bytes : all) CHECK(bytes == all.front());
}

TEST_CASE("Aaac gives the bytes that Rtn gives of its tables", "[quant][aaac]") {
  for (const AaacRefit refit : {AaacRefit::no, AaacRefit::yes}) {
    Aaac<> q;
    q.refit = refit;
    q.starts = only(0);
    check_same_as_rtn(q, 5, 256);
    check_same_as_rtn(q, 3, 129);
    check_same_as_rtn(q, 2, 7);
    q.select = 16;
    check_same_as_rtn(q, 3, 300);
    q.group = 48;
    q.select = 8;
    check_same_as_rtn(q, 3, 145);
    Aaac<fp8_e4m3> small;
    small.refit = refit;
    small.starts = only(1);
    check_same_as_rtn(small, 4, 131);
    small.select = 4;
    check_same_as_rtn(small, 4, 64);
  }
}

}  // namespace aaac_sweeps_test
