// decant: PARSE on Cuda (parse.hpp): the mask of a pass as bits, and the scores of verdicts. Both are small beside the
// forward: a thread per byte of the mask, which reads nothing but the ends; a thread per verdict, which reads the
// listed logits. attend() needs no bits where it takes ParseMask itself. Layouts and decisions are the host's.
#ifndef DECANT_SPECULATIVE_PARSE_CUH
#define DECANT_SPECULATIVE_PARSE_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cmath>
#include <cstdint>

#include "../core/cuda.cuh"
#include "parse.hpp"

namespace decant::speculative {

namespace detail {

inline constexpr int parse_threads = 128;

template <int Threads>
__global__ void __launch_bounds__(Threads) parse_bits_kernel(const ParsePass pass, const View<std::uint8_t, 1> bits) {
  const index_t i = index_t{blockIdx.x} * Threads + threadIdx.x;
  if (i < bits.extent(0)) bits[i] = parse_byte(pass, i);
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    parse_scores_kernel(const View<const float, 2> logits, const View<const std::int32_t, 1> correct,
                        const View<const std::int32_t, 1> incorrect, const View<float, 1> scores) {
  const index_t i = index_t{blockIdx.x} * Threads + threadIdx.x;
  if (i >= scores.extent(0)) return;
  bool inside = true;
  for (const View<const std::int32_t, 1>& tokens : {correct, incorrect}) {
    for (index_t j = 0; j < tokens.extent(0); ++j) inside = inside && tokens[j] >= 0 && tokens[j] < logits.extent(1);
  }
  scores[i] = inside ? static_cast<float>(log_sum_of(logits[i], correct) - log_sum_of(logits[i], incorrect))
                     : static_cast<float>(NAN);
}

}  // namespace detail

/// The same as parse_bits() on the host, bit for bit; pass.ends and bits lie on the device.
inline void parse_bits(Cuda& cuda, const ParsePass& pass, View<std::uint8_t, 1> bits) {
  constexpr const char* where = "speculative::parse_bits";
  require_equal(bits.extent(0), (pass.rows() * pass.keys() + 7) / 8, where, "bits");
  const index_t blocks = (bits.extent(0) + detail::parse_threads - 1) / detail::parse_threads;
  require(blocks <= 0x7fffffff, where, "bits", "at most 2^38 bytes", bits.extent(0));
  launch(cuda, where, detail::parse_bits_kernel<detail::parse_threads>,
         CudaGrid{dim3(static_cast<unsigned>(blocks)), dim3(detail::parse_threads)}, pass, bits);
}

/// The same as parse_scores() on the host, within rounding; all views lie on the device. A listed token that the rows
/// do not have makes all scores NaN: bad verdicts.
inline void parse_scores(Cuda& cuda, View<const float, 2> logits, View<const std::int32_t, 1> correct,
                         View<const std::int32_t, 1> incorrect, View<float, 1> scores) {
  constexpr const char* where = "speculative::parse_scores";
  require_equal(scores.extent(0), logits.extent(0), where, "scores");
  require(correct.extent(0) >= 1, where, "correct", "at least one token", correct.extent(0));
  require(incorrect.extent(0) >= 1, where, "incorrect", "at least one token", incorrect.extent(0));
  const index_t blocks = (scores.extent(0) + detail::parse_threads - 1) / detail::parse_threads;
  require(blocks <= 0x7fffffff, where, "scores", "at most 2^38 scores", scores.extent(0));
  launch(cuda, where, detail::parse_scores_kernel<detail::parse_threads>,
         CudaGrid{dim3(static_cast<unsigned>(blocks)), dim3(detail::parse_threads)}, logits, correct, incorrect,
         scores);
}

}  // namespace decant::speculative

#endif
