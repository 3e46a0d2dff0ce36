// top_k: the quarter with the largest scores, as ascending indices. The limit is one read of the scores. Peers do the
// same with the standard library: nth_element or partial_sort of indices by (score descending, index ascending), then a
// sort of the kept ones.

#include <algorithm>
#include <numeric>
#include <vector>

#include "decant/core/topk.hpp"
#include "harness.hpp"

int main(int argc, char** argv) {
  bench::Suite suite("core", argc, argv);
  for (const long n : suite.sizes({4096, 32768, 131072})) {
    suite.add({.primitive = "select", .policy = "top_k", .shape = bench::shape("n", n, "keep", 0.25, "dtype", "f32")},
              [=](bench::Row& row) {
                bench::Buffer<float> scores(static_cast<std::size_t>(n));
                bench::fill(scores, 1);
                const long k = n / 4;
                std::vector<std::int32_t> out(static_cast<std::size_t>(k)), order(static_cast<std::size_t>(n));
                decant::Cpu cpu;
                const decant::View<const float, 1> view(scores.data(), n);
                const auto larger = [&](std::int32_t a, std::int32_t b) {
                  const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
                  return x != y ? x > y : a < b;
                };
                const auto nth_element = [&] {
                  std::iota(order.begin(), order.end(), 0);
                  std::nth_element(order.begin(), order.begin() + k, order.end(), larger);
                  std::sort(order.begin(), order.begin() + k);
                };
                const auto partial_sort = [&] {
                  std::iota(order.begin(), order.end(), 0);
                  std::partial_sort(order.begin(), order.begin() + k, order.end(), larger);
                  std::sort(order.begin(), order.begin() + k);
                };
                const auto ours = [&] { decant::top_k(cpu, view, k, out.data()); };
                ours();
                nth_element();
                const bool same = std::equal(out.begin(), out.end(), order.begin());
                row.measure({.ours = ours,
                             .limit = bench::stream_read(cpu, scores.bytes()),
                             .peers = {{"nth_element", nth_element}, {"partial_sort", partial_sort}},
                             .items = static_cast<double>(n),
                             .error = same ? 0.0 : 1.0});
              });
  }
  return suite.run();
}
