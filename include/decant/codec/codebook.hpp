// decant: Codebook, the exponents that SplitZip (arXiv 2605.01708) has codes for, and how it is chosen from an
// exponent histogram. As in the paper the codes go to the most frequent exponents; ours are the rest: exponents stand
// in ascending order, so that a contiguous set is a subtraction, ties go to the larger exponent, places left over
// extend the covered interval downwards and then upwards, and 4 bits, 3 bits or no code is chosen by the estimated
// size.
#ifndef DECANT_CODEC_CODEBOOK_HPP
#define DECANT_CODEC_CODEBOOK_HPP

#include <cmath>
#include <cstdint>

#include "../core/view.hpp"
#include "field_codec.hpp"

namespace decant::codec {

/// Code c stands for exponents[c]. 2^code_bits exponents, ascending; the places behind them are 0. code_bits 0 is the
/// empty book: nothing is coded.
struct Codebook {
  std::uint8_t code_bits = 0;
  std::uint8_t exponents[16] = {};

  DECANT_HD constexpr int size() const { return code_bits == 0 ? 0 : 1 << code_bits; }

  /// Whether the exponents are a window, first ... first + size() - 1.
  DECANT_HD constexpr bool contiguous() const {
    return size() > 0 && exponents[size() - 1] - exponents[0] == size() - 1;
  }

  bool operator==(const Codebook&) const = default;
};

/// The book of the window that begins at `first`.
DECANT_HD constexpr Codebook window_codebook(int code_bits, unsigned first) {
  Codebook book;
  book.code_bits = static_cast<std::uint8_t>(code_bits);
  for (int c = 0; c < book.size(); ++c) book.exponents[c] = static_cast<std::uint8_t>(first + static_cast<unsigned>(c));
  return book;
}

/// The book that suits N(0, 1): the 16 most frequent exponents, of E4M3 the 8.
template <SplitZipElement T>
DECANT_HD constexpr Codebook normal_codebook() {
  constexpr int bias = (1 << (FloatBits<T>::exponent - 1)) - 1;
  return codes_of<T>(4) ? window_codebook(4, static_cast<unsigned>(bias - 13)) : window_codebook(3, bias - 6);
}

/// Whether T's payloads may carry this book.
template <SplitZipElement T>
DECANT_HD constexpr bool is_valid(const Codebook& book) {
  if (book.code_bits != 0 && !codes_of<T>(book.code_bits)) return false;
  for (int c = 0; c < 16; ++c) {
    if (c >= book.size() && book.exponents[c] != 0) return false;
    if (c < book.size() && book.exponents[c] >> FloatBits<T>::exponent != 0) return false;
    if (c > 0 && c < book.size() && book.exponents[c] <= book.exponents[c - 1]) return false;
  }
  return true;
}

/// A number that tells books apart: FNV-1a over code_bits and the 16 exponents. For logs and look-ups; what is decoded
/// with is compared in full.
DECANT_HD constexpr std::uint64_t id(const Codebook& book) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  hash = (hash ^ book.code_bits) * 0x100000001b3u;
  for (const std::uint8_t e : book.exponents) hash = (hash ^ e) * 0x100000001b3u;
  return hash;
}

namespace detail {

inline std::uint64_t sum_of(View<const std::uint64_t, 1> counts) {
  std::uint64_t total = 0;
  for (index_t e = 0; e < counts.extent(0); ++e) total += counts[e];
  return total;
}

}  // namespace detail

/// Shannon's entropy of the exponents, in bits each: with the rest, what no lossless coder of single elements goes
/// below. counts: any number of them. 0 where all are 0.
inline double exponent_entropy(View<const std::uint64_t, 1> counts) {
  const double total = static_cast<double>(detail::sum_of(counts));
  double bits = 0;
  for (index_t e = 0; e < counts.extent(0); ++e) {
    const double p = static_cast<double>(counts[e]) / total;
    if (counts[e] != 0) bits -= p * std::log2(p);
  }
  return bits;
}

/// The share of elements whose exponent the book has no code for. 0 where all counts are 0.
inline double escape_rate(View<const std::uint64_t, 1> counts, const Codebook& book) {
  const std::uint64_t total = detail::sum_of(counts);
  std::uint64_t coded = 0;
  for (int c = 0; c < book.size(); ++c) coded += book.exponents[c] < counts.extent(0) ? counts[book.exponents[c]] : 0;
  return total == 0 ? 0.0 : static_cast<double>(total - coded) / static_cast<double>(total);
}

/// Bits per element that elements with this histogram [2^ExpBits] are expected to take in chunks of `chunk`: rest,
/// code, 24 bits per escape or the exponent's remaining bits where those are fewer, and the directory. Header and
/// alignment aside. The empty book: T's width.
template <SplitZipElement T>
double estimated_bits(View<const std::uint64_t, 1> counts, const Codebook& book, index_t chunk) {
  constexpr int width = 8 * static_cast<int>(sizeof(T));
  if (book.code_bits == 0) return width;
  const double high = FloatBits<T>::exponent - book.code_bits;
  const double escapes = 24.0 * escape_rate(counts, book);
  return width - high + (escapes < high ? escapes : high) + 17.0 / static_cast<double>(chunk);
}

/// The book of the 2^code_bits exponents with the largest counts [2^ExpBits]; with reserve_zero, exponent 0 is one of
/// them whatever its count, so that zero padding is never escaped.
template <SplitZipElement T>
Codebook frequent_codebook(View<const std::uint64_t, 1> counts, int code_bits, bool reserve_zero) {
  constexpr int exponents = 1 << FloatBits<T>::exponent;
  constexpr const char* where = "codec::frequent_codebook";
  require_equal(counts.extent(0), exponents, where, "counts");
  require(codes_of<T>(code_bits), where, "code_bits", "a code width of this type", code_bits);
  bool taken[exponents] = {};
  int left = 1 << code_bits;
  if (reserve_zero) {
    taken[0] = true;
    --left;
  }
  int low = exponents;
  int high = -1;
  for (; left > 0; --left) {
    int best = -1;
    for (int e = exponents - 1; e >= 0; --e) {
      if (!taken[e] && counts[e] > 0 && (best < 0 || counts[e] > counts[best])) best = e;
    }
    if (best < 0) break;
    taken[best] = true;
    low = best < low ? best : low;
    high = best > high ? best : high;
  }
  // Fewer exponents than places: down from the lowest, up from the highest, then whatever is free from the top.
  for (int e = low - 1; e >= 0 && left > 0; --e) {
    left -= taken[e] ? 0 : 1;
    taken[e] = true;
  }
  for (int e = high + 1; e < exponents && left > 0; ++e) {
    left -= taken[e] ? 0 : 1;
    taken[e] = true;
  }
  for (int e = exponents - 1; e >= 0 && left > 0; --e) {
    left -= taken[e] ? 0 : 1;
    taken[e] = true;
  }
  Codebook book;
  book.code_bits = static_cast<std::uint8_t>(code_bits);
  int c = 0;
  for (int e = 0; e < exponents; ++e) {
    if (taken[e]) book.exponents[c++] = static_cast<std::uint8_t>(e);
  }
  return book;
}

/// The book with the fewest estimated bits: of 4-bit codes, 3-bit codes and none. Ties go to the one with less to do:
/// none, then 4 bits.
template <SplitZipElement T>
Codebook best_codebook(View<const std::uint64_t, 1> counts, index_t chunk, bool reserve_zero) {
  Codebook best;
  for (const int code_bits : {4, 3}) {
    if (!codes_of<T>(code_bits)) continue;
    const Codebook book = frequent_codebook<T>(counts, code_bits, reserve_zero);
    if (estimated_bits<T>(counts, book, chunk) < estimated_bits<T>(counts, best, chunk)) best = book;
  }
  return best;
}

}  // namespace decant::codec

#endif
