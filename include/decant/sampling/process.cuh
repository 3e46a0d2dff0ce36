// decant: process.hpp on the device, to the same bits. Views point to device memory; kernels are in
// detail/filter_kernels.cuh. Capturable; scratch: 24 bytes per row for process(), and with penalties the logits again.
#ifndef DECANT_SAMPLING_PROCESS_CUH
#define DECANT_SAMPLING_PROCESS_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/filter_kernels.cuh"
#include "process.hpp"

namespace decant::sampling {

namespace detail {

inline void require_batch(index_t rows, const char* where, const char* argument) {
  require(rows <= 65535, where, argument, "at most 65535 rows", rows);
}

inline void launch_filter(Cuda& cuda, const Processing& p, const View<const float, 2>& logits,
                          const View<LogitRow, 1>& out, const View<RowStatus, 1>& status, bool chained,
                          const char* where) {
  const CudaGrid grid{dim3(static_cast<unsigned>(logits.extent(0))), dim3(filter_threads)};
  launch(cuda, where, filter_rows<float>, grid, p, FilterNumbers::of(p), logits, out, status, chained);
}

inline void launch_materialise(Cuda& cuda, const View<const float, 2>& logits, const View<const LogitRow, 1>& rows,
                               const View<const RowStatus, 1>& status, const View<float, 2>& probabilities,
                               const char* where) {
  const CudaGrid grid{dim3(cuda_blocks(logits.extent(1), 1024), static_cast<unsigned>(logits.extent(0))), dim3(256)};
  launch(cuda, where, materialise_rows<float>, grid, logits, rows, status, probabilities);
}

}  // namespace detail

/// penalise() of process.hpp. A token must not stand twice in a row's list.
inline void penalise(Cuda& cuda, const Processing& p, View<float, 2> logits, const TokenCounts& seen,
                     View<RowStatus, 1> status) {
  constexpr const char* where = "sampling::penalise";
  detail::require_penalise(p, logits, seen, status, where);
  detail::require_batch(logits.extent(0), where, "logits");
  launch(cuda, where, detail::penalise_rows<float>,
         CudaGrid{dim3(static_cast<unsigned>(logits.extent(0))), dim3(detail::filter_threads)}, p, logits, seen,
         status);
}

/// filter() of process.hpp.
inline void filter(Cuda& cuda, const Processing& p, View<const float, 2> logits, View<LogitRow, 1> out,
                   View<RowStatus, 1> status) {
  constexpr const char* where = "sampling::filter";
  detail::require_filter(p, logits, out, status, where);
  detail::require_batch(logits.extent(0), where, "logits");
  detail::launch_filter(cuda, p, logits, out, status, false, where);
}

/// materialise() of process.hpp.
inline void materialise(Cuda& cuda, const LogitRows& rows, View<const RowStatus, 1> status,
                        View<float, 2> probabilities) {
  constexpr const char* where = "sampling::materialise";
  detail::require_materialise(rows, status, probabilities, where);
  detail::require_batch(rows.logits.extent(0), where, "rows.logits");
  detail::launch_materialise(cuda, rows.logits, rows.rows, status, probabilities, where);
}

/// process() of process.hpp.
inline void process(Cuda& cuda, const Processing& p, View<const float, 2> logits, const TokenCounts& seen,
                    View<float, 2> probabilities, View<RowStatus, 1> status) {
  constexpr const char* where = "sampling::process";
  detail::require_process(p, logits, seen, probabilities, status, where);
  detail::require_batch(logits.extent(0), where, "logits");
  Workspace::Scope scope(cuda.workspace());
  const auto rows = static_cast<unsigned>(logits.extent(0));
  const View<LogitRow, 1> filtered = cuda.workspace().take_view<LogitRow>(logits.extent(0));
  View<const float, 2> x = logits;
  if (p.penalises()) {
    const View<float, 2> copy = cuda.workspace().take_view<float>(logits.extent(0), logits.extent(1));
    launch(cuda, where, detail::copy_rows<float>, CudaGrid{dim3(cuda_blocks(logits.extent(1), 256), rows), dim3(256)},
           logits, copy);
    launch(cuda, where, detail::penalise_rows<float>, CudaGrid{dim3(rows), dim3(detail::filter_threads)}, p, copy, seen,
           status);
    x = copy;
  }
  detail::launch_filter(cuda, p, x, filtered, status, p.penalises(), where);
  detail::launch_materialise(cuda, x, filtered, status, probabilities, where);
}

}  // namespace decant::sampling

#endif
