// decant: the sweeps of AAAC's fit over a row, on the instruction set that a context runs on.
#ifndef DECANT_QUANT_DETAIL_AAAC_SWEEPS_HPP
#define DECANT_QUANT_DETAIL_AAAC_SWEEPS_HPP

#include "../../core/simd.hpp"
#include "aaac_rows.hpp"

#if DECANT_X86
#include "aaac_avx512.hpp"
#endif

namespace decant::quant::detail {

#if DECANT_X86
DECANT_TARGET_AVX2 inline void choose_avx2(const AaacTables& t, const AaacRow& row, std::uint8_t* chosen,
                                           float* error) {
  choose_lanes(t, row, chosen, error);
}
DECANT_TARGET_AVX2 inline void scale_avx2(const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen,
                                          float* product, float* square) {
  scale_lanes(t, row, chosen, product, square);
}
DECANT_TARGET_AVX2 inline void accumulate_avx2(const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen,
                                               const float* square, AaacTail tail, AaacSums& sums) {
  accumulate_lanes(t, row, chosen, square, tail, sums);
}
DECANT_TARGET_AVX2 inline void encode_avx2(const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen,
                                           std::uint8_t* codes) {
  encode_lanes(t, row, chosen, codes);
}
#endif

/// Each selection group's table, the one with the lesser error (the first of equal ones), and that error:
/// sum importance (u - nearest)^2.
inline void choose_tables(Isa isa, const AaacTables& t, const AaacRow& row, std::uint8_t* chosen, float* error) {
#if DECANT_X86
  if (isa == Isa::avx512) return choose_avx512(t, row, chosen, error);
  if (isa == Isa::avx2) return choose_avx2(t, row, chosen, error);
#else
  (void)isa;
#endif
  choose_lanes(t, row, chosen, error);
}

/// Per selection group, under its table: the two sums of scale_sums().
inline void scale_sums(Isa isa, const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen, float* product,
                       float* square) {
#if DECANT_X86
  if (isa == Isa::avx512) return scale_avx512(t, row, chosen, product, square);
  if (isa == Isa::avx2) return scale_avx2(t, row, chosen, product, square);
#else
  (void)isa;
#endif
  scale_lanes(t, row, chosen, product, square);
}

/// Adds the row to the sums of its weights' cells; square [groups] is the square of each one's scale.
inline void accumulate(Isa isa, const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen,
                       const float* square, AaacTail tail, AaacSums& sums) {
#if DECANT_X86
  if (isa == Isa::avx512) return accumulate_avx512(t, row, chosen, square, tail, sums);
  if (isa == Isa::avx2) return accumulate_avx2(t, row, chosen, square, tail, sums);
#else
  (void)isa;
#endif
  accumulate_lanes(t, row, chosen, square, tail, sums);
}

/// The codes of a row, one byte each, [groups * pad].
inline void encode(Isa isa, const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen, std::uint8_t* codes) {
#if DECANT_X86
  if (isa == Isa::avx512) return encode_avx512(t, row, chosen, codes);
  if (isa == Isa::avx2) return encode_avx2(t, row, chosen, codes);
#else
  (void)isa;
#endif
  encode_lanes(t, row, chosen, codes);
}

}  // namespace decant::quant::detail

#endif
