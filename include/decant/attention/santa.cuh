// decant: attention::Santa on Cuda: decode (and any other queries, one by one) over any cache view, capturable. Five
// launches: scores of all keys, sums of their integer weights, what is drawn where, the drawn rows, and the end. The
// draws are the CPU's given the same exponentials, for every scheme and cache layout. [ours] Flash too goes through
// the sums: its samples per tile depend on how many tiles have any weight beside the head's largest logit, which a
// single pass would not know, so it would draw other rows than the CPU does.
#ifndef DECANT_ATTENTION_SANTA_CUH
#define DECANT_ATTENTION_SANTA_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/santa_deal.cuh"
#include "detail/santa_gather.cuh"
#include "detail/santa_merge.cuh"
#include "detail/santa_score_rows.cuh"
#include "santa.hpp"

namespace decant::attention {

namespace detail {

/// Query heads that a block multiplies with its keys: the group, or as much of it as shared memory holds beside them.
template <class T>
index_t santa_at_once(index_t key_dim, index_t group, index_t preferred, index_t most) {
  index_t heads = ceil_div(group, santa_score_rows) * santa_score_rows;
  while (heads > santa_score_rows && santa_score_layout<T>(key_dim, heads, preferred, most).bytes > preferred)
    heads = ceil_div(heads / 2, santa_score_rows) * santa_score_rows;
  return heads;
}

template <int Rows, class C>
void santa_gather(const Cuda& cuda, const SantaCall& call, const C& cache, bool aligned, index_t tasks) {
  constexpr const char* where = "attention::attend";
  const SantaGatherLayout layout = santa_gather_layout<Rows, C>(cache.value_dim());
  require(layout.bytes <= cuda.device().shared_bytes, where, "cache", "head dims that fit in shared memory",
          layout.bytes);
  launch(cuda, where, santa_gather_kernel<Rows, C>,
         CudaGrid{dim3(static_cast<unsigned>(tasks * call.chunks)), dim3(santa_threads),
                  static_cast<std::size_t>(layout.bytes)},
         call, cache, aligned, layout);
}

}  // namespace detail

/// The same as attend(Cpu&, ...), with everything in device memory, the kernels' constants chosen by the caller.
template <Storage Q, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cuda& cuda, const SantaTuning& tuning, const Santa& a, const Queries<Q>& q, const C& cache, View<O, 3> out,
            View<float, 2> lse = {}, const M& mask = {}, View<const float, 1> sinks = {},
            View<const std::uint32_t, 1> requests = {}) {
  using namespace detail;
  using T = shared_row_t<C>;
  constexpr const char* where = "attention::attend";
  validate(a);
  kv::detail::require_cache(cache);
  validate_dense_shapes(Dense{}, q, cache, out, lse, sinks);
  require(q.rows.extent(1) <= 65536, where, "q", "at most 65536 query heads", q.rows.extent(1));
  if (requests.data() != nullptr || requests.extent(0) != 0)
    require_equal(requests.extent(0), cache.sequences(), where, "requests");
  const index_t total = q.rows.extent(0);
  if (total == 0) return;

  SantaScoreCall<Q, C, M> call{{}, {}, q.rows, q.indptr, requests, cache, mask, 0, false};
  const bool one_query_each = q.indptr.empty();
  if (one_query_each) call.indptr = {};
  DenseDeviceShape& x = call.x;
  x = dense_device_shape(q.rows, cache, a.scale, a.soft_cap, where);
  x.longest = x.longest < santa_most_keys ? x.longest : santa_most_keys - 1;

  SantaCall& s = call.s;
  s.a = a;
  s.heads = x.heads;
  s.group = x.group;
  s.chunks = x.longest > 0 ? ceil_div(x.longest, santa_chunk_keys) : 1;
  s.room = s.chunks * santa_chunk_keys;
  s.pieces = s.room / santa_piece;
  const bool tiled =
      a.scheme == SantaScheme::flash || a.scheme == SantaScheme::prop || a.scheme == SantaScheme::prop_exact;
  s.tiles = tiled ? s.room / santa_tile(a, 0) + 1 : 0;
  s.o_stride = x.o_stride;
  s.fault = cuda.fault();

  const index_t most = cuda.device().shared_bytes;
  call.at_once = santa_at_once<T>(x.key_dim, x.group, tuning.shared_bytes, most);
  const SantaScoreLayout layout = santa_score_layout<T>(x.key_dim, call.at_once, tuning.shared_bytes, most);
  require(layout.bytes <= most, where, "cache", "head dims that fit in shared memory", layout.bytes);
  const index_t parts = ceil_div(x.group, call.at_once);
  const index_t query_heads = x.heads * x.group;
  const index_t blocks = (s.pieces * parts > s.chunks * x.group ? s.pieces * parts : s.chunks * x.group) * x.heads;
  require(blocks < index_t{1} << 31, where, "q", "fewer heads for such a cache", blocks);
  index_t round = tuning.round_bytes / (query_heads * s.room * 5);
  if (round > ((index_t{1} << 31) - 1) / blocks) round = ((index_t{1} << 31) - 1) / blocks;
  round = round < 1 ? 1 : round > total ? total : round;

  Workspace::Scope scope(cuda.workspace());
  s.w = santa_scratch(cuda.workspace(), s, round);
  // One round with one query each checks while it scores. Others could write results before they have seen a fault.
  call.checked = !one_query_each || round < total;
  if (call.checked) {
    const unsigned checkers = cuda_blocks(x.sequences, 1, 4 * index_t{cuda.device().multiprocessors});
    launch(cuda, where, santa_check_kernel<C, M>, CudaGrid{dim3(1 + checkers), dim3(santa_threads)}, x, call.indptr,
           cache, mask, cuda.fault());
  }
  for (s.first = 0; s.first < total; s.first += round) {
    const index_t queries = total - s.first < round ? total - s.first : round;
    const index_t rows = queries * query_heads;
    const auto grid = [](index_t n, int threads, int shared = 0) {
      return CudaGrid{dim3(static_cast<unsigned>(n)), dim3(static_cast<unsigned>(threads)),
                      static_cast<std::size_t>(shared)};
    };
    launch(cuda, where, santa_score_kernel<Q, C, M>,
           grid(queries * x.heads * parts * s.pieces, santa_threads, layout.bytes), call, layout);
    launch(cuda, where, santa_weigh_kernel<santa_threads>, grid(rows * s.chunks, santa_threads), s);
    launch(cuda, where, santa_deal_kernel<santa_deal_threads>, grid(rows, santa_deal_threads), s);
    if (x.group <= 4)
      santa_gather<4>(cuda, s, cache, x.aligned, queries * x.heads);
    else
      santa_gather<8>(cuda, s, cache, x.aligned, queries * x.heads);
    launch(cuda, where, santa_merge_kernel<O>, grid(rows, santa_threads), s, out, lse, sinks);
  }
}

/// The same as attend(Cpu&, ...), see santa.hpp, with everything in device memory.
///
/// lse is exact within 1e-5, o an estimate with the same draws as on the CPU, given the same exponentials of logits:
/// those agree in all bits with the CPU's portable path where the logits do. Enqueues and returns. What the host sees
/// (shapes, strides, parameters) raises ArgumentError at once; lengths, tables, offsets and packed masks are checked by
/// the kernels, which then write nothing, and cuda.check() raises the error. A cache view of the user's own must have
/// capacity(), as scratch is sized by it on the host. The same bytes from any cache layout and batch; rows that other
/// heads of the group have drawn may change the order of a head's sum, and so its last bits.
/// Scratch: for each query and query head about 4.6 bytes per token of the cache's capacity, 32 per tile where tiles
/// are sampled one by one, and 4 * value_dim per 1024 tokens; many queries take rounds of SantaTuning::round_bytes.
/// threshold_systematic reads the weights of a head a few times by one block, which shows from some 10^5 tokens on.
template <Storage Q, kv::CacheView C, Storage O, Mask M = Causal>
void attend(Cuda& cuda, const Santa& a, const Queries<Q>& q, const C& cache, View<O, 3> out, View<float, 2> lse = {},
            const M& mask = {}, View<const float, 1> sinks = {}, View<const std::uint32_t, 1> requests = {}) {
  attend(cuda, santa_tuning(cuda.device().compute_capability), a, q, cache, out, lse, mask, sinks, requests);
}

/// The same for one query per sequence: q [sequences, query_heads, key_dim].
template <class Q, kv::CacheView C, Storage O, Mask M = Causal>
requires Storage<Q>
void attend(Cuda& cuda, const Santa& a, View<Q, 3> q, const C& cache, View<O, 3> out, View<float, 2> lse = {},
            const M& mask = {}, View<const float, 1> sinks = {}, View<const std::uint32_t, 1> requests = {}) {
  attend(cuda, a, Queries<std::remove_const_t<Q>>{q}, cache, out, lse, mask, sinks, requests);
}

static_assert(AttentionPolicy<Santa, Cuda>);

}  // namespace decant::attention

#endif
