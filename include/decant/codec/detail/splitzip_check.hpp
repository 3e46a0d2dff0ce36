// decant: whether bytes are a SplitZip payload. All of them may be hostile: nothing is read outside of [0, size),
// nothing is allocated, the time is O(size), and what passes is the one coded payload of its elements, its chunk and
// its codebook. Raw payloads are those of the empty codebook.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_CHECK_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_CHECK_HPP

#include <string>

#include "../../core/bytes.hpp"
#include "../../core/cpu.hpp"
#include "splitzip_portable.hpp"

namespace decant::codec::detail {

/// What is wrong with a chunk.
enum class SplitZipFault : std::uint8_t {
  none,
  mode,
  escapes,
  super,
  side,
  position,
  exponent,
  code,
  padding,
  coded_size
};

inline const char* expected_of(SplitZipFault fault) {
  constexpr const char* words[] = {"nothing",
                                   "mode 0 or 1, and no escapes in mode 1",
                                   "at most as many escapes as are worth listing",
                                   "each group of chunks at the sum of the side bytes before it",
                                   "side bytes inside the side stream",
                                   "ascending positions inside the chunk",
                                   "escaped exponents of the format that the codebook does not have",
                                   "code 0 where an element is escaped",
                                   "zero padding",
                                   "raw exponents only where they are smaller"};
  return words[static_cast<int>(fault)];
}

/// Whether bits [first_bit, 8 * end) are all 0.
constexpr bool is_zero_from(const std::byte* bytes, index_t first_bit, index_t end) {
  index_t at = first_bit >> 3;
  if ((first_bit & 7) != 0) {
    if ((static_cast<unsigned>(bytes[at]) & (0xffu >> (first_bit & 7))) != 0) return false;
    ++at;
  }
  for (; at < end; ++at) {
    if (bytes[at] != std::byte{0}) return false;
  }
  return true;
}

struct SplitZipVerdict {
  SplitZipFault fault = SplitZipFault::none;
  index_t chunk = 0;  // the one that is at fault
};

/// Escaped elements, whose codes must be 0. Those lie far from each other, so each is fetched when its escape is found
/// and read some escapes later.
template <class F>
class SplitZipCodes {
 public:
  SplitZipCodes(const std::byte* payload, const SplitZipLayout& l) : code_{payload + l.code[0], payload + l.code[1]} {}

  /// False when the code that is read now is not 0; then `fault` is its element.
  bool add(index_t element) {
    for (int p = 0; p < plane_count(F::code_bits); ++p) {
      // Into the second level: more of those requests may be under way at once.
      __builtin_prefetch(code_[p] + (element * plane_width(F::code_bits, p) >> 3), 0, 2);
    }
    fault = elements_[count_ % lag];
    elements_[count_ % lag] = element;
    return count_++ < lag || is_zero(fault);
  }

  /// The same for all that are left.
  bool finish() {
    for (std::size_t k = count_ < lag ? 0 : count_ - lag; k < count_; ++k) {
      fault = elements_[k % lag];
      if (!is_zero(fault)) return false;
    }
    return true;
  }

  index_t fault = 0;

 private:
  static constexpr std::size_t lag = 128;

  bool is_zero(index_t i) const {
    unsigned bits = load_from_plane(code_[0], plane_width(F::code_bits, 0), i);
    if constexpr (plane_count(F::code_bits) == 2) bits |= load_from_plane(code_[1], plane_width(F::code_bits, 1), i);
    return bits == 0;
  }

  const std::byte* code_[2];
  index_t elements_[lag] = {};
  std::size_t count_ = 0;
};

/// A coded chunk's list: its `escapes` positions and exponents are at `side`. The chunk begins at element `first`.
template <class F>
SplitZipFault check_list(const ExponentSet& book, index_t first, index_t length, index_t escapes, const std::byte* side,
                         SplitZipCodes<F>& codes) {
  index_t next = 0;  // the least position that may follow
  for (index_t k = 0; k < escapes; ++k) {
    const index_t position = load_le<std::uint16_t>(side + 2 * k);
    if (position < next || position >= length) return SplitZipFault::position;
    next = position + 1;
    const unsigned exponent = static_cast<unsigned>(side[2 * escapes + k]);
    if (exponent >> F::exp_bits != 0 || book.contains(exponent)) return SplitZipFault::exponent;
    if (!codes.add(first + position)) return SplitZipFault::code;
  }
  return SplitZipFault::none;
}

/// A chunk of `length` raw exponents, whose high bits are at `side`.
template <class F>
SplitZipFault check_raw_chunk(const ExponentSet& book, const SplitZipPlanes<const std::byte>& planes, index_t length,
                              index_t raw_side, const std::byte* side) {
  const std::byte* high[2];
  high_planes<F>(side, length, high);
  for (int p = 0; p < plane_count(F::high_bits); ++p) {
    const int width = plane_width(F::high_bits, p);
    if (!is_zero_from(high[p], length * width, plane_bytes(width, length))) return SplitZipFault::padding;
  }
  index_t escapes = 0;
  for (index_t i = 0; i < length; i += 8) {
    const index_t count = length - i < 8 ? length - i : 8;
    Eight low_bits;
    Eight high_bits;
    load_field<F::code_bits>(planes.code, i, count, low_bits);
    load_field<F::high_bits>(high, i, count, high_bits);
    for (index_t j = 0; j < count; ++j) {
      escapes += book.contains(static_cast<unsigned>(high_bits[j]) << F::code_bits | low_bits[j]) ? 0 : 1;
    }
  }
  return 3 * escapes > raw_side ? SplitZipFault::none : SplitZipFault::coded_size;
}

/// The chunks of the groups [first_group, last_group). Every group being right, so is the whole side stream: each
/// begins where the one before it ends, the first at 0, and the last ends at len_side.
template <class F>
SplitZipVerdict check_groups(const std::byte* payload, const SplitZipLayout& l, const ExponentSet& book,
                             index_t first_group, index_t last_group, index_t len_side) {
  const index_t whole_raw_side = l.raw_side(l.chunk);
  SplitZipCodes<F> codes(payload, l);
  for (index_t g = first_group; g < last_group; ++g) {
    index_t c = g * splitzip_group;
    const std::uint64_t begin = load_le<std::uint64_t>(payload + l.super + 8 * g);
    if (begin > static_cast<std::uint64_t>(len_side) || (g == 0 && begin != 0)) return {SplitZipFault::super, c};
    const std::byte* side = payload + l.side + begin;
    index_t left = len_side - static_cast<index_t>(begin);
    const index_t last = (g + 1) * splitzip_group < l.chunks ? (g + 1) * splitzip_group : l.chunks;
    for (; c < last; ++c) {
      const unsigned entry = load_le<std::uint16_t>(payload + l.directory + 2 * c);
      if (entry == 0) continue;
      const index_t length = l.length(c);
      const index_t raw_side = length == l.chunk ? whole_raw_side : l.raw_side(length);
      const unsigned mode = splitzip_mode(entry);
      const index_t escapes = splitzip_escapes(entry);
      if (mode > splitzip_raw_exponents || (mode == splitzip_raw_exponents && escapes != 0)) {
        return {SplitZipFault::mode, c};
      }
      if (3 * escapes > raw_side) return {SplitZipFault::escapes, c};
      const index_t bytes = mode == splitzip_coded ? 3 * escapes : raw_side;
      if (bytes > left) return {SplitZipFault::side, c};
      const SplitZipFault fault =
          mode == splitzip_coded
              ? check_list<F>(book, c * l.chunk, length, escapes, side, codes)
              : check_raw_chunk<F>(book, planes_at<F>(l, payload, c * l.chunk), length, raw_side, side);
      if (fault != SplitZipFault::none) return {fault, fault == SplitZipFault::code ? codes.fault / l.chunk : c};
      side += bytes;
      left -= bytes;
    }
    const std::uint64_t end = g + 1 < l.groups ? load_le<std::uint64_t>(payload + l.super + 8 * (g + 1))
                                               : static_cast<std::uint64_t>(len_side);
    if (end != static_cast<std::uint64_t>(len_side - left)) return {SplitZipFault::super, c - 1};
  }
  if (!codes.finish()) return {SplitZipFault::code, codes.fault / l.chunk};
  return {};
}

/// The bits between one part of the fixed sections and the next.
template <class F>
bool check_padding(const std::byte* payload, const SplitZipLayout& l) {
  bool zero = true;
  each_plane<F>(l, [&](index_t offset, int width) {
    zero = zero && is_zero_from(payload + offset, l.n * width, align_64(plane_bytes(width, l.n)));
  });
  return zero && is_zero_from(payload + l.directory, 16 * l.chunks, l.super - l.directory) &&
         is_zero_from(payload + l.super, 64 * l.groups, l.side - l.super);
}

/// What the header says.
struct SplitZipStart {
  index_t chunk;
  index_t n;
  Codebook book;
};

/// Reads what is needed to know the codec. FormatError where that is not as it must be.
template <SplitZipElement T>
SplitZipStart read_start(const char* where, const View<const std::byte, 1>& in) {
  using H = SplitZipHeader;
  if (in.extent(0) < splitzip_header_bytes) {
    decant::detail::fail_format(where, "in", "a header of 64 bytes", in.extent(0));
  }
  const std::byte* const p = in.data();
  SplitZipStart start{};
  start.chunk = index_t{load_le<std::uint32_t>(p + H::chunk)};
  if (!is_splitzip_chunk(start.chunk)) {
    decant::detail::fail_format(where, "in: chunk", "a power of two from 64 to 8192", start.chunk);
  }
  start.book.code_bits = static_cast<std::uint8_t>(p[H::code_bits]);
  if (start.book.code_bits != 0 && !codes_of<T>(start.book.code_bits)) {
    decant::detail::fail_format(where, "in: code_bits", "a code width of this type", int{start.book.code_bits});
  }
  for (int c = 0; c < 16; ++c) start.book.exponents[c] = static_cast<std::uint8_t>(p[H::codebook + c]);
  if (!is_valid<T>(start.book)) {
    decant::detail::fail_format(where, "in: codebook", "ascending exponents, then zeros", "others");
  }
  if (p[H::flags] != std::byte{0} || load_le<std::uint16_t>(p + H::zero) != 0 ||
      load_le<std::uint64_t>(p + H::reserved) != 0) {
    decant::detail::fail_format(where, "in: reserved fields", "0", "others");
  }
  const std::uint64_t n = load_le<std::uint64_t>(p + H::n);
  if (n > static_cast<std::uint64_t>(splitzip_max_elements)) {
    decant::detail::fail_format(where, "in: n", "at most 2^48 elements", n);
  }
  start.n = static_cast<index_t>(n);
  return start;
}

/// Everything but the chunks and the padding: a payload of n elements written with `book` and `chunk`, of that size.
/// From here on all parts but the side stream's contents are known to lie inside `in`. Sets len_side.
template <SplitZipElement T>
SplitZipLayout check_frame(const char* where, const View<const std::byte, 1>& in, index_t chunk, const Codebook& book,
                           index_t n, index_t& len_side) {
  using H = SplitZipHeader;
  const SplitZipStart start = read_start<T>(where, in);
  if (start.n != n) decant::detail::fail_format(where, "in: n", n, start.n);
  if (start.chunk != chunk) decant::detail::fail_format(where, "in: chunk", chunk, start.chunk);
  if (start.book.code_bits != 0 && start.book != book) {
    decant::detail::fail_format(
        where, "in: codebook", [&] { return "the codec's, id " + std::to_string(id(book)); },
        [&] { return "id " + std::to_string(id(start.book)); });
  }
  const SplitZipLayout l = splitzip_layout<T>(n, chunk, start.book.code_bits);
  const std::uint64_t stated_code = load_le<std::uint64_t>(in.data() + H::len_code);
  const std::uint64_t stated_rest = load_le<std::uint64_t>(in.data() + H::len_rest);
  const std::uint64_t stated_side = load_le<std::uint64_t>(in.data() + H::len_side);
  if (stated_code != static_cast<std::uint64_t>(l.len_code)) {
    decant::detail::fail_format(where, "in: len_code", l.len_code, stated_code);
  }
  if (stated_rest != static_cast<std::uint64_t>(l.len_rest)) {
    decant::detail::fail_format(where, "in: len_rest", l.len_rest, stated_rest);
  }
  const index_t size = in.extent(0);
  const index_t most_side = l.code_bits == 0 ? 0 : l.worst_bytes() - l.side;
  if (stated_side > static_cast<std::uint64_t>(most_side)) {
    decant::detail::fail_format(
        where, "in: len_side", [&] { return "at most " + std::to_string(most_side); }, stated_side);
  }
  len_side = static_cast<index_t>(stated_side);
  const index_t bytes = l.code_bits == 0 ? l.raw_bytes : l.side + len_side;
  if (size != bytes) decant::detail::fail_format(where, "in", bytes, size);
  if (l.code_bits != 0 && bytes >= l.raw_bytes) {
    decant::detail::fail_format(where, "in", "fewer bytes than a raw payload has", size);
  }
  return l;
}

template <class F>
void check_chunks(Cpu& cpu, const char* where, const View<const std::byte, 1>& in, const SplitZipLayout& l,
                  const Codebook& book, index_t first_group, index_t last_group, index_t len_side) {
  const ExponentSet set(book);
  const std::byte* const payload = in.data();
  const index_t groups = last_group - first_group;
  Workspace::Scope scope(cpu.workspace());
  const index_t grain = 1 + (1 << 18) / (splitzip_group * l.chunk);
  const index_t parts = cpu.parts(groups, grain);
  SplitZipVerdict* const verdicts = cpu.workspace().take<SplitZipVerdict>(parts);
  cpu.parallel_ranges(groups, grain, [&](index_t first, index_t last, index_t part) {
    verdicts[part] = check_groups<F>(payload, l, set, first_group + first, first_group + last, len_side);
  });
  for (index_t part = 0; part < parts; ++part) {
    if (verdicts[part].fault == SplitZipFault::none) continue;
    decant::detail::fail_format(where, "in", expected_of(verdicts[part].fault),
                                [&] { return "others in chunk " + std::to_string(verdicts[part].chunk); });
  }
}

/// The whole of a payload that check_frame() knows, or only the groups of chunks [first_group, last_group).
template <class F>
void check_contents(Cpu& cpu, const char* where, const View<const std::byte, 1>& in, const SplitZipLayout& l,
                    const Codebook& book, index_t first_group, index_t last_group, index_t len_side) {
  if (!check_padding<F>(in.data(), l)) {
    decant::detail::fail_format(where, "in", expected_of(SplitZipFault::padding), "others between its parts");
  }
  check_chunks<F>(cpu, where, in, l, book, first_group, last_group, len_side);
}

}  // namespace decant::codec::detail

#endif
