// decant: what a change of tensor parallelism does to keys, values and weights (PAT, arXiv 2605.23945; formulas ours
// [recon]): which heads change their device, which requests should carry theirs over and which compute them anew, and
// which slice of a weight a rank owns. Heads and rows are dealt out in order: of n, rank r of p has [r n/p, (r+1) n/p),
// uneven dims padded to a multiple of p; where there are fewer KV heads than ranks each is kept by p / n of them.
#ifndef DECANT_SCHEDULING_KV_MOVES_HPP
#define DECANT_SCHEDULING_KV_MOVES_HPP

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::scheduling {

/// Whether `rank` of `degree` keeps KV head `head` of `heads`. One of heads and degree divides the other.
constexpr bool keeps_head(std::uint32_t heads, std::uint32_t degree, std::uint32_t rank, std::uint32_t head) {
  return heads >= degree ? head / (heads / degree) == rank : rank / (degree / heads) == head;
}

/// Copies of heads that must be sent when a request goes from degree p to q, as a share of its heads: it lies on ranks
/// 0 to p - 1 before and is needed on ranks 0 to q - 1. Replicated heads (fewer than q) make it exceed 1. ArgumentError:
/// heads that the degrees do not divide, or that do not divide them.
inline double moved_share(std::uint32_t heads, std::uint32_t p, std::uint32_t q) {
  constexpr auto where = "scheduling::moved_share";
  require(heads >= 1 && p >= 1 && q >= 1, where, "heads", "heads and degrees of at least 1", heads);
  for (const std::uint32_t degree : {p, q}) {
    require(heads % degree == 0 || degree % heads == 0, where, "heads", "a divisor or a multiple of each degree", degree);
  }
  std::uint64_t copies = 0;
  for (std::uint32_t rank = 0; rank < q; ++rank) {
    for (std::uint32_t head = 0; head < heads; ++head) {
      copies += keeps_head(heads, q, rank, head) && !(rank < p && keeps_head(heads, p, rank, head));
    }
  }
  return static_cast<double>(copies) / heads;
}

struct KvLink {
  double bytes_per_second = 100e9;
  double latency_seconds = 0;  ///< of each request
};

/// Which requests carry their keys and values over (true), the others computing them anew, so that the sum is smallest:
/// migrate [n] seconds each, additive; recompute(total tokens) seconds of a batch, concave. Among splits of the requests
/// by what migration costs more than recomputation alone. `tokens` [n]. O(n log n) and n calls of recompute.
template <class Recompute>
std::vector<char> plan_kv_moves(View<const double, 1> migrate, View<const std::uint64_t, 1> tokens,
                                const Recompute& recompute) {
  require_equal(tokens.extent(0), migrate.extent(0), "scheduling::plan_kv_moves", "tokens");
  const auto n = static_cast<std::size_t>(migrate.extent(0));
  std::vector<std::size_t> order(n);
  std::vector<double> worse(n);
  double moving = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = static_cast<index_t>(i);
    order[i] = i;
    worse[i] = migrate[at] - recompute(tokens[at]);
    moving += migrate[at];
  }
  // Those for which moving is worst are recomputed first.
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return worse[a] != worse[b] ? worse[a] > worse[b] : a < b;
  });
  double best = moving;
  std::size_t recomputed = 0;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = static_cast<index_t>(order[i]);
    moving -= migrate[at];
    total += tokens[at];
    const double seconds = moving + recompute(total);
    if (seconds < best) {
      best = seconds;
      recomputed = i + 1;
    }
  }
  std::vector<char> moves(n, 1);
  for (std::size_t i = 0; i < recomputed; ++i) moves[order[i]] = 0;
  return moves;
}

/// Requests in waves, so that what is in flight, which exists twice, stays within `spare` bytes: the wave of each, in
/// their order. ArgumentError: one that alone exceeds it.
inline std::vector<std::uint32_t> migration_waves(View<const std::uint64_t, 1> bytes, std::uint64_t spare) {
  std::vector<std::uint32_t> waves(static_cast<std::size_t>(bytes.extent(0)));
  std::uint64_t flying = 0;
  std::uint32_t wave = 0;
  for (index_t i = 0; i < bytes.extent(0); ++i) {
    require(bytes[i] <= spare, "scheduling::migration_waves", "bytes", "requests within the spare memory", bytes[i]);
    if (flying + bytes[i] > spare) {
      ++wave;
      flying = 0;
    }
    flying += bytes[i];
    waves[static_cast<std::size_t>(i)] = wave;
  }
  return waves;
}

/// How a weight is cut: column-parallel ones (QKV, gate, up) by rows of the output, row-parallel ones (O, down) by
/// columns of the input.
enum class Cut : std::uint8_t { rows, columns };

/// Where an element is in the shards of one degree.
struct ShardPlace {
  std::uint32_t rank = 0;
  index_t row = 0, column = 0;
  bool operator==(const ShardPlace&) const = default;
};

/// The place of element (row, column) of a [rows, columns] weight at `degree`; the cut dimension is padded.
constexpr ShardPlace shard_place(Cut cut, index_t rows, index_t columns, std::uint32_t degree, index_t row,
                                 index_t column) {
  const index_t extent = cut == Cut::rows ? rows : columns;
  const index_t slice = (extent + degree - 1) / degree;
  if (cut == Cut::rows) return {static_cast<std::uint32_t>(row / slice), row % slice, column};
  return {static_cast<std::uint32_t>(column / slice), row, column % slice};
}

/// Which element a place holds, the inverse; false: padding.
constexpr bool shard_element(Cut cut, index_t rows, index_t columns, std::uint32_t degree, const ShardPlace& place,
                             index_t& row, index_t& column) {
  const index_t slice = ((cut == Cut::rows ? rows : columns) + degree - 1) / degree;
  row = cut == Cut::rows ? static_cast<index_t>(place.rank) * slice + place.row : place.row;
  column = cut == Cut::rows ? place.column : static_cast<index_t>(place.rank) * slice + place.column;
  return row < rows && column < columns;
}

}  // namespace decant::scheduling

#endif
