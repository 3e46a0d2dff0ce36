// MinMaxExpertLoad against the dual bound over all sets of GPUs, which is another algorithm, and what must hold of the
// tokens that it moves.
#include <algorithm>
#include <numeric>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/expert_load.hpp"
#include "decant/scheduling/workload.hpp"
#include "oracle/expert_load.hpp"

namespace expert_load_test {

using namespace decant;
using namespace decant::scheduling;

struct Instance {
  std::vector<std::int64_t> loads;
  std::vector<ReplicaEdge> edges;

  View<const std::int64_t, 1> load_view() const { return {loads.data(), static_cast<index_t>(loads.size())}; }
  View<const ReplicaEdge, 1> edge_view() const { return {edges.data(), static_cast<index_t>(edges.size())}; }
};

Instance random_instance(SplitMix64& next) {
  Instance in;
  const auto gpus = static_cast<std::uint32_t>(1 + next() % 6);
  for (std::uint32_t g = 0; g < gpus; ++g) in.loads.push_back(static_cast<std::int64_t>(next() % 200));
  for (std::uint64_t e = next() % 12; e > 0; --e) {
    const auto from = static_cast<std::uint32_t>(next() % gpus), to = static_cast<std::uint32_t>(next() % gpus);
    in.edges.push_back({from, to, static_cast<std::int64_t>(next() % 60)});
  }
  return in;
}

TEST_CASE("MinMaxExpertLoad: by hand") {
  struct Golden {
    std::int64_t tokens;
    double exact;
    std::int64_t whole;
  };
  for (const Golden& g : {Golden{30, 58.25, 59}, Golden{20, 60, 60}, Golden{15, 75, 75}, Golden{0, 120, 120}}) {
    Instance in{{120, 40, 35, 38}, {}};
    for (std::uint32_t to = 1; to < 4; ++to) in.edges.push_back({0, to, g.tokens});
    MinMaxExpertLoad solver;
    CHECK(solver.solve(in.load_view(), in.edge_view()) == g.whole);
    CHECK(oracle::expert_load(in.loads, in.edges).value() == g.exact);
  }
  // A chain: 1 makes room for what it receives.
  const Instance chain{{90, 60, 0}, {{0, 1, 60}, {1, 2, 60}}};
  MinMaxExpertLoad solver;
  CHECK(solver.solve(chain.load_view(), chain.edge_view()) == 50);
  CHECK(solver.moved()[0] == 40);
  CHECK(solver.moved()[1] == 50);
  const Instance none{{7}, {}};
  CHECK(solver.solve(none.load_view(), none.edge_view()) == 7);
  CHECK(solver.moved().empty());
}

TEST_CASE("MinMaxExpertLoad: random instances against the dual, and the tokens that move") {
  SplitMix64 next{3};
  MinMaxExpertLoad solver;
  int mismatches = 0, broken = 0, better = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    Instance in = random_instance(next);
    const std::int64_t best = solver.solve(in.load_view(), in.edge_view());
    const std::int64_t largest = *std::max_element(in.loads.begin(), in.loads.end());
    const std::int64_t sum = std::accumulate(in.loads.begin(), in.loads.end(), std::int64_t{0});
    const auto gpus = static_cast<std::int64_t>(in.loads.size());
    mismatches += best != oracle::expert_load(in.loads, in.edges).rounded_up();
    broken += best > largest || best * gpus < sum;
    better += best < largest;
    std::vector<std::int64_t> after = in.loads;
    for (std::size_t e = 0; e < in.edges.size(); ++e) {
      const std::int64_t moved = solver.moved()[static_cast<index_t>(e)];
      broken += moved < 0 || moved > in.edges[e].tokens;
      after[in.edges[e].from] -= moved;
      after[in.edges[e].to] += moved;
    }
    for (const std::int64_t load : after) broken += load < 0 || load > best;
    if (in.edges.empty()) continue;
    in.edges[next() % in.edges.size()].tokens += 25;
    broken += solver.solve(in.load_view(), in.edge_view()) > best;
  }
  CHECK(mismatches == 0);
  CHECK(broken == 0);
  CHECK(better > 1000);
}

TEST_CASE("MinMaxExpertLoad: sixteen GPUs, each with replicas on four others") {
  SplitMix64 next{9};
  Instance in;
  for (std::uint32_t g = 0; g < 16; ++g) in.loads.push_back(static_cast<std::int64_t>(next() % 4096));
  for (std::uint32_t g = 0; g < 16; ++g) {
    for (std::uint32_t k = 1; k <= 8; k *= 2) {
      in.edges.push_back({g, (g + k) % 16, static_cast<std::int64_t>(next() % 300)});
    }
  }
  MinMaxExpertLoad solver;
  CHECK(solver.solve(in.load_view(), in.edge_view()) == oracle::expert_load(in.loads, in.edges).rounded_up());
}

TEST_CASE("MinMaxExpertLoad: arguments") {
  MinMaxExpertLoad solver;
  const auto solve = [&](const Instance& in) { return solver.solve(in.load_view(), in.edge_view()); };
  CHECK_THROWS_AS(solve({{}, {}}), ArgumentError);
  CHECK_THROWS_AS(solve({{-1}, {}}), ArgumentError);
  CHECK_THROWS_AS(solve({{1, 1}, {{0, 2, 1}}}), ArgumentError);
  CHECK_THROWS_AS(solve({{1, 1}, {{0, 1, -1}}}), ArgumentError);
}

}  // namespace expert_load_test
