// decant: what the kernels of SANTA on Cuda share: the arguments of a call, where things lie in scratch, and what one
// query and KV head see. Keys are numbered from the sequence's first; pieces and chunks begin at multiples of their
// lengths, whatever the mask hides, so tiles have the same numbers as on the CPU.
#ifndef DECANT_ATTENTION_DETAIL_SANTA_PLAN_CUH
#define DECANT_ATTENTION_DETAIL_SANTA_PLAN_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../../core/random.hpp"
#include "../../core/workspace.hpp"
#include "../santa_types.hpp"
#include "../state.hpp"
#include "dense_plan.cuh"
#include "santa_sampler.hpp"

namespace decant::attention {

/// What the kernels of SANTA are tuned by.
struct SantaTuning {
  /// Shared memory that a block which scores may use.
  index_t shared_bytes = 80 * 1024;
  /// Scratch for the exponentials of one round of launches; more queries than fit take several rounds.
  index_t round_bytes = index_t{256} << 20;
};

constexpr SantaTuning santa_tuning(int compute_capability) {
  return {.shared_bytes = dense_tuning(compute_capability).shared_bytes};
}

namespace detail {

/// Keys whose exponentials are counted from a common largest logit, as on the CPU.
inline constexpr int santa_block = 64;
/// Keys per sum of weights.
inline constexpr int santa_sum_keys = 16;
/// Keys that a block scores.
inline constexpr int santa_piece = 256;
/// Keys whose rows a block draws and adds.
inline constexpr int santa_chunk_keys = 1024;
inline constexpr int santa_threads = 128;
inline constexpr int santa_deal_threads = 256;

/// What one query and KV head see: no more than the keys [0, end), in the pieces [first_piece, last_piece).
struct SantaSeen {
  std::int32_t sequence;
  std::int32_t first_piece;
  std::int32_t last_piece;
  std::int32_t tile;
  std::uint32_t step;
  std::uint32_t request;
};

/// What is known of a query head when its exponentials are.
struct SantaRow {
  float reference;     // the largest logit
  float limit;         // weights from here on are taken as they are
  std::int64_t mass;   // the sum of all weights
  std::int64_t light;  // of those below the limit: the axis of thresholds
  double unit;         // the weight of one draw, where tiles have none of their own
  index_t samples;     // thresholds on that axis, unless tiles are sampled one by one
  std::uint32_t offset;
  std::int16_t tiled;
  std::int16_t nan;  // a logit is NaN or +inf
};
static_assert(sizeof(SantaRow) == 48, "it is copied by words, of which none may be padding");

struct SantaTile {
  std::int64_t before;  // weights before it
  std::int64_t mass;
  std::uint64_t rest;  // of its share
  std::int32_t budget;
};

/// Scratch of one round. A row is a query head of a query: (query * heads + head) * group + its place in the group.
struct SantaScratch {
  SantaSeen* seen;             // [queries * heads]
  float* exponentials;         // [rows][room]
  float* tops;                 // [rows][room / 64]; -inf: nothing is seen, NaN: a logit is NaN or +inf
  float* piece_tops;           // [rows][pieces]
  std::int64_t* sums;          // [rows][room / 16]
  std::int64_t* chunk_sums;    // [rows][chunks]
  std::int64_t* chunk_before;  // [rows][chunks + 1]
  SantaRow* rows;              // [rows]
  SantaTile* tiles;            // [rows][tiles]
  float* sums_of_values;       // [rows][chunks][o_stride]
  std::int32_t* drawn;         // [rows][chunks]: whether there is such a sum
};

/// What the kernels that know neither cache nor mask are given.
struct SantaCall {
  Santa a;
  index_t heads;
  index_t group;
  index_t room;    // keys of a row in scratch, whole chunks
  index_t pieces;  // of a row
  index_t chunks;
  index_t tiles;
  index_t o_stride;
  index_t first;  // query of this round
  SantaScratch w;
  FaultWord* fault;

  DECANT_HD const SantaSeen& seen(index_t row) const { return w.seen[row / group]; }
  DECANT_HD std::uint32_t word(index_t row, const SantaSeen& seen, index_t draw) const {
    return words(row, seen, draw).word[0];
  }
  DECANT_HD Philox4 words(index_t row, const SantaSeen& seen, index_t draw) const {
    const index_t head = row % (heads * group);
    const index_t leader = a.couple_group ? head / group * group : head;
    return Philox{a.seed}(static_cast<std::uint32_t>(draw), seen.step, seen.request,
                          a.layer << 16 | static_cast<std::uint32_t>(leader));
  }
};

/// What the kernel that scores is given beside.
template <class Q, class C, class M>
struct SantaScoreCall {
  SantaCall s;
  DenseDeviceShape x;
  View<const Q, 3> q;
  View<const std::int32_t, 1> indptr;
  View<const std::uint32_t, 1> requests;
  C cache;
  M mask;
  index_t at_once;  // query heads that a block holds
  bool checked;     // by a launch before
};

/// Chunks that hold a piece that is seen.
struct SantaChunks {
  index_t first;
  index_t last;
};
DECANT_HD inline SantaChunks chunks_of(const SantaSeen& seen) {
  constexpr index_t pieces = santa_chunk_keys / santa_piece;
  if (seen.first_piece >= seen.last_piece) return {0, 0};
  return {seen.first_piece / pieces, (seen.last_piece + pieces - 1) / pieces};
}

/// The sequence whose queries hold this one.
__device__ inline index_t sequence_of(const View<const std::int32_t, 1>& indptr, index_t sequences, index_t query) {
  if (indptr.data() == nullptr) return query;
  index_t low = 0;
  index_t high = sequences;
  while (high - low > 1) {  // the last one that begins at the query or before
    const index_t middle = (low + high) / 2;
    (indptr[middle] <= query ? low : high) = middle;
  }
  return low;
}

/// Reports what only the device can see, for calls with q.indptr or several rounds. Block 0 has nothing to check.
template <class C, class M>
__global__ void __launch_bounds__(santa_threads)
    santa_check_kernel(const DenseDeviceShape x, const View<const std::int32_t, 1> indptr, const C cache, const M mask,
                       FaultWord* fault) {
  if (blockIdx.x > 0) check_call(x, indptr, cache, mask, fault);
}

/// Scratch for so many queries.
inline SantaScratch santa_scratch(Workspace& memory, const SantaCall& c, index_t queries) {
  const index_t rows = queries * c.heads * c.group;
  SantaScratch w;
  w.seen = memory.take<SantaSeen>(queries * c.heads);
  w.exponentials = memory.take<float>(rows * c.room);
  w.tops = memory.take<float>(rows * (c.room / santa_block));
  w.piece_tops = memory.take<float>(rows * c.pieces);
  w.sums = memory.take<std::int64_t>(rows * (c.room / santa_sum_keys));
  w.chunk_sums = memory.take<std::int64_t>(rows * c.chunks);
  w.chunk_before = memory.take<std::int64_t>(rows * (c.chunks + 1));
  w.rows = memory.take<SantaRow>(rows);
  w.tiles = memory.take<SantaTile>(rows * c.tiles);
  w.sums_of_values = memory.take<float>(rows * c.chunks * c.o_stride);
  w.drawn = memory.take<std::int32_t>(rows * c.chunks);
  return w;
}

}  // namespace detail
}  // namespace decant::attention

#endif
