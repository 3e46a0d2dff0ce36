// decant: SplitZip (arXiv 2605.01708), the lossless codec for KV caches in BF16, FP8 E5M2 and FP8 E4M3: exponents
// become fixed codes of 4 or 3 bits, sign and mantissa are kept, and the few exponents without a code are listed. As in
// the paper: codes, planes of BF16, 16-bit positions in chunks. Ours: the payload around them (directory, super
// entries, raw exponents for chunks that escape too much, so that no input grows by more than a header; see
// detail/splitzip_layout.hpp), its canonical form, the FP8 planes. Bits are never read as floating-point numbers.
#ifndef DECANT_CODEC_SPLITZIP_HPP
#define DECANT_CODEC_SPLITZIP_HPP

#include <type_traits>

#include "../core/cpu.hpp"
#include "codebook.hpp"
#include "detail/arguments.hpp"
#include "detail/splitzip_check.hpp"
#include "detail/splitzip_decode.hpp"
#include "detail/splitzip_encode.hpp"
#include "policy.hpp"
#include "stored.hpp"

namespace decant::codec {

/// T: bf16, fp8_e5m2 or fp8_e4m3. As it stands, a codec for elements that are about N(0, 1); calibrate() fits it.
template <SplitZipElement T>
struct SplitZip {
  using element = T;
  static constexpr CodecId codec_id = std::is_same_v<T, bf16>       ? CodecId::splitzip_bf16
                                      : std::is_same_v<T, fp8_e5m2> ? CodecId::splitzip_e5m2
                                                                    : CodecId::splitzip_e4m3;
  static constexpr bool lossless = true;

  /// Elements per chunk, a power of two from 64 to 8192: smaller ones give faster access to few elements, each costs 17
  /// bits.
  index_t chunk = 1024;
  /// Whether calibrate() keeps a code for exponent 0, for caches with zero padding that the sample may not show.
  bool reserve_zero = false;
  /// What calibrate() finds. The empty book, code_bits 0, stores elements as they are.
  Codebook book = normal_codebook<T>();

  bool operator==(const SplitZip&) const = default;
};

template <SplitZipElement T>
void validate(const SplitZip<T>& codec) {
  constexpr const char* where = "codec::SplitZip";
  require(detail::is_splitzip_chunk(codec.chunk), where, "chunk", "a power of two from 64 to 8192", codec.chunk);
  require(is_valid<T>(codec.book), where, "book", "ascending exponents of the format, then zeros", "others");
}

/// How often each exponent occurs in x [n], any stride, to counts [2^ExpBits]. O(n); scratch: 8 bytes per exponent and
/// thread.
template <SplitZipElement T>
void histogram(Cpu& cpu, const SplitZip<T>&, std::type_identity_t<View<const T, 1>> x, View<std::uint64_t, 1> counts) {
  constexpr index_t exponents = index_t{1} << FloatBits<T>::exponent;
  require_equal(counts.extent(0), exponents, "codec::histogram", "counts");
  constexpr index_t grain = index_t{1} << 16;
  Workspace::Scope scope(cpu.workspace());
  const index_t parts = cpu.parts(x.extent(0), grain);
  std::uint64_t* const found = cpu.workspace().take<std::uint64_t>(parts * exponents);
  cpu.parallel_ranges(x.extent(0), grain, [&](index_t first, index_t last, index_t part) {
    // Runs of one exponent are common: four histograms, so that they do not wait for each other.
    std::uint64_t own[4][exponents] = {};
    index_t i = first;
    for (; i + 4 <= last; i += 4) {
      for (index_t k = 0; k < 4; ++k) ++own[k][FieldCodecOf<T, 3>::exponent(x[i + k].bits)];
    }
    for (; i < last; ++i) ++own[0][FieldCodecOf<T, 3>::exponent(x[i].bits)];
    for (index_t e = 0; e < exponents; ++e) found[part * exponents + e] = own[0][e] + own[1][e] + own[2][e] + own[3][e];
  });
  for (index_t e = 0; e < exponents; ++e) {
    counts[e] = 0;
    for (index_t part = 0; part < parts; ++part) counts[e] += found[part * exponents + e];
  }
}

/// The codec with the book that suits x [n], any stride: 4-bit codes, 3-bit codes or none, by estimated size. An empty
/// sample changes nothing. O(n).
template <SplitZipElement T>
SplitZip<T> calibrate(Cpu& cpu, const SplitZip<T>& codec, std::type_identity_t<View<const T, 1>> x) {
  validate(codec);
  SplitZip<T> fitted = codec;
  if (x.extent(0) == 0) return fitted;
  std::uint64_t counts[1 << FloatBits<T>::exponent];
  const View<std::uint64_t, 1> view(counts, index_t{1} << FloatBits<T>::exponent);
  histogram(cpu, codec, x, view);
  fitted.book = best_codebook<T>(view, codec.chunk, codec.reserve_zero);
  return fitted;
}

/// What encode needs as room: little more than the elements. What it writes is at most their size and 64 bytes.
template <SplitZipElement T>
index_t max_encoded_size(const SplitZip<T>& codec, index_t n) {
  validate(codec);
  require(n >= 0 && n <= detail::splitzip_max_elements, "codec::max_encoded_size", "n", "0 to 2^48", n);
  const detail::SplitZipLayout l = detail::splitzip_layout<T>(n, codec.chunk, codec.book.code_bits);
  return l.worst_bytes() > l.raw_bytes ? l.worst_bytes() : l.raw_bytes;
}

namespace detail {

template <SplitZipElement T>
index_t encode_coded(Cpu& cpu, bool stream, const SplitZip<T>& codec, const T* x, const SplitZipLayout& l,
                     std::byte* payload) {
  const SplitZipTables tables(codec.book);
  if constexpr (codes_of<T>(4)) {
    if (l.code_bits == 4) return encode_coded<FieldCodecOf<T, 4>>(cpu, stream, tables, x, l, payload);
  }
  return encode_coded<FieldCodecOf<T, 3>>(cpu, stream, tables, x, l, payload);
}

/// See encode, of arguments that were checked; returns the size. stream_bytes: from which size on results are streamed.
template <SplitZipElement T>
index_t encode_elements(Cpu& cpu, const SplitZip<T>& codec, const View<const T, 1>& x, std::byte* payload,
                        index_t stream_bytes) {
  const index_t n = x.extent(0);
  const SplitZipLayout l = splitzip_layout<T>(n, codec.chunk, codec.book.code_bits);
  if (l.code_bits != 0 && l.side < l.raw_bytes) {
    const index_t bytes = encode_coded(cpu, l.side >= stream_bytes, codec, x.data(), l, payload);
    if (bytes < l.raw_bytes) {
      store_header(l, codec.book, bytes - l.side, payload);
      return bytes;
    }
  }
  store_header(splitzip_layout<T>(n, codec.chunk, 0), Codebook{}, 0, payload);
  copy_little_endian(x.data(), payload + splitzip_header_bytes, n, sizeof(T));
  return l.raw_bytes;
}

template <class F, SplitZipElement T>
void check_and_decode(Cpu& cpu, const char* where, const Codebook& book, const View<const std::byte, 1>& in,
                      const SplitZipLayout& l, index_t len_side, index_t first, const View<T, 1>& y,
                      index_t stream_bytes) {
  const index_t last = first + y.extent(0);
  const index_t group = splitzip_group * l.chunk;
  const index_t first_group = first / group;
  const index_t last_group = first == last ? first_group : (last - 1) / group + 1;
  check_contents<F>(cpu, where, in, l, book, first_group, last_group, len_side);
  const bool stream = y.extent(0) * index_t{sizeof(T)} >= stream_bytes;
  decode_coded<F>(cpu, stream, SplitZipTables(book), in.data(), l, first, last, y.data());
}

/// Checks what elements [first, first + y.extent(0)) depend on and decodes them. n: of the payload.
template <SplitZipElement T>
void decode_elements(Cpu& cpu, const char* where, const SplitZip<T>& codec, const View<const std::byte, 1>& in,
                     index_t n, index_t first, const View<T, 1>& y, index_t stream_bytes) {
  index_t len_side = 0;
  const SplitZipLayout l = check_frame<T>(where, in, codec.chunk, codec.book, n, len_side);
  if (l.code_bits == 0) {
    const std::byte* const from = in.data() + splitzip_header_bytes + first * index_t{sizeof(T)};
    return copy_little_endian(from, y.data(), y.extent(0), sizeof(T));
  }
  if constexpr (codes_of<T>(4)) {
    using F = FieldCodecOf<T, 4>;
    if (l.code_bits == 4) return check_and_decode<F>(cpu, where, codec.book, in, l, len_side, first, y, stream_bytes);
  }
  check_and_decode<FieldCodecOf<T, 3>>(cpu, where, codec.book, in, l, len_side, first, y, stream_bytes);
}

}  // namespace detail

/// x [n] contiguous; out contiguous, at least max_encoded_size(codec, n) bytes; neither needs any alignment, but 64
/// bytes are fastest. What is written of out is undefined behind *size. The same bytes on any number of threads. O(n).
template <SplitZipElement T>
void encode(Cpu& cpu, const SplitZip<T>& codec, std::type_identity_t<View<const T, 1>> x, View<std::byte, 1> out,
            index_t* size) {
  const index_t n = x.extent(0);
  const index_t room = max_encoded_size(codec, n);
  detail::require_encode(x, out, room);
  *size = detail::encode_elements(cpu, codec, x, out.data(), detail::stream_from());
}

/// y [n] contiguous. FormatError unless `in` is all of a payload of n elements in canonical form, raw or with this
/// codec's chunk and book; then nothing has been written. O(n); scratch: 16 bytes per thread.
template <SplitZipElement T>
void decode(Cpu& cpu, const SplitZip<T>& codec, View<const std::byte, 1> in, std::type_identity_t<View<T, 1>> y) {
  constexpr const char* where = "codec::decode";
  validate(codec);
  detail::require_decode(where, in, y);
  detail::decode_elements(cpu, where, codec, in, y.extent(0), 0, y, detail::stream_from());
}

/// Elements [first, first + y.extent(0)) of a payload. ArgumentError unless it has them. What they do not depend on,
/// the other groups of 64 chunks, is neither read nor checked. O(y.extent(0) + 64 chunks).
template <SplitZipElement T>
void decode_range(Cpu& cpu, const SplitZip<T>& codec, View<const std::byte, 1> in, index_t first,
                  std::type_identity_t<View<T, 1>> y) {
  constexpr const char* where = "codec::decode_range";
  validate(codec);
  detail::require_decode(where, in, y);
  const index_t n = detail::read_start<T>(where, in).n;
  require(
      first >= 0 && first <= n && y.extent(0) <= n - first, where, "first",
      [&] { return "elements of the payload's " + std::to_string(n); }, first);
  detail::decode_elements(cpu, where, codec, in, n, first, y, detail::stream_from());
}

/// The codec that a payload was written with: its chunk and its book; of a raw payload the empty book. FormatError
/// unless the header is one.
template <SplitZipElement T>
SplitZip<T> codec_of(const SplitZip<T>& codec, View<const std::byte, 1> in) {
  require_contiguous(in, "codec::codec_of", "in");
  const detail::SplitZipStart start = detail::read_start<T>("codec::codec_of", in);
  SplitZip<T> found = codec;
  found.chunk = start.chunk;
  found.book = start.book;
  return found;
}

static_assert(KVCodec<SplitZip<bf16>, Cpu> && KVCodec<SplitZip<fp8_e5m2>, Cpu> && KVCodec<SplitZip<fp8_e4m3>, Cpu>);

}  // namespace decant::codec

#endif
