// decant: how a kernel says that its input is wrong. A fault is one 64-bit word: what, where and which, packed so that
// the smallest is kept by atomicMin. So the same input tells the same fault, in whatever order threads run.
#ifndef DECANT_CORE_DETAIL_FAULT_CUH
#define DECANT_CORE_DETAIL_FAULT_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>
#include <string>

#include "../error.hpp"

namespace decant {

/// no_fault, or kind << 56 | layer << 44 | head << 32 | index.
using FaultWord = unsigned long long;
inline constexpr FaultWord no_fault = ~FaultWord{0};

namespace detail {

/// What can be wrong in device memory. `index` is a token, a page or a count.
enum class Fault : std::uint8_t {
  nan_score,         // a token's score is NaN
  budget,            // a head's budget is below its protected tokens
  capacity,          // a list of kept tokens has no room for a head's count
  length,            // a length is negative or above the capacity
  page_table,        // a page table is inconsistent or names a page that does not exist
  kept,              // kept tokens are not strictly ascending tokens of their head
  counts,            // heads keep different numbers of tokens in a cache that holds equally many
  indptr,            // query offsets that do not ascend to the number of queries
  shared_page,       // a page that compaction would move stands in the table twice
  not_positive,      // a matrix that is not positive definite: NaN or infinity among keys or values
  queries,           // fewer queries than a scorer reads; index: how many there are
  unequal_heads,     // heads of different lengths that would share their scores
  mask,              // a packed mask without a bit for each query and key
  count,             // a count of elements to take is below the protected ones or above those that there are
  anchors,           // an anchor is negative
  place,             // new rows would lie at or behind a head's end
  room,              // new or gathered rows do not fit
  freed,             // a list of freed pages is too short
  subset,            // a count of rows to choose is below the marked ones or above those that there are
  too_long,          // more tokens than a scorer takes; index: how many there are
  payload_header,    // bytes that do not begin like a payload of this codec and as many elements, or end before it does
  payload_range,     // elements wanted that a payload does not have; index: how many it has
  payload_padding,   // bytes between a payload's parts that are not 0
  payload_chunk,     // a chunk of a payload that no encoder writes; index: which
  row_lists,         // offsets that do not ascend from 0, or a row that its head does not have; index: list or row
  feature_pages,     // as page_table, for keys whose features lie together
  score_room,        // more tokens than there is room for scores; index: how many
  cascade,           // a plan of shared prefixes that was not uploaded, or names tokens that the cache does not hold
  tree,              // a parent in a draft tree that does not come before its child; index: the child
  weights,           // weights or importance that are not finite; index: a row, or with head 1 a column of the importance
  model,             // a chosen model that the ensemble does not have; index: the request
  path,              // an accepted path that is none of its tree, or without rows in the cache; index: the request
  fresh,             // new tokens of a request that are none, or that have no row in a table; index: request or token
  gate,              // an item's slot or a draft step that does not exist; index: the row
  path_page,         // a page that an accepted path's rows would move to stands in the table twice
};

__device__ inline void report(FaultWord* word, Fault kind, index_t layer, index_t head, index_t index) {
  atomicMin(word, static_cast<FaultWord>(kind) << 56 | (static_cast<FaultWord>(layer) & 0xfff) << 44 |
                      (static_cast<FaultWord>(head) & 0xfff) << 32 | (static_cast<FaultWord>(index) & 0xffffffffu));
}

/// Whether something was reported on this stream: a kernel that writes results asks first.
__device__ inline bool faulted(const FaultWord* word) { return *word != no_fault; }

/// Raises what the word says.
[[noreturn]] inline void raise_fault(FaultWord word) {
  struct Text {
    const char* where;
    const char* argument;
    const char* expected;
    bool format = false;  // bytes from outside: a FormatError
  };
  constexpr Text texts[] = {
      {"kv::select", "x", "keys, values and queries that give every token a score"},
      {"kv::select", "budget", "at least the protected tokens of every head"},
      {"kv::select", "kept.indices", "room for every head's tokens"},
      {"kv::CacheView", "lengths", "lengths from 0 to the capacity"},
      {"kv::PagedKV", "indices", "a consistent table of pages that exist"},
      {"kv::KeptView", "indices", "strictly ascending tokens of every head"},
      {"kv::compact", "kept", "equally many tokens in every head (kv::RaggedKV holds different numbers)"},
      {"attention::attend", "q.indptr", "offsets that ascend from 0 to the number of queries"},
      {"kv::compact", "cache", "pages that stand in the table once (copy a shared prefix first)"},
      {"kv::ridge_leverage", "rows", "finite rows and weights"},
      {"kv::LayerView", "queries", "queries of as many of the last tokens as the scorer reads"},
      {"kv::TOVA", "x", "heads of one length, as they share their scores"},
      {"attention::BitMask or TreeMask", "offsets", "ascending offsets with bits for each query"},
      {"top_k", "counts", "counts from the protected elements to all"},
      {"kv::Anchors", "tokens", "token indices of at least 0"},
      {"kv::write", "first", "a position whose tokens all lie below every head's length"},
      {"kv::append or gather", "cache", "room for the rows (in a paged cache: pages for just as many)"},
      {"kv::compact", "freed", "room for the pages that become empty"},
      {"kv::greedy_log_det", "count", "counts from the marked rows to all"},
      {"kv::BackwardLOO", "x", "at most 4096 tokens"},
      {"codec::decode", "in", "all of a payload of this codec and as many elements", true},
      {"codec::decode_range", "first", "elements of the payload"},
      {"codec::decode", "in", "zero padding", true},
      {"codec::decode", "in", "chunks as an encoder writes them", true},
      {"attention::sparse_gather", "lists", "offsets that ascend from 0 and rows that their heads have"},
      {"attention::FeatureMajorKeys", "indices", "a consistent table of pages that exist"},
      {"attention::bernoulli_scores", "out", "room for every token"},
      {"attention::attend", "plan", "an uploaded plan, of sequences and tokens that the cache holds"},
      {"attention::TreeMask", "parents", "-1 or an earlier token of the same sequence"},
      {"quant::quantize", "w", "finite weights, and importance that is finite and at least 0"},
      {"sampling::group", "chosen", "models of the ensemble"},
      {"speculative::keep_path", "paths", "ascending nodes of a tree that the sequence has rows for"},
      {"speculative::embed_slots", "fresh", "at least one token for each request, all with rows in the table"},
      {"speculative::gated_input or gate_step", "slots or steps", "slots of an item, and steps from 1"},
      {"speculative::keep_path", "cache", "pages that stand in the table once (copy a shared prefix first)"},
  };
  const auto kind = static_cast<std::size_t>(word >> 56);
  const Text text = kind < sizeof texts / sizeof texts[0] ? texts[kind] : Text{"Cuda", "fault", "a known fault"};
  const std::string got = "a fault at layer " + std::to_string(word >> 44 & 0xfff) + ", head " +
                          std::to_string(word >> 32 & 0xfff) + ", index " + std::to_string(word & 0xffffffffu);
  if (text.format) fail_format(text.where, text.argument, text.expected, got);
  fail_argument(text.where, text.argument, text.expected, got);
}

}  // namespace detail
}  // namespace decant

#endif
