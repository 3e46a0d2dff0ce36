#pragma once
// attend() with Santa on the device over the problems of the attention tests, and problems whose logits are exact:
// then exponentials agree to the bit with the CPU's, and so must all draws.

#include <optional>

#include "cuda/attention/device_problem.cuh"
#include "decant/attention/santa.cuh"
#include "unit/attention/santa_problem.hpp"

namespace attention_test {

struct DeviceContext {
  cuda_test::Stream stream;
  decant::Cuda cuda{stream};
};

template <class M>
struct SantaArguments {
  M mask{};
  std::vector<float> sinks{};
  std::vector<std::uint32_t> requests{};
};

/// On the device.
template <class T, class C, class M = decant::attention::Causal>
Result draw(decant::Cuda& cuda, const Problem<T>& p, const C& cache, const Santa& a, const M& mask = {},
            const std::vector<float>& sinks = {}, const std::vector<std::uint32_t>& requests = {},
            std::optional<decant::attention::SantaTuning> tuning = {}) {
  const DeviceCall<> call(p, sinks);
  const OnDevice<C> device(cache);
  const DeviceBuffer<std::uint32_t> numbers(requests);
  attend(cuda, tuning.value_or(decant::attention::santa_tuning(90)), a, call.queries(p.total() != p.sequences()),
         device.view, call.out(), call.lses(), mask, call.sink_view(),
         requests.empty() ? decant::View<const std::uint32_t, 1>{}
                          : decant::View<const std::uint32_t, 1>(numbers.view(numbers.size())));
  cuda.check();
  return call.result();
}

/// On the host.
template <class T, class C, class M = decant::attention::Causal>
Result draw(decant::Cpu& cpu, const Problem<T>& p, const C& cache, const Santa& a, const M& mask = {},
            const std::vector<float>& sinks = {}, const std::vector<std::uint32_t>& requests = {}) {
  Result r{std::vector<float>(at(p.total() * p.query_heads() * p.value_dim), quiet_nan),
           std::vector<float>(at(p.total() * p.query_heads()), quiet_nan)};
  attend(cpu, a, p.views(), cache.view, decant::View<float, 3>(r.o.data(), p.total(), p.query_heads(), p.value_dim),
         decant::View<float, 2>(r.lse.data(), p.total(), p.query_heads()), mask,
         sinks.empty() ? decant::View<const float, 1>{} : decant::View<const float, 1>(sinks),
         requests.empty() ? decant::View<const std::uint32_t, 1>{} : decant::View<const std::uint32_t, 1>(requests));
  return r;
}

/// Keys and queries become small integers: with a scale that is a power of two, logits are the same in any order of
/// summation.
template <class T>
Problem<T> with_exact_logits(Problem<T> p) {
  for (T& x : p.keys) x = T(std::round(3 * static_cast<float>(x)));
  for (float& x : p.q) x = std::round(3 * x);
  return p;
}

/// The largest difference, relative to the largest output of the row; a draw that differs makes it about 1 / samples.
template <class T>
double difference(const Problem<T>& p, const Result& a, const Result& b) {
  double worst = 0;
  for (index_t row = 0; row < p.total() * p.query_heads(); ++row) {
    double scale = 1e-30;
    for (index_t d = 0; d < p.value_dim; ++d)
      scale = std::max(scale, std::abs(static_cast<double>(b.o[at(row * p.value_dim + d)])));
    for (index_t d = 0; d < p.value_dim; ++d) {
      const std::size_t i = at(row * p.value_dim + d);
      const double off = std::abs(static_cast<double>(a.o[i]) - static_cast<double>(b.o[i])) / scale;
      worst = off <= worst ? worst : off;  // NaN counts as the worst
    }
    const float x = a.lse[at(row)], y = b.lse[at(row)];
    if (x == y) continue;
    const double off = std::abs(static_cast<double>(x) - static_cast<double>(y)) / 10;
    worst = off <= worst ? worst : off;
  }
  return worst;
}

}  // namespace attention_test
