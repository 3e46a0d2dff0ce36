// decant: a CascadePlan on Cuda: made on the host, once per step for all layers, and sent to memory that the caller
// owns. Buffers, grids and scratch are sized by a CascadeRoom, not by the plan, so that a captured graph can be
// replayed after another plan that fits has been sent to the same memory. cascade.cuh does the attention.
#ifndef DECANT_ATTENTION_CASCADE_PLAN_CUH
#define DECANT_ATTENTION_CASCADE_PLAN_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../core/cuda.cuh"
#include "cascade_plan.hpp"

namespace decant::attention {

/// Bounds of plans: what cascade_room() says of one, or more.
struct CascadeRoom {
  index_t requests = 0;  // not a bound: how many every call has. A plan of fewer leaves the last ones without keys.
  index_t segments = 0;
  index_t pieces = 0;
  index_t states = 0;   // pairs of a piece and a request that shares it
  index_t tokens = 0;   // of all pieces
  index_t longest = 0;  // tokens of a request
  index_t deepest = 0;  // pieces of a request

  bool operator==(const CascadeRoom&) const = default;
};

/// What a plan needs. O(states).
inline CascadeRoom cascade_room(const CascadePlan& plan) {
  const detail::CascadeView p = plan;
  CascadeRoom room{p.requests(), p.segments.extent(0), p.pieces.extent(0), p.requests_of.extent(0), plan.tokens()};
  for (index_t r = 0; r < p.requests(); ++r) {
    room.deepest = std::max(room.deepest, p.request_indptr[r + 1] - p.request_indptr[r]);
    index_t tokens = 0;
    for (index_t s = p.leaves[r]; s >= 0; s = p.segments[s].parent) tokens += p.segments[s].last - p.segments[s].first;
    room.longest = std::max(room.longest, tokens);
  }
  return room;
}

/// A CascadePlan in device memory, not owned: what attend() takes. `words`: cascade_words(room) numbers.
struct DeviceCascade {
  CascadeRoom room;
  std::int32_t* words = nullptr;
};

inline void validate(const CascadeRoom& r) {
  constexpr const char* where = "attention::CascadeRoom";
  constexpr index_t most = 0x7fffffff;
  const auto check = [&](index_t x, const char* argument) {
    require(x >= 0 && x <= most, where, argument, "0 to 2^31 - 1", x);
  };
  check(r.requests, "requests");
  check(r.segments, "segments");
  check(r.pieces, "pieces");
  check(r.states, "states");
  check(r.longest, "longest");
  check(r.deepest, "deepest");
  require(r.tokens >= 0, where, "tokens", "at least 0", r.tokens);
}

namespace detail {

/// Where the parts of a plan stand in its words. Behind the counts of segments and pieces, four words per segment and
/// piece, as Segment and CascadePiece have them; then the lists of CascadeView, `order`, the pieces, longest first, and
/// piece_of, the piece of each pair.
struct CascadeLayout {
  index_t segments, pieces, leaves, piece_indptr, order, requests_of, piece_of, request_indptr, parts_of, words;

  DECANT_HD explicit constexpr CascadeLayout(const CascadeRoom& r)
      : segments(4),
        pieces(segments + 4 * r.segments),
        leaves(pieces + 4 * r.pieces),
        piece_indptr(leaves + r.requests),
        order(piece_indptr + r.pieces + 1),
        requests_of(order + r.pieces),
        piece_of(requests_of + r.states),
        request_indptr(piece_of + r.states),
        parts_of(request_indptr + r.requests + 1),
        words(parts_of + r.states) {}
};

}  // namespace detail

/// How many numbers a plan of that room takes.
inline index_t cascade_words(const CascadeRoom& room) {
  validate(room);
  return detail::CascadeLayout(room).words;
}

/// Sends a plan to the device: to memory [cascade_words(room)] there, by way of staging [cascade_words(room)], host
/// memory that must stay as it is until the stream has come to the copy, and be page-locked for the call not to wait.
/// ArgumentError when the plan has no room, before anything is enqueued. O(words + pieces log pieces).
inline DeviceCascade upload(Cuda& cuda, const CascadePlan& plan, const CascadeRoom& room,
                            View<std::int32_t, 1> staging, View<std::int32_t, 1> memory) {
  constexpr const char* where = "attention::upload";
  const index_t words = cascade_words(room);
  require_equal(staging.extent(0), words, where, "staging");
  require_equal(memory.extent(0), words, where, "memory");
  require(staging.stride(0) == 1 && memory.stride(0) == 1, where, "memory", "stride 1", memory.stride(0));
  const CascadeRoom needed = cascade_room(plan);
  const auto fits = [&](index_t has, index_t needs, const char* argument) {
    require(needs <= has, where, argument, [&] { return "at most room for " + std::to_string(has); }, needs);
  };
  fits(room.requests, needed.requests, "plan.requests");
  fits(room.segments, needed.segments, "plan.segments");
  fits(room.pieces, needed.pieces, "plan.pieces");
  fits(room.states, needed.states, "plan.states");
  fits(room.tokens, needed.tokens, "plan.tokens");
  fits(room.longest, needed.longest, "plan.longest");
  fits(room.deepest, needed.deepest, "plan.deepest");

  const detail::CascadeView p = plan;
  const detail::CascadeLayout at(room);
  std::int32_t* const w = staging.data();
  std::fill_n(w, words, 0);
  const auto put = [&](index_t to, index_t value) { w[to] = static_cast<std::int32_t>(value); };
  put(0, needed.segments);
  put(1, needed.pieces);
  for (index_t s = 0; s < needed.segments; ++s) {
    const Segment& x = p.segments[s];
    const index_t four[] = {x.parent, x.sequence, x.first, x.last};
    for (index_t i = 0; i < 4; ++i) put(at.segments + 4 * s + i, four[i]);
  }
  for (index_t i = 0; i < needed.pieces; ++i) {
    const detail::CascadePiece& x = p.pieces[i];
    const index_t four[] = {x.segment, x.sequence, x.first, x.last};
    for (index_t k = 0; k < 4; ++k) put(at.pieces + 4 * i + k, four[k]);
    put(at.order + i, i);
    for (index_t k = p.piece_indptr[i]; k < p.piece_indptr[i + 1]; ++k) put(at.piece_of + k, i);
  }
  std::sort(w + at.order, w + at.order + needed.pieces, [&](std::int32_t a, std::int32_t b) {
    const index_t long_a = p.pieces[a].last - p.pieces[a].first;
    const index_t long_b = p.pieces[b].last - p.pieces[b].first;
    return long_a != long_b ? long_a > long_b : a < b;
  });
  for (index_t i = 0; i <= needed.pieces; ++i) put(at.piece_indptr + i, p.piece_indptr[i]);
  for (index_t r = 0; r < room.requests; ++r) put(at.leaves + r, r < needed.requests ? p.leaves[r] : -1);
  for (index_t r = 0; r <= room.requests; ++r)
    put(at.request_indptr + r, p.request_indptr[r < needed.requests ? r : needed.requests]);
  for (index_t i = 0; i < needed.states; ++i) {
    put(at.requests_of + i, p.requests_of[i]);
    put(at.parts_of + i, p.parts_of[i]);
  }
  ::decant::detail::require_cuda(
      cudaMemcpyAsync(memory.data(), w, static_cast<std::size_t>(words) * sizeof *w, cudaMemcpyHostToDevice,
                      cuda.stream()),
      where, "cudaMemcpyAsync");
  return {room, memory.data()};
}

}  // namespace decant::attention

#endif
