// One token from each row of fp32 logits under filters: filter(), then draw() from what it kept; no probabilities in
// memory. The figure is logit bytes per second and the limit one read of them. Rows are normal with deviation 2, to
// which `peaked` adds 8 for one token in 2000. Peers, on single rows: a sort of all tokens, a partial sort where top-k
// allows it, each with a softmax and a walk down; and rejection with two pivots (draw_by_rejection) after a softmax.
// The error is the largest deviation of a probability from the definition in double.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "decant/core/softmax.hpp"
#include "decant/sampling/draw.hpp"
#include "decant/sampling/process.hpp"
#include "decant/sampling/rejection.hpp"
#include "harness.hpp"
#include "oracle/sampling.hpp"

namespace {

using decant::index_t;
using decant::View;
namespace sampling = decant::sampling;

struct Batch {
  index_t rows, vocab;
  bench::Buffer<float> logits;

  Batch(index_t r, index_t v, bool peaked) : rows(r), vocab(v), logits(static_cast<std::size_t>(r * v)) {
    bench::fill(logits, 1);
    for (std::size_t i = 0; i < logits.size(); ++i)
      logits[i] = 2 * logits[i] + (peaked && i * 2654435761u % 2000 == 7 ? 8.0f : 0.0f);
  }
  View<const float, 2> view() const { return {logits.data(), rows, vocab}; }
};

/// The tokens in order, the first `sorted` of them, and the first whose cumulated share of the nucleus exceeds u.
std::int32_t walk(const std::vector<std::int32_t>& order, const std::vector<float>& p, std::size_t sorted, double top_p,
                  double u) {
  double total = 0;
  std::size_t kept = 0;
  for (; kept < sorted && total < top_p; ++kept) total += static_cast<double>(p[static_cast<std::size_t>(order[kept])]);
  double sum = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    sum += static_cast<double>(p[static_cast<std::size_t>(order[i])]);
    if (sum > u * total) return order[i];
  }
  return order[0];
}

double deviation(const sampling::Processing& p, const Batch& x, const sampling::LogitRow& row) {
  const std::vector<float> logits(x.logits.data(), x.logits.data() + x.vocab);
  std::vector<bool> keep;
  for (const oracle::Kept k : oracle::kept_tokens(p, logits)) keep.push_back(k != oracle::Kept::no);
  const std::vector<double> law = oracle::restricted(p, logits, keep);
  double worst = 0;
  for (std::size_t i = 0; i < law.size(); ++i)
    worst = std::max(worst, std::abs(law[i] - static_cast<double>(sampling::probability(row, logits[i]))));
  return worst;
}

void add(bench::Suite& suite, index_t vocab, index_t batch, bool peaked, const char* policy,
         const sampling::Processing& p) {
  suite.add({.primitive = "sample",
             .policy = policy,
             .shape = bench::shape("vocab", vocab, "batch", batch, "data", peaked ? "peaked" : "normal")},
            [=](bench::Row& row) {
              const Batch x(batch, vocab, peaked);
              decant::Cpu cpu;
              std::vector<sampling::LogitRow> rows(static_cast<std::size_t>(batch));
              std::vector<sampling::RowStatus> status(rows.size());
              std::vector<std::int32_t> tokens(rows.size());
              const auto ours = [&] {
                filter(cpu, p, x.view(), rows, status);
                sampling::draw(cpu, {x.view(), rows}, {.random = {1}}, {tokens, status});
              };
              ours();
              std::vector<float> q(static_cast<std::size_t>(vocab));
              std::vector<std::int32_t> order(q.size());
              const auto softmax = [&] { decant::softmax(cpu.isa(), x.logits.data(), vocab, q.data()); };
              const auto likelier = [&](std::int32_t a, std::int32_t b) {
                return q[static_cast<std::size_t>(a)] > q[static_cast<std::size_t>(b)];
              };
              std::vector<std::pair<std::string, bench::Call>> peers;
              if (batch == 1) {
                peers.push_back({"sort", [&] {
                                   softmax();
                                   std::iota(order.begin(), order.end(), 0);
                                   std::sort(order.begin(), order.end(), likelier);
                                   const auto k = static_cast<std::size_t>(p.top_k > 0 ? p.top_k : vocab);
                                   tokens[0] = walk(order, q, k, static_cast<double>(p.top_p), 0.4);
                                 }});
                if (p.top_k > 0) {
                  peers.push_back({"partial_sort", [&] {
                                     softmax();
                                     std::iota(order.begin(), order.end(), 0);
                                     std::partial_sort(order.begin(), order.begin() + p.top_k, order.end(), likelier);
                                     tokens[0] = walk(order, q, static_cast<std::size_t>(p.top_k),
                                                      static_cast<double>(p.top_p), 0.4);
                                   }});
                }
                peers.push_back({"dual_pivot", [&] {
                                   softmax();
                                   draw_by_rejection(cpu, p, View<const float, 2>(q.data(), 1, vocab),
                                                     {.random = {1}}, {tokens, status});
                                 }});
              }
              row.measure({.ours = ours,
                           .limit = bench::stream_read(cpu, x.logits.bytes()),
                           .peers = peers,
                           .bytes = static_cast<double>(x.logits.bytes()),
                           .error = deviation(p, x, rows[0])});
            });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("sampling", argc, argv);
  for (const long vocab : suite.sizes({32000, 128256})) {
    for (const index_t batch : {1, 16, 64}) {
      for (const bool peaked : {true, false}) {
        if (batch != 1 && !peaked) continue;
        add(suite, vocab, batch, peaked, "all", {});
        add(suite, vocab, batch, peaked, "top_k=50", {.top_k = 50});
        add(suite, vocab, batch, peaked, "top_p=0.9", {.top_p = 0.9f});
        add(suite, vocab, batch, peaked, "top_k=50,top_p=0.9", {.top_k = 50, .top_p = 0.9f});
        add(suite, vocab, batch, peaked, "min_p=0.05", {.min_p = 0.05f});
      }
    }
  }
  return suite.run();
}
