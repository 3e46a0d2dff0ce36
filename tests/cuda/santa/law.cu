// Santa on the device as a random variable: one batch whose sequences are one sequence again and again, told apart by
// their requests. Seeds are fixed; what each test would falsely reject under a fresh seed is stated.

#include "catch_compat.hpp"
#include "device_santa.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

constexpr index_t n = 64, dim = 16;

/// The logits are the keys themselves. Masses of keys differ, the first tile of 32 has 0.9 of the mass.
struct Repeated {
  std::vector<float> keys, values, exact, first_tile;
  index_t repeats;

  explicit Repeated(index_t count)
      : keys(normal(n, 4)), values(normal(n * dim, 7)), exact(dim), first_tile(dim), repeats(count) {
    std::vector<double> p(at(n)), sums(2);
    for (index_t t = 0; t < n; ++t) sums[at(t / 32)] += p[at(t)] = std::exp(static_cast<double>(keys[at(t)]));
    for (index_t t = 0; t < n; ++t) {
      const double mass = t < 32 ? 0.9 : 0.1;
      keys[at(t)] = static_cast<float>(std::log(p[at(t)] * mass / sums[at(t / 32)]));
      for (index_t d = 0; d < dim; ++d) {
        const double x = p[at(t)] / sums[at(t / 32)] * static_cast<double>(values[at(t * dim + d)]);
        exact[at(d)] += static_cast<float>(mass * x);
        first_tile[at(d)] += t < 32 ? static_cast<float>(x) : 0.0f;
      }
    }
  }

  /// o of every repeat.
  std::vector<float> draw(Cuda& cuda, Santa a) const {
    a.scale = 1;
    const DeviceBuffer<float> k(keys), v(values), q(std::vector<float>(at(repeats), 1.0f)), out(repeats * dim);
    const DeviceBuffer<std::int32_t> lengths(std::vector<std::int32_t>(at(repeats), n));
    std::vector<std::uint32_t> numbers(at(repeats));
    std::iota(numbers.begin(), numbers.end(), 0u);
    const DeviceBuffer<std::uint32_t> requests(numbers);
    const auto same = [&](const float* data, index_t width) {  // stride 0 from sequence to sequence
      return View<const float, 4>(data, {repeats, 1, n, width}, {0, n * width, width, 1});
    };
    const kv::DenseKV<const float> cache{same(k.data(), 1), same(v.data(), dim), lengths.view(repeats)};
    attend(cuda, a, View<const float, 3>(q.data(), repeats, 1, 1), cache, out.view(repeats, 1, dim), {}, Causal{}, {},
           requests.view(repeats));
    cuda.check();
    return out.download();
  }

  /// Whether no coordinate's mean is further than 4.8 of its own standard errors from `from`: of 16, falsely rejected
  /// 3 times in 100000 seeds.
  bool unbiased(const std::vector<float>& o, const std::vector<float>& from) const {
    bool all = true;
    for (index_t d = 0; d < dim; ++d) {
      double mean = 0, square = 0;
      for (index_t i = 0; i < repeats; ++i) {
        const double off = static_cast<double>(o[at(i * dim + d)]) - static_cast<double>(from[at(d)]);
        mean += off / static_cast<double>(repeats);
        square += off * off / static_cast<double>(repeats);
      }
      const double deviation = std::sqrt(std::max(square - mean * mean, 0.0) / static_cast<double>(repeats));
      all = all && std::abs(mean) < 4.8 * deviation + 1e-5;
    }
    return all;
  }
};

TEST_CASE("Cuda Santa: every scheme but Prop is unbiased, and Prop is biased by what its rounded shares say") {
  cuda_test::Stream stream;
  Cuda cuda(stream);
  const Repeated problem(600);
  for (const SantaScheme scheme : all_schemes) {
    INFO(name(scheme));
    const std::vector<float> o = problem.draw(cuda, {.samples = 4, .scheme = scheme, .tile = 32});
    if (scheme != SantaScheme::prop) {
      CHECK(problem.unbiased(o, problem.exact));
      continue;
    }
    // Shares of 3.6 and 0.4 are rounded to 4 and 0.
    CHECK(!problem.unbiased(o, problem.exact));
    CHECK(problem.unbiased(o, problem.first_tile));
  }
}

}  // namespace
}  // namespace attention_test
