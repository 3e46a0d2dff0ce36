// EAR of two models' logits: the figure is logit bytes of both per second and the limit one read of them. The peer
// forms both distributions with decant's softmax and then sums the minima: three reads and two writes more. The error
// is the largest deviation of a position's EAR from the definition in double.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "decant/quant/ear.hpp"
#include "harness.hpp"
#include "oracle/ear.hpp"

namespace {

using decant::index_t;
using decant::View;
namespace quant = decant::quant;

template <class T>
struct Logits {
  index_t positions, vocab;
  bench::Buffer<T> p, q;

  Logits(index_t n, index_t v)
      : positions(n), vocab(v), p(static_cast<std::size_t>(n * v)), q(static_cast<std::size_t>(n * v)) {
    bench::fill(p, 1);
    bench::fill(q, 2);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const float x = 3 * static_cast<float>(p[i]);
      p[i] = T(x);
      q[i] = T(x + 0.3f * static_cast<float>(q[i]));
    }
  }
  View<const T, 2> view(const bench::Buffer<T>& x) const { return {x.data(), positions, vocab}; }
  std::vector<double> row(const bench::Buffer<T>& x, index_t i) const {
    std::vector<double> result;
    for (index_t v = 0; v < vocab; ++v)
      result.push_back(static_cast<double>(static_cast<float>(x[static_cast<std::size_t>(i * vocab + v)])));
    return result;
  }
};

double sum_of_minima(const float* a, const float* b, index_t n) {
  double sum = 0;
  for (index_t i = 0; i < n; i += 64) {
    float lane[16] = {};
    for (index_t j = 0; j < 64; j += 16) {
      for (index_t l = 0; l < 16; ++l) lane[l] += std::min(a[i + j + l], b[i + j + l]);
    }
    for (const float x : lane) sum += static_cast<double>(x);
  }
  return sum;
}

template <class T>
void add(bench::Suite& suite, const char* dtype, index_t positions, index_t vocab, quant::EarSupport support) {
  suite.add({.primitive = "ear",
             .policy = std::string("Ear ") + name(support),
             .shape = bench::shape("positions", positions, "vocab", vocab, "dtype", dtype)},
            [=](bench::Row& row) {
              const Logits<T> x(positions, vocab);
              const quant::EarOptions options{.support = support};
              std::vector<quant::EarPosition> each(static_cast<std::size_t>(positions));
              decant::Cpu cpu;
              double seen = 0;
              const auto ours = [&] { seen = quant::ear(cpu, x.view(x.p), x.view(x.q), options, {}, each).ear; };
              ours();
              double error = 0;
              for (index_t i = 0; i < std::min<index_t>(positions, 4); ++i)
                error = std::max(error, std::abs(each[static_cast<std::size_t>(i)].ear -
                                                 oracle::ear(x.row(x.p, i), x.row(x.q, i), options).ear));
              std::vector<float> a(static_cast<std::size_t>(vocab)), b(a.size());
              std::vector<std::pair<std::string, bench::Call>> peers;
              if (support == quant::EarSupport::full) {
                peers.push_back({"softmax twice", [&] {
                                   double sum = 0;
                                   for (index_t i = 0; i < positions; ++i) {
                                     const auto at = static_cast<std::size_t>(i * vocab);
                                     decant::convert(cpu.isa(), x.p.data() + at, vocab, a.data());
                                     decant::convert(cpu.isa(), x.q.data() + at, vocab, b.data());
                                     decant::softmax(cpu.isa(), a.data(), vocab, a.data());
                                     decant::softmax(cpu.isa(), b.data(), vocab, b.data());
                                     sum += sum_of_minima(a.data(), b.data(), vocab);
                                   }
                                   seen = sum / static_cast<double>(positions);
                                 }});
              }
              row.measure({.ours = ours,
                           .limit = bench::stream_read(cpu, x.p.bytes() + x.q.bytes()),
                           .peers = peers,
                           .bytes = static_cast<double>(x.p.bytes() + x.q.bytes()),
                           .error = error});
            });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("quant", argc, argv);
  for (const long vocab : suite.sizes({32768, 131072})) {
    add<float>(suite, "f32", 64, vocab, quant::EarSupport::full);
    add<decant::bf16>(suite, "bf16", 64, vocab, quant::EarSupport::full);
    add<decant::bf16>(suite, "bf16", 64, vocab, quant::EarSupport::topk);
  }
  return suite.run();
}
