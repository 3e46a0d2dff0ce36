// decant: ancestor masks of draft trees on Cuda, from parents: for one sequence or for a batch, as TreeMask reads them.
// A thread per token walks up to the root, so that rows do not wait for each other. It must read 4 bytes per token and
// write 8 per word.
#ifndef DECANT_ATTENTION_TREE_MASK_CUH
#define DECANT_ATTENTION_TREE_MASK_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../core/cuda.cuh"
#include "tree_mask.hpp"

namespace decant::attention {

namespace detail {

inline constexpr int tree_threads = 128;

/// The drafts of a batch. indptr and offsets without data: one sequence.
struct DeviceTrees {
  View<const std::int32_t, 1> parents;
  View<std::uint64_t, 1> words;
  View<const std::int32_t, 1> indptr;
  View<const index_t, 1> offsets;

  __device__ bool batch() const { return indptr.data() != nullptr; }
  __device__ index_t first_token(index_t s) const { return batch() ? index_t{indptr[s]} : 0; }
  __device__ index_t end_token(index_t s) const { return batch() ? index_t{indptr[s + 1]} : parents.extent(0); }
  __device__ index_t first_word(index_t s) const { return batch() ? offsets[s] : 0; }
  __device__ index_t end_word(index_t s) const { return batch() ? offsets[s + 1] : words.extent(0); }
};

/// A block per sequence.
template <int Threads>
__global__ void __launch_bounds__(Threads) check_trees_kernel(const DeviceTrees x, FaultWord* fault) {
  using namespace ::decant::detail;
  const index_t s = blockIdx.x;
  const index_t first = x.first_token(s);
  const index_t end = x.end_token(s);
  const bool tokens = first >= 0 && end >= first && end <= x.parents.extent(0);
  const bool ends = s > 0 || first == 0;
  if (!tokens || !ends) {
    if (threadIdx.x == 0) report(fault, Fault::indptr, 0, 0, s);
    return;
  }
  const index_t first_word = x.first_word(s);
  const index_t end_word = x.end_word(s);
  if (threadIdx.x == 0 && (first_word < 0 || end_word > x.words.extent(0) ||
                           end_word - first_word < tree_words(end - first)))
    report(fault, Fault::mask, 0, 0, s);
  for (index_t i = threadIdx.x; i < end - first; i += Threads) {
    const index_t parent = x.parents[first + i];
    if (parent < -1 || parent >= i) report(fault, Fault::tree, 0, 0, i);
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads) write_trees_kernel(const DeviceTrees x, const FaultWord* fault) {
  if (::decant::detail::faulted(fault)) return;
  const index_t s = blockIdx.x;
  const index_t first = x.first_token(s);
  const index_t tokens = x.end_token(s) - first;
  const index_t stride = (tokens + 63) / 64;
  for (index_t i = threadIdx.x; i < tokens; i += Threads) {
    std::uint64_t* const row = &x.words[x.first_word(s) + i * stride];
    index_t token = i;  // an ancestor; those of a word come one after another, words in descending order
    for (index_t w = stride - 1; w >= 0; --w) {
      std::uint64_t bits = 0;
      for (; token >= 64 * w; token = x.parents[first + token]) bits |= std::uint64_t{1} << (token % 64);
      row[w] = bits;
    }
  }
}

inline void write_trees(Cuda& cuda, const DeviceTrees& x, index_t sequences) {
  constexpr const char* where = "attention::tree_mask_from_parents";
  require(x.words.stride(0) == 1, where, "words", "stride 1", x.words.stride(0));
  require(sequences <= 0x7fffffff, where, "indptr", "fewer than 2^31 sequences", sequences);
  const CudaGrid grid{dim3(static_cast<unsigned>(sequences)), dim3(tree_threads)};
  launch(cuda, where, check_trees_kernel<tree_threads>, grid, x, cuda.fault());
  launch(cuda, where, write_trees_kernel<tree_threads>, grid, x, cuda.fault());
}

}  // namespace detail

/// The same as tree_mask_from_parents() on the host, in device memory. A parent that does not come before its child is
/// found by the first of two kernels; nothing is written then, and cuda.check() raises the error.
inline void tree_mask_from_parents(Cuda& cuda, View<const std::int32_t, 1> parents, View<std::uint64_t, 1> words) {
  require_equal(words.extent(0), tree_words(parents.extent(0)), "attention::tree_mask_from_parents", "words");
  if (parents.extent(0) > 0) detail::write_trees(cuda, {parents, words, {}, {}}, 1);
}

/// The masks of a batch, of which TreeMask{words, offsets} reads every sequence's: the tokens of sequence s are
/// indptr[s] ... indptr[s + 1] - 1, as in Queries, their parents counted from its first; its rows begin at word
/// offsets[s]. indptr, offsets: [sequences + 1], on the device, and checked there.
inline void tree_mask_from_parents(Cuda& cuda, View<const std::int32_t, 1> parents,
                                   View<const std::int32_t, 1> indptr, View<const index_t, 1> offsets,
                                   View<std::uint64_t, 1> words) {
  constexpr const char* where = "attention::tree_mask_from_parents";
  require(indptr.extent(0) >= 1, where, "indptr", "an offset per sequence and the end", indptr.extent(0));
  require_equal(offsets.extent(0), indptr.extent(0), where, "offsets");
  detail::write_trees(cuda, {parents, words, indptr, offsets}, indptr.extent(0) - 1);
}

}  // namespace decant::attention

#endif
