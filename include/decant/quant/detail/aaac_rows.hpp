// decant: the sweeps of AAAC's fit over one row of normalised weights u = w / scale. A row is cut into selection
// groups, each padded to a multiple of 16 with weights of importance 0, so that all arithmetic is in 16 lanes: the sums
// of detail/codebook_search.hpp, and the same bits on every instruction set. Here are the portable bodies.
#ifndef DECANT_QUANT_DETAIL_AAAC_ROWS_HPP
#define DECANT_QUANT_DETAIL_AAAC_ROWS_HPP

#include <cmath>
#include <cstdint>

#include "codebook_search.hpp"

namespace decant::quant::detail {

/// Two tables of 16 ascending entries, as floats while they are being fitted.
struct AaacTables {
  alignas(64) float table[2][16];
  alignas(64) float limit[2][16];

  DECANT_HD void set_limits() {
    for (int t = 0; t < 2; ++t) detail::set_limits(table[t], limit[t]);
  }
};

/// `groups` selection groups of `pad` weights each.
struct AaacRow {
  const float* u;
  const float* importance;
  index_t groups;
  index_t pad;
};

/// Per table, entry and lane: the sums of importance s^2 u and of importance s^2 over an entry's cell.
struct AaacSums {
  alignas(64) float at[2][16][16][2];
};

/// What accumulate() multiplies each weight's importance by, beside the group's s^2.
enum class AaacTail : bool { plain, magnitude };

// Loops of 16, which a compiler makes vectors of.

DECANT_INLINE void nearest16(const float* limit, const float* u, std::int32_t* code) {
  for (int l = 0; l < 16; ++l) code[l] = 0;
  for (int c = 0; c < 15; ++c)
    for (int l = 0; l < 16; ++l) code[l] += u[l] > limit[c] ? 1 : 0;
}

DECANT_INLINE float error_lanes(const float* table, const float* limit, const float* u, const float* importance,
                                index_t n) {
  float lane[16] = {};
  for (index_t i = 0; i < n; i += 16) {
    std::int32_t code[16];
    nearest16(limit, u + i, code);
    for (int l = 0; l < 16; ++l) {
      const float d = u[i + l] - table[code[l]];
      lane[l] = std::fma(importance[i + l] * d, d, lane[l]);
    }
  }
  return fold16(lane);
}

DECANT_INLINE void choose_lanes(const AaacTables& t, const AaacRow& row, std::uint8_t* chosen, float* error) {
  for (index_t g = 0; g < row.groups; ++g) {
    const float* const u = row.u + g * row.pad;
    const float* const importance = row.importance + g * row.pad;
    const float first = error_lanes(t.table[0], t.limit[0], u, importance, row.pad);
    const float second = error_lanes(t.table[1], t.limit[1], u, importance, row.pad);
    chosen[g] = second < first ? 1 : 0;
    error[g] = second < first ? second : first;
  }
}

DECANT_INLINE void scale_lanes(const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen, float* product,
                               float* square) {
  for (index_t g = 0; g < row.groups; ++g) {
    const float* const u = row.u + g * row.pad;
    const float* const importance = row.importance + g * row.pad;
    const float* const table = t.table[chosen[g]];
    float with_u[16] = {};
    float with_c[16] = {};
    for (index_t i = 0; i < row.pad; i += 16) {
      std::int32_t code[16];
      nearest16(t.limit[chosen[g]], u + i, code);
      for (int l = 0; l < 16; ++l) {
        const float c = table[code[l]];
        const float each = importance[i + l] * c;
        with_u[l] = std::fma(each, u[i + l], with_u[l]);
        with_c[l] = std::fma(each, c, with_c[l]);
      }
    }
    product[g] = fold16(with_u);
    square[g] = fold16(with_c);
  }
}

DECANT_INLINE void accumulate_lanes(const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen,
                                    const float* square, AaacTail tail, AaacSums& sums) {
  for (index_t g = 0; g < row.groups; ++g) {
    const float* const u = row.u + g * row.pad;
    const float* const importance = row.importance + g * row.pad;
    for (index_t i = 0; i < row.pad; i += 16) {
      std::int32_t code[16];
      nearest16(t.limit[chosen[g]], u + i, code);
      for (int l = 0; l < 16; ++l) {
        const float each = tail == AaacTail::magnitude ? importance[i + l] * std::fabs(u[i + l]) : importance[i + l];
        float* const sum = sums.at[chosen[g]][code[l]][l];
        sum[0] = std::fma(each * u[i + l], square[g], sum[0]);
        sum[1] = std::fma(each, square[g], sum[1]);
      }
    }
  }
}

DECANT_INLINE void encode_lanes(const AaacTables& t, const AaacRow& row, const std::uint8_t* chosen,
                                std::uint8_t* codes) {
  for (index_t g = 0; g < row.groups; ++g) {
    for (index_t i = g * row.pad; i < (g + 1) * row.pad; i += 16) {
      std::int32_t code[16];
      nearest16(t.limit[chosen[g]], row.u + i, code);
      for (int l = 0; l < 16; ++l) codes[i + l] = static_cast<std::uint8_t>(code[l]);
    }
  }
}

}  // namespace decant::quant::detail

#endif
