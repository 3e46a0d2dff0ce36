// decant: deterministic top-k. The order is total: score descending, then index ascending; NaN counts as -inf and
// -0 as +0. So a selection is one set, the same on every processor, backend, instruction set and thread count.
// Method: radix select over order-preserving 32-bit keys (digits of 11, 11 and 10 bits) finds the key of the k-th
// largest and how many equal ones to take; one pass in index order then emits the indices, ascending.
// Protected elements are a mask, never a score: their key lies above every score's, +inf included.
#ifndef DECANT_CORE_TOPK_HPP
#define DECANT_CORE_TOPK_HPP

#include <cstdint>

#include "bits.hpp"
#include "cpu.hpp"
#include "detail/topk_scan.hpp"
#include "view.hpp"

namespace decant {

/// The key of a protected element: above the key of every score.
inline constexpr std::uint32_t protected_key = 0xffffffffu;

/// An unsigned integer that orders as the score does: a < b exactly when score_key(a) < score_key(b). NaN has the key
/// of -inf, -0 that of +0.
DECANT_HD constexpr std::uint32_t score_key(float score) {
  std::uint32_t bits = bit_cast<std::uint32_t>(score);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  bits = magnitude == 0 ? 0 : bits;
  bits = magnitude > 0x7f800000u ? 0xff800000u : bits;
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

/// Which elements a selection takes: all with a larger key, and the first `ties` (lowest indices) with an equal one.
struct Threshold {
  std::uint32_t key = protected_key;
  index_t ties = 0;
  bool operator==(const Threshold&) const = default;
};

namespace detail {

/// Keys of n scores; returns how many of them are protected. `keep` may be null.
inline index_t make_keys(Isa isa, const float* scores, index_t stride, const std::uint8_t* keep, index_t keep_stride,
                         index_t n, std::uint32_t* keys) {
  index_t i = 0;
  index_t kept = 0;
#if DECANT_X86
  const bool contiguous = stride == 1 && (!keep || keep_stride == 1);
  if (isa == Isa::avx512 && contiguous) i = make_keys_avx512(scores, keep, n, keys, kept);
#else
  (void)isa;
#endif
  if (!keep) {
    for (; i < n; ++i) keys[i] = score_key(scores[i * stride]);
    return 0;
  }
  for (; i < n; ++i) {
    const bool is_kept = keep[i * keep_stride] != 0;
    keys[i] = is_kept ? protected_key : score_key(scores[i * stride]);
    kept += is_kept;
  }
  return kept;
}

inline index_t make_keys(Isa isa, const View<const float, 1>& scores, const View<const std::uint8_t, 1>& keep,
                         std::uint32_t* keys) {
  return make_keys(isa, scores.data(), scores.stride(0), keep.data(), keep.stride(0), scores.extent(0), keys);
}

/// Keys of one row of [rows, n] views; an empty keep means that nothing is protected.
inline index_t make_row_keys(Isa isa, const View<const float, 2>& scores, const View<const std::uint8_t, 2>& keep,
                             index_t row, index_t n, std::uint32_t* keys) {
  const std::uint8_t* mask = keep.data() ? keep.data() + row * keep.stride(0) : nullptr;
  return make_keys(isa, scores.data() + row * scores.stride(0), scores.stride(1), mask, keep.stride(1), n, keys);
}

/// The digit that the k-th largest key falls in, given how many keys have each digit. `k` becomes its rank in there.
inline std::uint32_t pick_digit(const std::uint32_t* histogram, std::uint32_t digits, index_t& k) {
  std::uint32_t digit = digits - 1;
  while (k > histogram[digit]) k -= histogram[digit--];
  return digit;
}

/// The second and third digit: the threshold of the k-th largest of n candidates that share their first digit.
/// Changes the candidates.
inline Threshold refine_threshold(std::uint32_t* candidates, index_t n, std::uint32_t first_digit, index_t k,
                                  std::uint32_t* histogram) {
  for (std::uint32_t b = 0; b < radix_buckets; ++b) histogram[b] = 0;
  for (index_t i = 0; i < n; ++i) ++histogram[(candidates[i] >> 10) & (radix_buckets - 1)];
  const std::uint32_t prefix = (first_digit << 11) | pick_digit(histogram, radix_buckets, k);
  constexpr std::uint32_t last_buckets = 1u << 10;
  for (std::uint32_t b = 0; b < last_buckets; ++b) histogram[b] = 0;
  for (index_t i = 0; i < n; ++i) {
    histogram[candidates[i] & (last_buckets - 1)] += (candidates[i] >> 10) == prefix ? 1u : 0u;
  }
  return {(prefix << 10) | pick_digit(histogram, last_buckets, k), k};
}

/// The threshold of the k-th largest of n keys, on this thread. candidates: room for n; histogram: radix_words.
inline Threshold threshold_of_keys(Isa isa, const std::uint32_t* keys, index_t n, index_t k, std::uint32_t* candidates,
                                   std::uint32_t* histogram) {
  if (k == 0) return {};
  count_first_digits(keys, n, histogram);
  const std::uint32_t digit = pick_digit(histogram, radix_buckets, k);
  const index_t found = collect_digit(isa, keys, n, digit, candidates);
  return refine_threshold(candidates, found, digit, k, histogram);
}

/// The same with the work split over the context's threads. Takes scratch from the workspace of an open scope.
inline Threshold threshold_of_keys(Cpu& cpu, const std::uint32_t* keys, index_t n, index_t k) {
  if (k == 0) return {};
  constexpr index_t grain = 32768;
  const index_t parts = cpu.parts(n, grain);
  std::uint32_t* const candidates = cpu.workspace().take<std::uint32_t>(n);
  std::uint32_t* const histograms = cpu.workspace().take<std::uint32_t>(parts * radix_words);
  index_t* const found = cpu.workspace().take<index_t>(parts);
  cpu.parallel_ranges(n, grain, [&](index_t first, index_t last, index_t part) {
    count_first_digits(keys + first, last - first, histograms + part * radix_words);
  });
  for (index_t part = 1; part < parts; ++part) {
    for (std::uint32_t b = 0; b < radix_buckets; ++b) histograms[b] += histograms[part * radix_words + b];
  }
  const std::uint32_t digit = pick_digit(histograms, radix_buckets, k);
  cpu.parallel_ranges(n, grain, [&](index_t first, index_t last, index_t part) {
    found[part] = collect_digit(cpu.isa(), keys + first, last - first, digit, candidates + first);
  });
  index_t total = found[0];
  for (index_t part = 1; part < parts; ++part) {
    const index_t first = n * part / parts;  // where parallel_ranges began this part
    for (index_t i = 0; i < found[part]; ++i) candidates[total++] = candidates[first + i];
  }
  return refine_threshold(candidates, total, digit, k, histograms);
}

inline void require_count(index_t k, index_t kept, index_t n, const char* where, const char* argument) {
  require(k >= kept && k <= n, where, argument,
          [&] { return std::to_string(kept) + " (the protected) to " + std::to_string(n) + " (all)"; }, k);
}

inline void validate_scores(const View<const float, 1>& scores, const View<const std::uint8_t, 1>& keep,
                            const char* where) {
  require(scores.extent(0) <= 0x7fffffff, where, "scores", "at most 2^31 - 1 elements", scores.extent(0));
  if (keep.data()) require_equal(keep.extent(0), scores.extent(0), where, "keep");
}

/// Checks the arguments that the functions over rows share; returns the sum of the lengths.
inline index_t validate_rows(const View<const float, 2>& scores, const View<const std::int32_t, 1>& lengths,
                             const View<const std::uint8_t, 2>& keep, const View<const std::int32_t, 1>& counts,
                             const char* where) {
  require_equal(lengths.extent(0), scores.extent(0), where, "lengths");
  require_equal(counts.extent(0), scores.extent(0), where, "counts");
  if (keep.data()) {
    require_equal(keep.extent(0), scores.extent(0), where, "keep");
    require_equal(keep.extent(1), scores.extent(1), where, "keep");
  }
  index_t total = 0;
  for (index_t r = 0; r < lengths.extent(0); ++r) {
    require(lengths[r] >= 0 && lengths[r] <= scores.extent(1), where, "lengths",
            [&] { return "0 to the " + std::to_string(scores.extent(1)) + " columns of scores"; }, lengths[r]);
    total += lengths[r];
  }
  return total;
}

}  // namespace detail

/// The threshold of the k largest scores. Elements whose keep is not 0 come before all others; an empty keep protects
/// none. ArgumentError unless protected <= k <= n. O(n); scratch: 8 n bytes.
inline Threshold top_k_threshold(Cpu& cpu, View<const float, 1> scores, View<const std::uint8_t, 1> keep, index_t k) {
  detail::validate_scores(scores, keep, "top_k_threshold");
  Workspace::Scope scope(cpu.workspace());
  const index_t n = scores.extent(0);
  std::uint32_t* const keys = cpu.workspace().take<std::uint32_t>(n);
  const index_t kept = detail::make_keys(cpu.isa(), scores, keep, keys);
  detail::require_count(k, kept, n, "top_k_threshold", "k");
  return detail::threshold_of_keys(cpu, keys, n, k);
}

/// Writes the indices of the k largest scores to out[0 ... k), ascending. Elements whose keep is not 0 are among them;
/// an empty keep protects none. ArgumentError unless protected <= k <= n. O(n); scratch: 8 n bytes.
inline void top_k(Cpu& cpu, View<const float, 1> scores, View<const std::uint8_t, 1> keep, index_t k,
                  std::int32_t* out) {
  detail::validate_scores(scores, keep, "top_k");
  Workspace::Scope scope(cpu.workspace());
  const index_t n = scores.extent(0);
  std::uint32_t* const keys = cpu.workspace().take<std::uint32_t>(n);
  const index_t kept = detail::make_keys(cpu.isa(), scores, keep, keys);
  detail::require_count(k, kept, n, "top_k", "k");
  const Threshold t = detail::threshold_of_keys(cpu, keys, n, k);
  detail::emit_indices(cpu.isa(), keys, t.key, t.ties, k, out);
}

/// Writes the indices of the k largest scores to out[0 ... k), ascending.
inline void top_k(Cpu& cpu, View<const float, 1> scores, index_t k, std::int32_t* out) {
  top_k(cpu, scores, View<const std::uint8_t, 1>{}, k, out);
}

/// The top k of every row, rows in parallel: writes to the first counts[r] entries of out's row r, ascending. Row r of
/// `scores` has lengths[r] elements. keep [rows, n] as above, or empty. ArgumentError unless protected <= counts[r] <=
/// lengths[r] in every row; then nothing has been written. O(sum of lengths).
inline void top_k_each_row(Cpu& cpu, View<const float, 2> scores, View<const std::int32_t, 1> lengths,
                           View<const std::uint8_t, 2> keep, View<const std::int32_t, 1> counts,
                           View<std::int32_t, 2> out) {
  constexpr const char* where = "top_k_each_row";
  const index_t total = detail::validate_rows(scores, lengths, keep, counts, where);
  const index_t rows = scores.extent(0);
  require_equal(out.extent(0), rows, where, "out");
  require(out.stride(1) == 1 || out.extent(1) <= 1, where, "out", "stride 1 along indices", out.stride(1));
  Workspace::Scope scope(cpu.workspace());
  std::uint32_t* const keys = cpu.workspace().take<std::uint32_t>(total);
  index_t* const first = cpu.workspace().take<index_t>(rows);
  index_t* const kept = cpu.workspace().take<index_t>(rows);
  index_t longest = 0;
  index_t sum = 0;
  for (index_t r = 0; r < rows; ++r) {
    first[r] = sum;
    sum += lengths[r];
    longest = lengths[r] > longest ? lengths[r] : longest;
  }
  cpu.parallel_for(rows, [&](index_t r) {
    kept[r] = detail::make_row_keys(cpu.isa(), scores, keep, r, lengths[r], keys + first[r]);
  });
  for (index_t r = 0; r < rows; ++r) {
    detail::require_count(counts[r], kept[r], lengths[r], where, "counts");
    require(counts[r] <= out.extent(1), where, "out",
            [&] { return "room for " + std::to_string(counts[r]) + " indices in a row"; }, out.extent(1));
  }
  const index_t parts = cpu.parts(rows, 1);
  std::uint32_t* const candidates = cpu.workspace().take<std::uint32_t>(parts * longest);
  std::uint32_t* const histograms = cpu.workspace().take<std::uint32_t>(parts * detail::radix_words);
  cpu.parallel_ranges(rows, 1, [&](index_t begin, index_t end, index_t part) {
    for (index_t r = begin; r < end; ++r) {
      const Threshold t = detail::threshold_of_keys(cpu.isa(), keys + first[r], lengths[r], counts[r],
                                                    candidates + part * longest,
                                                    histograms + part * detail::radix_words);
      detail::emit_indices(cpu.isa(), keys + first[r], t.key, t.ties, counts[r], out.data() + r * out.stride(0));
    }
  });
}

/// How many elements of each row are among the `total` largest of all rows together, ties going to the lower (row,
/// index): writes counts [rows]. Row r has lengths[r] elements. keep as above: protected elements of any row come
/// first. ArgumentError unless protected <= total <= sum of lengths. O(sum of lengths); scratch: 8 bytes for each.
/// With the same scores and mask, top_k_each_row(..., counts, out) then picks just these elements.
inline void top_k_rows(Cpu& cpu, View<const float, 2> scores, View<const std::int32_t, 1> lengths,
                       View<const std::uint8_t, 2> keep, index_t total, View<std::int32_t, 1> counts) {
  constexpr const char* where = "top_k_rows";
  const index_t elements = detail::validate_rows(scores, lengths, keep, counts, where);
  const index_t rows = scores.extent(0);
  Workspace::Scope scope(cpu.workspace());
  std::uint32_t* const keys = cpu.workspace().take<std::uint32_t>(elements);
  index_t* const first = cpu.workspace().take<index_t>(rows + 1);
  index_t* const above = cpu.workspace().take<index_t>(rows);  // protected at first, then larger than the threshold
  index_t* const equal = cpu.workspace().take<index_t>(rows);
  first[0] = 0;
  for (index_t r = 0; r < rows; ++r) first[r + 1] = first[r] + lengths[r];
  cpu.parallel_for(rows, [&](index_t r) {
    above[r] = detail::make_row_keys(cpu.isa(), scores, keep, r, lengths[r], keys + first[r]);
  });
  index_t kept = 0;
  for (index_t r = 0; r < rows; ++r) kept += above[r];
  detail::require_count(total, kept, elements, where, "total");
  const Threshold t = detail::threshold_of_keys(cpu, keys, elements, total);
  cpu.parallel_for(rows, [&](index_t r) {
    above[r] = 0;
    equal[r] = 0;
    for (index_t i = first[r]; i < first[r + 1]; ++i) {
      above[r] += keys[i] > t.key;
      equal[r] += keys[i] == t.key;
    }
  });
  index_t ties = t.ties;
  for (index_t r = 0; r < rows; ++r) {
    const index_t take = equal[r] < ties ? equal[r] : ties;
    ties -= take;
    counts[r] = static_cast<std::int32_t>(above[r] + take);
  }
}

}  // namespace decant

#endif
