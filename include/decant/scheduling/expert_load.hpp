// decant: MinMaxExpertLoad, how many tokens of replicated experts each GPU hands to a replica, so that the most loaded
// GPU has the least: LPLB's program, named in the position paper on optimising inference (arXiv 2605.01280). An edge
// says that GPU j holds a replica of an expert of GPU i, and how many tokens may go there. In place of an interior
// point method ours is exact in integers: binary search on the load, each one tested by maximum flow (Dinic). It
// counts tokens alone; that grouped products cost differently by size is not in the program.
#ifndef DECANT_SCHEDULING_EXPERT_LOAD_HPP
#define DECANT_SCHEDULING_EXPERT_LOAD_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::scheduling {

/// Up to `tokens` of GPU `from` may be computed by GPU `to`.
struct ReplicaEdge {
  std::uint32_t from = 0, to = 0;
  std::int64_t tokens = 0;
  bool operator==(const ReplicaEdge&) const = default;
};

class MinMaxExpertLoad {
 public:
  /// The least possible load of the most loaded GPU, given the loads before anything moves. Afterwards moved() has the
  /// tokens of each edge that reach it, in the order of `edges`. A GPU may pass on no more than its own load and what
  /// it receives; edges may be parallel. No allocation after the first call of a shape.
  /// O(log(largest load)) flows. ArgumentError: no GPU, a negative number, an edge of GPUs that are not there.
  std::int64_t solve(View<const std::int64_t, 1> loads, View<const ReplicaEdge, 1> edges) {
    constexpr auto where = "scheduling::MinMaxExpertLoad::solve";
    const index_t gpus = loads.extent(0);
    require(gpus > 0, where, "loads", "at least one GPU", "none");
    std::int64_t high = 0, sum = 0;
    for (index_t g = 0; g < gpus; ++g) {
      require(loads[g] >= 0, where, "loads", "loads of at least 0", loads[g]);
      high = (std::max)(high, loads[g]);
      sum += loads[g];
    }
    for (index_t e = 0; e < edges.extent(0); ++e) {
      require(edges[e].tokens >= 0, where, "edges.tokens", "at least 0", edges[e].tokens);
      require(edges[e].from < gpus && edges[e].to < gpus, where, "edges", "GPUs that have a load",
              (std::max)(edges[e].from, edges[e].to));
    }
    build(loads, edges);
    std::int64_t low = sum / gpus + (sum % gpus != 0);
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (feasible(loads, middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    feasible(loads, high);
    moved_.resize(static_cast<std::size_t>(edges.extent(0)));
    for (std::size_t e = 0; e < moved_.size(); ++e) moved_[e] = capacity_[e] - arcs_[2 * e].room;
    return high;
  }

  /// Tokens that move along each edge; valid until the next solve().
  View<const std::int64_t, 1> moved() const { return {moved_.data(), static_cast<index_t>(moved_.size())}; }

 private:
  struct Arc {
    std::uint32_t to;
    std::int64_t room;  // what may still flow; the arc of the other direction is at the index with the last bit flipped
  };

  // Nodes: the GPUs, a source that feeds what is too much, a sink that takes what there is room for.
  void build(View<const std::int64_t, 1> loads, View<const ReplicaEdge, 1> edges) {
    const auto gpus = static_cast<std::uint32_t>(loads.extent(0));
    source_ = gpus;
    sink_ = gpus + 1;
    arcs_.clear();
    capacity_.clear();
    for (index_t e = 0; e < edges.extent(0); ++e) connect(edges[e].from, edges[e].to, edges[e].tokens);
    first_of_gpus_ = arcs_.size();
    for (std::uint32_t g = 0; g < gpus; ++g) {
      connect(source_, g, 0);
      connect(g, sink_, 0);
    }
    // Arcs by the node that they leave: counts, then places.
    begin_.assign(std::size_t{gpus} + 3, 0);
    for (std::size_t a = 0; a < arcs_.size(); ++a) ++begin_[std::size_t{arcs_[a ^ 1].to} + 1];
    for (std::size_t n = 1; n < begin_.size(); ++n) begin_[n] += begin_[n - 1];
    next_.assign(begin_.begin(), begin_.end());
    leaving_.resize(arcs_.size());
    for (std::size_t a = 0; a < arcs_.size(); ++a) leaving_[next_[arcs_[a ^ 1].to]++] = a;
  }

  void connect(std::uint32_t from, std::uint32_t to, std::int64_t tokens) {
    arcs_.push_back({to, tokens});
    arcs_.push_back({from, 0});
    capacity_.push_back(tokens);
  }

  bool feasible(View<const std::int64_t, 1> loads, std::int64_t bound) {
    for (std::size_t e = 0; e < capacity_.size(); ++e) {
      arcs_[2 * e].room = capacity_[e];
      arcs_[2 * e + 1].room = 0;
    }
    std::int64_t excess = 0;
    for (index_t g = 0; g < loads.extent(0); ++g) {
      const std::size_t a = first_of_gpus_ + 4 * static_cast<std::size_t>(g);
      const std::int64_t more = loads[g] - bound;
      arcs_[a].room = (std::max)(more, std::int64_t{0});
      arcs_[a + 2].room = (std::max)(-more, std::int64_t{0});
      excess += arcs_[a].room;
    }
    while (excess > 0 && layer()) {
      next_.assign(begin_.begin(), begin_.end());
      for (std::int64_t sent; excess > 0 && (sent = push(source_, excess)) > 0;) excess -= sent;
    }
    return excess == 0;
  }

  // Distances from the source; false: the sink is out of reach.
  bool layer() {
    depth_.assign(begin_.size() - 1, -1);
    queue_.clear();
    queue_.push_back(source_);
    depth_[source_] = 0;
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      const std::uint32_t n = queue_[i];
      for (std::size_t at = begin_[n]; at < begin_[n + 1]; ++at) {
        const Arc& arc = arcs_[leaving_[at]];
        if (arc.room == 0 || depth_[arc.to] >= 0) continue;
        depth_[arc.to] = depth_[n] + 1;
        queue_.push_back(arc.to);
      }
    }
    return depth_[sink_] >= 0;
  }

  // One path through the layers; its depth is at most the number of GPUs.
  std::int64_t push(std::uint32_t node, std::int64_t most) {
    if (node == sink_) return most;
    for (; next_[node] < begin_[node + 1]; ++next_[node]) {
      const std::size_t a = leaving_[next_[node]];
      if (arcs_[a].room == 0 || depth_[arcs_[a].to] != depth_[node] + 1) continue;
      const std::int64_t sent = push(arcs_[a].to, (std::min)(most, arcs_[a].room));
      if (sent == 0) continue;
      arcs_[a].room -= sent;
      arcs_[a ^ 1].room += sent;
      return sent;
    }
    return 0;
  }

  std::uint32_t source_ = 0, sink_ = 0;
  std::size_t first_of_gpus_ = 0;
  std::vector<Arc> arcs_;
  std::vector<std::int64_t> capacity_;         // of every other arc
  std::vector<std::size_t> leaving_, begin_, next_;
  std::vector<std::int32_t> depth_;
  std::vector<std::uint32_t> queue_;
  std::vector<std::int64_t> moved_;
};

}  // namespace decant::scheduling

#endif
