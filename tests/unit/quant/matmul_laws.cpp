// What holds of every product: threads, memory, strides, shapes; and formats that have no kernels of their own.
#include <decant/quant/fp8.hpp>

#include "matmul_problem.hpp"
#include "threads.hpp"

namespace quant_matmul_laws_test {

using namespace quant_test;
using quant::Int;

template <class F>
void check_threads(const F& f) {
  const Quantized<F> q(f, Matrix(101, 200));
  for (const index_t tokens : {1, 6}) {
    const std::vector<float> x = activations_of(tokens, q.cols);
    for (const Activations a : {Activations::bf16, Activations::fp32, Activations::int8}) {
      Cpu cpu;
      const std::vector<float> expected = product(cpu, q, x, tokens, a);
      for (const int threads : {2, 3, 5}) {
        Cpu parallel(reversed_threads(threads));
        CHECK(product(parallel, q, x, tokens, a) == expected);
      }
      Cpu real(real_threads(3));
      CHECK(product(real, q, x, tokens, a) == expected);
      // Nor do the other rows matter.
      for (const index_t r : {0, 1, 50, 99, 100}) {
        Quantized<F> one(f, 1, q.cols);
        std::copy_n(q.packed().data(), q.packed().row(0) - q.packed().data(), one.bytes.data());
        std::copy_n(q.packed().row(r), q.packed().row_bytes(), one.packed().row(0));
        const std::vector<float> alone = product(cpu, one, x, tokens, a);
        for (index_t t = 0; t < tokens; ++t) CHECK(alone[at(t)] == expected[at(t * q.rows + r)]);
      }
    }
  }
}

TEST_CASE("products do not depend on threads, nor a row on its neighbours", "[quant][matmul][threads]") {
  check_threads(Int<4>{});
  check_threads(Int<4>{.group = 32});
  check_threads(Int<3>{});
}

TEST_CASE("integers of other widths and 8-bit floats are decoded first", "[quant][matmul]") {
  const auto itself = [](const auto&, double w) { return std::abs(w); };
  const auto none = [](const auto&) { return 0.0; };
  for (const index_t cols : {1, 77, 300}) {
    check_product(Quantized<Int<2>>({.group = 20}, Matrix(5, cols)), 1, itself, none, false);
    check_product(Quantized<Int<3>>({.group = 64}, Matrix(5, cols)), 3, itself, none, false);
    check_product(Quantized<Int<7>>({.group = 128, .grid = quant::IntGrid::minimum}, Matrix(5, cols)), 1,
                  [](const auto& g, double w) { return std::abs(double{g.origin}) + std::abs(w - g.origin); }, none,
                  false);
    check_product(Quantized<Int<8>>({.group = 0}, Matrix(5, cols)), 1, itself, none, false);
    check_product(Quantized<quant::Fp8<decant::fp8_e4m3>>({}, Matrix(5, cols)), 2, itself, none, false);
    check_product(Quantized<quant::Fp8<decant::fp8_e5m2>>({}, Matrix(5, cols)), 2, itself, none, false);
  }
}

TEST_CASE("every width and 8-bit float decodes to what it is, on every path", "[quant][matmul]") {
  // Products with one activation of 1 are weights.
  const auto check = [](const auto& q) {
    const std::vector<float> w = q.values();
    for (int isa = 0; isa <= static_cast<int>(decant::best_isa()); ++isa) {
      Cpu cpu;
      cpu.set_isa(static_cast<Isa>(isa));
      for (index_t k = 0; k < q.cols; ++k) {
        std::vector<float> x(at(q.cols));
        x[at(k)] = 1;
        const std::vector<float> y = product(cpu, q, x, 1, Activations::fp32);
        for (index_t r = 0; r < q.rows; ++r) {
          const float expected = w[at(r * q.cols + k)];
          REQUIRE(std::abs(y[at(r)] - expected) <= std::abs(expected) * 0x1p-23f);
        }
      }
    }
  };
  check(Quantized<Int<2>>({.group = 32}, Matrix(5, 61)));
  check(Quantized<Int<3>>({.group = 32}, Matrix(5, 61)));
  check(Quantized<Int<5>>({.group = 32}, Matrix(5, 61)));
  check(Quantized<Int<6>>({.group = 32}, Matrix(5, 61)));
  check(Quantized<Int<7>>({.group = 32}, Matrix(5, 61)));
  check(Quantized<Int<7>>({.group = 20}, Matrix(2, 61)));
  check(Quantized<Int<8>>({.group = 32}, Matrix(5, 61)));
  // All finite codes.
  const auto codes = [](const auto& f, int last) {
    Quantized<std::decay_t<decltype(f)>> q(f, 1, 2 * (last + 1));
    f.store_group({}, {0.375f}, q.packed().row(0), q.cols, 0);
    for (int i = 0; i < q.cols; ++i)
      f.store_code(static_cast<std::uint8_t>(i / 2 + i % 2 * 128), q.packed().row(0), q.cols, i);
    return q;
  };
  check(codes(quant::Fp8<decant::fp8_e4m3>{}, 0x7e));
  check(codes(quant::Fp8<decant::fp8_e5m2>{}, 0x7b));
}

TEST_CASE("a second product allocates nothing, and the first no more than it says", "[quant][matmul]") {
  const Quantized<Int<4>> q({}, Matrix(37, 300));
  const std::vector<float> x = activations_of(5, q.cols);
  for (const Activations a : {Activations::bf16, Activations::fp32, Activations::int8}) {
    static int allocations;
    allocations = 0;
    const decant::Allocator counting{[](void*, std::size_t bytes) {
                                       ++allocations;
                                       return ::operator new(bytes, std::align_val_t{64});
                                     },
                                     [](void*, void* p, std::size_t) { ::operator delete(p, std::align_val_t{64}); },
                                     nullptr};
    Cpu cpu(decant::ParallelFor{}, counting);
    const std::vector<float> expected = product(cpu, q, x, 5, a);
    CHECK(allocations > 0);
    allocations = 0;
    CHECK(product(cpu, q, x, 5, a) == expected);
    CHECK(allocations == 0);

    std::vector<std::byte> memory(cpu.workspace().high_water() + 64);
    Cpu fixed(decant::ParallelFor{}, memory.data(), memory.size());
    CHECK(product(fixed, q, x, 5, a) == expected);
    Cpu tight(decant::ParallelFor{}, memory.data(), 64);
    CHECK_THROWS_AS(product(tight, q, x, 5, a), decant::WorkspaceError);
  }
}

TEST_CASE("rows of activations and results may lie apart and at any address", "[quant][matmul]") {
  const Quantized<Int<4>> q({}, Matrix(7, 130));
  const std::vector<float> x = activations_of(3, 150);
  std::vector<float> close(at(3 * q.cols));
  for (index_t t = 0; t < 3; ++t) std::copy_n(x.begin() + 150 * t + 1, q.cols, close.begin() + q.cols * t);
  Cpu cpu;
  const std::vector<float> expected = product(cpu, q, close, 3, Activations::bf16);
  std::vector<float> y(at(3 * 11 + 1), 5.0f);
  matmul(cpu, q.packed(), View<const float, 2>(x.data() + 1, {3, q.cols}, {150, 1}),
         View<float, 2>(y.data() + 1, {3, q.rows}, {11, 1}));
  for (index_t i = 0; i < 34; ++i) {
    const index_t t = (i - 1) / 11, r = (i - 1) % 11;
    CHECK(y[at(i)] == (i >= 1 && r < 7 ? expected[at(t * 7 + r)] : 5.0f));
  }

  // The bytes too.
  std::vector<std::byte> moved(q.bytes.size() + 3);
  std::copy(q.bytes.begin(), q.bytes.end(), moved.begin() + 3);
  const quant::Packed<Int<4>> packed(q.format, q.rows, q.cols,
                                     View<const std::byte, 1>(moved.data() + 3, static_cast<index_t>(q.bytes.size())));
  std::vector<float> one(7);
  matvec(cpu, packed, View<const float, 1>(close.data(), q.cols), View<float, 1>(one));
  for (index_t r = 0; r < 7; ++r) CHECK(one[at(r)] == expected[at(r)]);

  std::vector<float> all(at(q.rows * q.cols));
  dequantize(cpu, q.packed(), View<float, 2>(all.data(), q.rows, q.cols));
  CHECK(all == q.values());
}

TEST_CASE("shapes that do not fit are named, and nothing is written", "[quant][matmul]") {
  const Quantized<Int<4>> q({}, Matrix(2, 3));
  const std::vector<float> x(12, 1.0f);
  std::vector<float> y(8, 7.0f);
  Cpu cpu;
  const auto of_x = [&](index_t t, index_t c) { return View<const float, 2>(x.data(), t, c); };
  const auto of_y = [&](index_t t, index_t r) { return View<float, 2>(y.data(), t, r); };
  CHECK_THROWS_WITH(matmul(cpu, q.packed(), of_x(2, 4), of_y(2, 2)),
                    "decant::quant::matmul: argument `x`: expected 3, got 4");
  CHECK_THROWS_WITH(matmul(cpu, q.packed(), of_x(2, 3), of_y(1, 2)),
                    "decant::quant::matmul: argument `y`: expected 2, got 1");
  CHECK_THROWS_WITH(matmul(cpu, q.packed(), of_x(2, 3), of_y(2, 3)),
                    "decant::quant::matmul: argument `y`: expected 2, got 3");
  CHECK_THROWS_WITH(matmul(cpu, q.packed(), View<const float, 2>(x.data(), {2, 3}, {6, 2}), of_y(2, 2)),
                    "decant::quant::matmul: argument `x`: expected contiguous rows, got 2");
  CHECK_THROWS_WITH(matmul(cpu, q.packed(), of_x(2, 3), of_y(2, 2), static_cast<Activations>(3)),
                    "decant::quant::matmul: argument `activations`: expected bf16, fp32 or int8, got 3");
  CHECK_THROWS_AS(matvec(cpu, q.packed(), View<const float, 1>(x.data(), 4), View<float, 1>(y.data(), 2)),
                  decant::ArgumentError);
  CHECK_THROWS_AS(dequantize(cpu, q.packed(), of_y(2, 4)), decant::ArgumentError);
  matmul(cpu, q.packed(), of_x(0, 3), of_y(0, 2));
  for (const float v : y) CHECK(v == 7.0f);
}

}  // namespace quant_matmul_laws_test
