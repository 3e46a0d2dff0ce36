// decant: SplitZip on CUDA: the functions of splitzip.hpp on device memory, with the same payloads, byte for byte.
// encode is three launches and decode two, none of which waits. Moves, per bf16 element with 4-bit codes, 3.5 bytes
// each way: 2 of elements, 1.5 of payload (e5m2: 1.875, e4m3: 1.875), and under 2 % for the directory and escapes of
// ordinary caches; chunks with raw exponents are read twice. Kernels:
// detail/splitzip_{encode,check,decode,histogram}.cuh. What only the device sees, the bytes of a payload, is checked
// before y is written; check() raises FormatError for them.
#ifndef DECANT_CODEC_SPLITZIP_CUH
#define DECANT_CODEC_SPLITZIP_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/splitzip_decode.cuh"
#include "detail/splitzip_encode.cuh"
#include "detail/splitzip_histogram.cuh"
#include "splitzip.hpp"
#include "stored.cuh"

namespace decant::codec {

/// x [n], any stride, and counts [2^ExpBits], on the device. O(n); scratch: 8 bytes per exponent and block.
template <SplitZipElement T>
void histogram(Cuda& cuda, const SplitZip<T>&, View<const T, 1> x, View<std::uint64_t, 1> counts) {
  constexpr const char* where = "codec::histogram";
  require_equal(counts.extent(0), detail::exponent_count<T>, where, "counts");
  const unsigned blocks =
      cuda_blocks(x.extent(0), detail::histogram_block_elements, index_t{4} * cuda.device().multiprocessors);
  Workspace::Scope scope(cuda.workspace());
  auto* const found = cuda.workspace().take<std::uint64_t>(index_t{blocks} * detail::exponent_count<T>);
  launch(cuda, where, detail::splitzip_count<T>, CudaGrid{dim3(blocks), dim3(detail::splitzip_threads)}, x, found);
  launch(cuda, where, detail::splitzip_add_counts<T>, CudaGrid{dim3(1), dim3(detail::exponent_count<T>)}, found,
         static_cast<int>(blocks), counts, cuda.fault());
}

/// The codec with the book that suits x [n], any stride, as on the CPU. Waits for the stream, and raises what check()
/// would: not for a stream that is being captured.
template <SplitZipElement T>
SplitZip<T> calibrate(Cuda& cuda, const SplitZip<T>& codec, View<const T, 1> x) {
  constexpr const char* where = "codec::calibrate";
  constexpr index_t exponents = detail::exponent_count<T>;
  validate(codec);
  SplitZip<T> fitted = codec;
  if (x.extent(0) == 0) return fitted;
  Workspace::Scope scope(cuda.workspace());
  const View<std::uint64_t, 1> counts(cuda.workspace().template take<std::uint64_t>(exponents), exponents);
  histogram(cuda, codec, x, counts);
  std::uint64_t found[exponents] = {};
  ::decant::detail::require_cuda(
      cudaMemcpyAsync(found, counts.data(), sizeof found, cudaMemcpyDeviceToHost, cuda.stream()), where,
      "cudaMemcpyAsync");
  cuda.check();
  fitted.book = best_codebook<T>(View<const std::uint64_t, 1>(found, exponents), codec.chunk, codec.reserve_zero);
  return fitted;
}

namespace detail {

/// Calls call(FieldCodec) with the geometry of these codes; of the empty book, with one of them.
template <SplitZipElement T, class Call>
void with_field(int code_bits, const Call& call) {
  if constexpr (codes_of<T>(4)) {
    if (code_bits == 4) return call(FieldCodecOf<T, 4>{});
  }
  call(FieldCodecOf<T, 3>{});
}

inline PackedHeader header_of(const SplitZipLayout& l, const Codebook& book) {
  std::byte bytes[splitzip_header_bytes];
  store_header(l, book, 0, bytes);
  PackedHeader header;
  for (int w = 0; w < splitzip_header_bytes / 8; ++w) header.words[w] = load_le<std::uint64_t>(bytes + 8 * w);
  return header;
}

/// How many escapes of a chunk encode keeps aside, so that it need not read the chunk again: one in 16 elements.
inline int splitzip_slots(const SplitZipLayout& l) {
  const index_t worth = l.raw_side(l.chunk) / 3;
  return static_cast<int>(l.chunk / 16 < worth ? l.chunk / 16 : worth);
}

template <class F, SplitZipElement T>
void encode_coded(Cuda& cuda, const SplitZip<T>& codec, const T* x, const SplitZipLayout& l, const PackedHeader& raw,
                  std::byte* out, index_t* size, const char* where) {
  const index_t tiles = (l.chunks + splitzip_warps - 1) / splitzip_warps;
  Workspace::Scope scope(cuda.workspace());
  Workspace& workspace = cuda.workspace();
  SplitZipScratch scratch;
  scratch.slots = splitzip_slots(l);
  scratch.escapes = workspace.take<std::uint32_t>(l.chunks * scratch.slots);
  scratch.tile_bytes = workspace.take<std::uint32_t>(tiles);
  scratch.tile_side = workspace.take<std::uint64_t>(tiles);
  scratch.len_side = workspace.take<std::uint64_t>(1);
  const PackedBook book(codec.book);
  launch(cuda, where, splitzip_encode_chunks<F, T>, CudaGrid{dim3(cuda_blocks(tiles, 1)), dim3(splitzip_threads)}, x, l,
         book, out, scratch, cuda.fault());
  launch(cuda, where, splitzip_sum_tiles<F>, CudaGrid{dim3(1), dim3(splitzip_sum_threads)}, l, scratch,
         header_of(l, codec.book), raw, out, size, cuda.fault());
  launch(cuda, where, splitzip_place_sides<F, T>,
         CudaGrid{dim3(cuda_blocks(tiles, splitzip_warps)), dim3(splitzip_threads)}, x, l, book, out, scratch,
         cuda.fault());
}

/// Checks what the range depends on and decodes it. range.n: -1 where only the header knows.
template <SplitZipElement T>
void decode_elements(Cuda& cuda, const char* where, const SplitZip<T>& codec, const View<const std::byte, 1>& in,
                     const SplitZipRange& range, T* y) {
  if (in.extent(0) < splitzip_header_bytes) {
    ::decant::detail::fail_format(where, "in", "a header of 64 bytes", in.extent(0));
  }
  const index_t group = splitzip_group * codec.chunk;
  const index_t tile = splitzip_warps * codec.chunk;
  const bool empty = range.first == range.last;
  const index_t groups = empty ? 1 : (range.last - 1) / group + 1 - range.first / group;
  const index_t tiles = empty ? 0 : (range.last - 1) / tile + 1 - range.first / tile;
  const SplitZipLayout l = splitzip_layout<T>(range.n < 0 ? 0 : range.n, codec.chunk, codec.book.code_bits);
  Workspace::Scope scope(cuda.workspace());
  auto* const tile_sides = cuda.workspace().take<std::uint64_t>(groups * splitzip_warps);
  const PackedBook book(codec.book);
  with_field<T>(codec.book.code_bits, [&](auto field) {
    using F = decltype(field);
    launch(cuda, where, splitzip_check_payload<F, T>, CudaGrid{dim3(cuda_blocks(groups, 1)), dim3(splitzip_threads)},
           in.data(), in.extent(0), codec.chunk, book, range, tile_sides, cuda.fault());
    launch(cuda, where, splitzip_decode_chunks<F, T>, CudaGrid{dim3(cuda_blocks(tiles, 1)), dim3(splitzip_threads)},
           in.data(), book, range, l, tile_sides, y, cuda.fault());
  });
}

}  // namespace detail

/// x [n] contiguous; out contiguous, at least max_encoded_size(codec, n) bytes; *size: all on the device. out at a
/// multiple of 8 and x at one of 16 bytes are fastest. O(n); scratch: a quarter of a byte per element.
template <SplitZipElement T>
void encode(Cuda& cuda, const SplitZip<T>& codec, View<const T, 1> x, View<std::byte, 1> out, index_t* size) {
  constexpr const char* where = "codec::encode";
  const index_t n = x.extent(0);
  const index_t room = max_encoded_size(codec, n);
  detail::require_encode(x, out, room);
  const detail::SplitZipLayout l = detail::splitzip_layout<T>(n, codec.chunk, codec.book.code_bits);
  const auto raw = detail::header_of(detail::splitzip_layout<T>(n, codec.chunk, 0), Codebook{});
  if (l.code_bits == 0 || l.side >= l.raw_bytes) {
    launch(cuda, where, detail::splitzip_store_raw<T>, detail::copy_grid(l.raw_bytes), x.data(), n, raw, out.data(),
           size, cuda.fault());
    return;
  }
  detail::with_field<T>(codec.book.code_bits, [&](auto field) {
    detail::encode_coded<decltype(field)>(cuda, codec, x.data(), l, raw, out.data(), size, where);
  });
}

/// y [n] contiguous, on the device as `in` is. `in` may go on behind the payload, whose size only the device knows.
/// Unless it begins with a payload as the CPU's decode wants it, nothing is written and check() raises FormatError. in
/// at a multiple of 8 and y at one of 16 bytes are fastest. O(n); scratch: a byte per chunk.
template <SplitZipElement T>
void decode(Cuda& cuda, const SplitZip<T>& codec, View<const std::byte, 1> in, View<T, 1> y) {
  constexpr const char* where = "codec::decode";
  validate(codec);
  detail::require_decode(where, in, y);
  const index_t n = y.extent(0);
  detail::decode_elements(cuda, where, codec, in, {n, 0, n}, y.data());
}

/// Elements [first, first + y.extent(0)) of a payload, as on the CPU. That it has as many is seen by the device: else
/// nothing is written and check() raises ArgumentError.
template <SplitZipElement T>
void decode_range(Cuda& cuda, const SplitZip<T>& codec, View<const std::byte, 1> in, index_t first, View<T, 1> y) {
  constexpr const char* where = "codec::decode_range";
  validate(codec);
  detail::require_decode(where, in, y);
  require(first >= 0 && first <= detail::splitzip_max_elements, where, "first", "0 to 2^48", first);
  detail::decode_elements(cuda, where, codec, in, {-1, first, first + y.extent(0)}, y.data());
}

static_assert(KVCodec<SplitZip<bf16>, Cuda> && KVCodec<SplitZip<fp8_e5m2>, Cuda> && KVCodec<SplitZip<fp8_e4m3>, Cuda>);

}  // namespace decant::codec

#endif
