// Rtn writes the same bytes on any number of threads.
#include "decant/quant/if4.hpp"
#include "decant/quant/int_group.hpp"
#include "decant/quant/weight_error.hpp"

#include "catch_compat.hpp"
#include "threads.hpp"
#include "unit/quant/quantized.hpp"

namespace {

using namespace quant_test;

template <class F>
void same_on_threads(const F& format) {
  const Matrix m(13, 200);
  const Quantized<F> serial(format, m);
  Cpu cpu;
  const quant::WeightError error = squared_error(cpu, serial.packed(), m.view());
  for (const decant::ParallelFor threads : {real_threads(3), reversed_threads(5), reversed_threads(40)}) {
    CHECK(Quantized<F>(format, m, {}, Cpu(threads)).bytes == serial.bytes);
    Cpu parallel(threads);
    CHECK(squared_error(parallel, serial.packed(), m.view()).error == error.error);
  }
}

TEST_CASE("WeightFormat: Rtn on threads", "[threads]") {
  same_on_threads(quant::Int<3>{.group = 48, .search = true});
  same_on_threads(quant::If4{});
}

}  // namespace
