// decant: the sum of listed value rows of one KV head, for all query heads of its group at once: what every method that
// reads some rows only does with them. Rows are asked of the memory when they are named and added one or two batches of
// 64 later, by the kernels of dense attention, so that memory and arithmetic overlap although no stream is read.
#ifndef DECANT_ATTENTION_DETAIL_SPARSE_GATHER_ROWS_HPP
#define DECANT_ATTENTION_DETAIL_SPARSE_GATHER_ROWS_HPP

#include "dense_tile.hpp"

namespace decant::attention::detail {

template <class C>
class RowSum {
 public:
  using Row = typename DenseRow<C>::type;

  /// Floats of memory that one needs for `heads` query heads; o_stride: value_dim, rounded up to 16.
  static index_t floats(index_t heads, index_t o_stride) {
    const index_t buffers = kv::PlainCacheView<C> ? 0 : 2 * dense_block * o_stride;
    return 2 * heads * dense_block + DenseScratch::round(heads) + buffers;
  }

  RowSum(const C& cache, Isa isa, index_t heads, index_t o_stride, float* memory)
      : cache_(cache),
        kernels_(dense_kernels<Row>(isa)),
        heads_(heads),
        o_stride_(o_stride),
        ones_(memory + 2 * heads * dense_block),
        buffer_(ones_ + DenseScratch::round(heads)) {
    weights_[0] = memory;
    weights_[1] = memory + heads * dense_block;
    for (index_t r = 0; r < heads; ++r) ones_[r] = 1;
    if constexpr (kv::PlainCacheView<C>) stride_ = cache.value_stride();
  }

  /// From here on rows of this head are added to o [heads][o_stride], which starts as -0: -0 + x has the bits of x.
  void begin(index_t sequence, index_t head, float* o) {
    sequence_ = sequence;
    head_ = head;
    run_ = 0;
    o_ = o;
    for (index_t i = 0; i < heads_ * o_stride_; ++i) o[i] = -0.0f;
  }

  /// Names the next row. The caller writes its weight for each query head r to [r * dense_block] of what it gets.
  DECANT_INLINE float* add(index_t token) {
    using kv::load_row;
    if (count_[active_] == dense_block) {
      active_ = 1 - active_;
      flush(active_);
    }
    const index_t j = count_[active_]++;
    if constexpr (kv::PlainCacheView<C>) {
      const Row* const* rows = rows_[active_];
      if (static_cast<std::uint64_t>(token - run_first_) >= static_cast<std::uint64_t>(run_)) {
        run_first_ = token;
        run_ = cache_.run(sequence_, head_, token);
        run_row_ = cache_.value(sequence_, head_, token);
      }
      rows_[active_][j] = run_row_ + (token - run_first_) * stride_;
      Ahead<Row>{rows, dense_block, cache_.value_dim() * index_t{sizeof(Row)}}.fetch(j);
    } else {
      float* const to = buffer_ + (active_ * dense_block + j) * o_stride_;
      load_row(cache_.value(sequence_, head_, token), cache_.value_dim(), to);
      rows_[active_][j] = to;
    }
    return weights_[active_] + j;
  }

  /// Adds what is still under way.
  void finish() {
    flush(1 - active_);
    flush(active_);
  }

 private:
  void flush(int batch) {
    if (count_[batch] > 0)
      kernels_.values(weights_[batch], ones_, heads_, rows_[batch], count_[batch], cache_.value_dim(), o_, o_stride_,
                      {});
    count_[batch] = 0;
  }

  const C& cache_;
  const DenseKernels<Row>& kernels_;
  index_t heads_;
  index_t o_stride_;
  float* weights_[2];
  float* ones_;
  float* buffer_;
  float* o_ = nullptr;
  index_t sequence_ = 0;
  index_t head_ = 0;
  index_t stride_ = 0;
  index_t run_first_ = 0;  // rows at one stride: the last that was named, and those after it
  index_t run_ = 0;
  const Row* run_row_ = nullptr;
  const Row* rows_[2][dense_block];
  index_t count_[2] = {0, 0};
  int active_ = 0;
};

}  // namespace decant::attention::detail

#endif
