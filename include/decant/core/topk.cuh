// decant: deterministic top-k on the device: the functions of topk.hpp with the same order, ties, NaN and protection
// rules, so the same indices. Views point to device memory. Counts that protected or present elements rule out are told
// by Cuda::check(); nothing is written then. Kernels: detail/topk_rows.cuh.
#ifndef DECANT_CORE_TOPK_CUH
#define DECANT_CORE_TOPK_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/topk_rows.cuh"

namespace decant {

/// The longest rows that one block keeps in shared memory, and the piece of a longer row that a block takes.
struct TopKTuning {
  index_t cached = 8192;
  index_t chunk = 4096;
};

constexpr TopKTuning top_k_tuning(int /*compute_capability*/) { return {}; }

namespace detail {

/// The thresholds of each row, in the workspace of an open scope, and what else the emission needs.
struct TopKPlan {
  TopKRows<1> rows;
  Threshold* thresholds = nullptr;
  index_t chunk = 0;
  index_t chunks = 1;
  TopKCounts* counts = nullptr;
};

inline TopKGroups take_groups(Cuda& cuda, index_t groups, bool joint, const char* where) {
  const index_t words = 3 * groups * topk_buckets;
  std::uint32_t* const histograms = cuda.workspace().take<std::uint32_t>(words);
  require_cuda(cudaMemsetAsync(histograms, 0, static_cast<std::size_t>(words) * 4, cuda.stream()), where,
               "cudaMemsetAsync");
  return {histograms, cuda.workspace().take<TopKState>(2 * groups), groups, joint};
}

inline void require_grid(index_t blocks, const char* where) {
  require(blocks <= 0x7fffffff, where, "scores", "rows and columns for at most 2^31 - 1 blocks", blocks);
}

inline TopKPlan plan_rows(Cuda& cuda, const TopKMatrix& matrix, index_t rows, const TopKWanted& wanted,
                          const TopKChecks& checks, const TopKTuning& tuning, const char* where) {
  TopKPlan plan;
  plan.rows.at[0] = matrix;
  plan.rows.each = rows;
  plan.rows.rows = rows;
  plan.thresholds = cuda.workspace().take<Threshold>(rows);
  plan.chunk = matrix.columns;
  const bool cached = matrix.columns <= tuning.cached;
  if (cached || rows >= 2 * cuda.device().multiprocessors) {
    const CudaGrid grid{dim3(static_cast<unsigned>(rows)), dim3(topk_threads),
                        cached ? static_cast<std::size_t>(matrix.columns) * 4 : 0};
    launch(cuda, where, cached ? row_thresholds<true> : row_thresholds<false>, grid, plan.rows, wanted, checks,
           plan.thresholds, cuda.fault());
    return plan;
  }
  plan.chunk = tuning.chunk;
  plan.chunks = (matrix.columns + tuning.chunk - 1) / tuning.chunk;
  require_grid(rows * plan.chunks, where);
  plan.counts = cuda.workspace().take<TopKCounts>(rows * plan.chunks);
  const TopKGroups groups = take_groups(cuda, rows, false, where);
  const CudaGrid grid{dim3(static_cast<unsigned>(rows * plan.chunks)), dim3(topk_threads)};
  for (int level = 0; level < 3; ++level) {
    launch(cuda, where, count_digits<1>, grid, plan.rows, wanted, checks, groups, level, plan.chunk, plan.chunks,
           cuda.fault());
  }
  launch(cuda, where, count_chunks<1>, grid, plan.rows, wanted, groups, plan.chunk, plan.chunks, plan.thresholds,
         plan.counts);
  return plan;
}

template <class Emit>
void emit_rows(Cuda& cuda, const TopKPlan& plan, const Emit& emit, const char* where) {
  const CudaGrid grid{dim3(static_cast<unsigned>(plan.rows.rows * plan.chunks)), dim3(topk_threads)};
  launch(cuda, where, emit_taken<Emit>, grid, plan.rows, plan.thresholds, plan.chunk, plan.chunks, plan.counts, emit,
         cuda.fault());
}

/// Joint selection over matrices of `each` rows: counts(m, row) of every matrix, a View [matrices, each]. matrix(m)
/// gives the m-th. Launches take up to 32 matrices at once.
template <class Matrix, class Count>
void share_rows(Cuda& cuda, index_t matrices, index_t each, const Matrix& matrix, const TopKWanted& wanted,
                const TopKChecks& checks, View<Count, 2> counts, const TopKTuning& tuning, const char* where) {
  const index_t rows = matrices * each;
  if (rows == 0) return;
  constexpr int batch = 32;
  index_t columns = 0;
  for (index_t m = 0; m < matrices; ++m) columns = matrix(m).columns > columns ? matrix(m).columns : columns;
  const index_t chunks = columns == 0 ? 1 : (columns + tuning.chunk - 1) / tuning.chunk;
  require_grid(rows * chunks, where);
  const TopKGroups groups = take_groups(cuda, 1, true, where);
  Threshold* const threshold = cuda.workspace().take<Threshold>(1);
  TopKCounts* const chunk_counts = cuda.workspace().take<TopKCounts>(rows * chunks);
  for (int level = 0; level < 4; ++level) {
    const auto pass = [&](auto kernel_rows, index_t first, index_t count) {
      constexpr int n = sizeof kernel_rows.at / sizeof kernel_rows.at[0];
      for (index_t m = 0; m < count; ++m) kernel_rows.at[m] = matrix(first + m);
      kernel_rows.each = each;
      kernel_rows.rows = count * each;
      kernel_rows.first = first * each;
      const CudaGrid grid{dim3(static_cast<unsigned>(count * each * chunks)), dim3(topk_threads)};
      if (level < 3) {
        launch(cuda, where, count_digits<n>, grid, kernel_rows, wanted, checks, groups, level, tuning.chunk, chunks,
               cuda.fault());
      } else {
        launch(cuda, where, count_chunks<n>, grid, kernel_rows, wanted, groups, tuning.chunk, chunks, threshold,
               chunk_counts);
      }
    };
    if (matrices == 1) {
      pass(TopKRows<1>{}, 0, 1);
      continue;
    }
    for (index_t first = 0; first < matrices; first += batch) {
      pass(TopKRows<batch>{}, first, matrices - first < batch ? matrices - first : index_t{batch});
    }
  }
  launch(cuda, where, share_counts<Count>, CudaGrid{dim3(1), dim3(topk_threads)}, rows, each, chunks, threshold,
         chunk_counts, counts.data(), counts.stride(0), counts.stride(1), cuda.fault());
}

/// What the host can check of the functions over rows.
inline void validate_row_shapes(const View<const float, 2>& scores, const View<const std::int32_t, 1>& lengths,
                                const View<const std::uint8_t, 2>& keep, const View<const std::int32_t, 1>& counts,
                                const char* where) {
  require_equal(lengths.extent(0), scores.extent(0), where, "lengths");
  require_equal(counts.extent(0), scores.extent(0), where, "counts");
  require(scores.extent(1) <= 0x7fffffff, where, "scores", "at most 2^31 - 1 columns", scores.extent(1));
  if (keep.data()) {
    require_equal(keep.extent(0), scores.extent(0), where, "keep");
    require_equal(keep.extent(1), scores.extent(1), where, "keep");
  }
}

inline TopKMatrix row_matrix(const View<const float, 1>& scores, const View<const std::uint8_t, 1>& keep) {
  TopKMatrix matrix;
  matrix.scores = scores.data();
  matrix.stride = scores.stride(0);
  matrix.keep = keep.data();
  matrix.keep_stride = keep.stride(0);
  matrix.columns = scores.extent(0);
  return matrix;
}

/// Copies one result out, unless something was wrong.
template <class T>
__global__ void copy_one(const T* from, T* to, const FaultWord* fault) {
  if (!faulted(fault)) *to = {from->key, from->ties};
}

/// The same selection as top_k_each_row as a mask: taken(row, i) for the elements of each row.
inline void top_k_mask(Cuda& cuda, const View<const float, 2>& scores, const View<const std::int32_t, 1>& lengths,
                       const View<const std::uint8_t, 2>& keep, const View<const std::int32_t, 1>& counts,
                       const View<std::uint8_t, 2>& taken, const char* where) {
  if (scores.extent(0) == 0) return;
  Workspace::Scope scope(cuda.workspace());
  TopKWanted wanted;
  wanted.counts = counts.data();
  wanted.stride = counts.stride(0);
  const auto plan = plan_rows(cuda, topk_matrix(scores, keep, lengths), scores.extent(0), wanted, {},
                              top_k_tuning(cuda.device().compute_capability), where);
  emit_rows(cuda, plan, EmitMask{taken.data(), taken.stride(0)}, where);
}

}  // namespace detail

/// The threshold of the k largest scores, to *out on the device; top_k_threshold of topk.hpp.
inline void top_k_threshold(Cuda& cuda, View<const float, 1> scores, View<const std::uint8_t, 1> keep, index_t k,
                            Threshold* out, const TopKTuning& tuning) {
  constexpr const char* where = "top_k_threshold";
  detail::validate_scores(scores, keep, where);
  detail::require_count(k, 0, scores.extent(0), where, "k");
  Workspace::Scope scope(cuda.workspace());
  detail::TopKWanted wanted;
  wanted.value = k;
  const auto plan = detail::plan_rows(cuda, detail::row_matrix(scores, keep), 1, wanted, {}, tuning, where);
  launch(cuda, where, detail::copy_one<Threshold>, CudaGrid{dim3(1), dim3(1)}, plan.thresholds, out, cuda.fault());
}
inline void top_k_threshold(Cuda& cuda, View<const float, 1> scores, View<const std::uint8_t, 1> keep, index_t k,
                            Threshold* out) {
  top_k_threshold(cuda, scores, keep, k, out, top_k_tuning(cuda.device().compute_capability));
}

/// Writes the indices of the k largest scores to out[0 ... k), ascending; top_k of topk.hpp.
inline void top_k(Cuda& cuda, View<const float, 1> scores, View<const std::uint8_t, 1> keep, index_t k,
                  std::int32_t* out, const TopKTuning& tuning) {
  constexpr const char* where = "top_k";
  detail::validate_scores(scores, keep, where);
  detail::require_count(k, 0, scores.extent(0), where, "k");
  Workspace::Scope scope(cuda.workspace());
  detail::TopKWanted wanted;
  wanted.value = k;
  const auto plan = detail::plan_rows(cuda, detail::row_matrix(scores, keep), 1, wanted, {}, tuning, where);
  detail::emit_rows(cuda, plan, detail::EmitIndices{out, 0}, where);
}
inline void top_k(Cuda& cuda, View<const float, 1> scores, View<const std::uint8_t, 1> keep, index_t k,
                  std::int32_t* out) {
  top_k(cuda, scores, keep, k, out, top_k_tuning(cuda.device().compute_capability));
}
inline void top_k(Cuda& cuda, View<const float, 1> scores, index_t k, std::int32_t* out) {
  top_k(cuda, scores, View<const std::uint8_t, 1>{}, k, out);
}

/// The top counts[r] of every row r, ascending; top_k_each_row of topk.hpp. scratch: 16 bytes per row, and for few long
/// rows 24 KiB per row and 8 bytes per tuning.chunk columns.
inline void top_k_each_row(Cuda& cuda, View<const float, 2> scores, View<const std::int32_t, 1> lengths,
                           View<const std::uint8_t, 2> keep, View<const std::int32_t, 1> counts,
                           View<std::int32_t, 2> out, const TopKTuning& tuning) {
  constexpr const char* where = "top_k_each_row";
  detail::validate_row_shapes(scores, lengths, keep, counts, where);
  require_equal(out.extent(0), scores.extent(0), where, "out");
  require(out.stride(1) == 1 || out.extent(1) <= 1, where, "out", "stride 1 along indices", out.stride(1));
  if (scores.extent(0) == 0) return;
  Workspace::Scope scope(cuda.workspace());
  detail::TopKWanted wanted;
  wanted.counts = counts.data();
  wanted.stride = counts.stride(0);
  detail::TopKChecks checks;
  checks.room = out.extent(1);
  const auto plan = detail::plan_rows(cuda, detail::topk_matrix(scores, keep, lengths), scores.extent(0), wanted,
                                      checks, tuning, where);
  detail::emit_rows(cuda, plan, detail::EmitIndices{out.data(), out.stride(0)}, where);
}
inline void top_k_each_row(Cuda& cuda, View<const float, 2> scores, View<const std::int32_t, 1> lengths,
                           View<const std::uint8_t, 2> keep, View<const std::int32_t, 1> counts,
                           View<std::int32_t, 2> out) {
  top_k_each_row(cuda, scores, lengths, keep, counts, out, top_k_tuning(cuda.device().compute_capability));
}

/// How many elements of each row are among the `total` largest of all rows together; top_k_rows of topk.hpp.
inline void top_k_rows(Cuda& cuda, View<const float, 2> scores, View<const std::int32_t, 1> lengths,
                       View<const std::uint8_t, 2> keep, index_t total, View<std::int32_t, 1> counts,
                       const TopKTuning& tuning) {
  constexpr const char* where = "top_k_rows";
  detail::validate_row_shapes(scores, lengths, keep, counts, where);
  detail::require_count(total, 0, scores.size(), where, "total");
  Workspace::Scope scope(cuda.workspace());
  detail::TopKWanted wanted;
  wanted.value = total;
  const View<std::int32_t, 2> out(counts.data(), {1, counts.extent(0)}, {0, counts.stride(0)});
  const auto matrix = [&](index_t) { return detail::topk_matrix(scores, keep, lengths); };
  detail::share_rows(cuda, 1, scores.extent(0), matrix, wanted, {}, out, tuning, where);
}
inline void top_k_rows(Cuda& cuda, View<const float, 2> scores, View<const std::int32_t, 1> lengths,
                       View<const std::uint8_t, 2> keep, index_t total, View<std::int32_t, 1> counts) {
  top_k_rows(cuda, scores, lengths, keep, total, counts, top_k_tuning(cuda.device().compute_capability));
}

}  // namespace decant

#endif
