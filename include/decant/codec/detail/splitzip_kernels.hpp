// decant: which of SplitZip's dense kernels runs: by instruction set, element type and code width.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_KERNELS_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_KERNELS_HPP

#include "../../core/simd.hpp"
#include "splitzip_avx2.hpp"
#include "splitzip_avx512.hpp"
#include "splitzip_portable.hpp"

namespace decant::codec::detail {

/// Elements that are worth a thread.
inline constexpr index_t splitzip_grain = index_t{1} << 16;

template <class T>
struct EncodeKernels {
  /// Codes a chunk of n elements: all planes' bytes, and the escapes, of which it stops at more than `limit`.
  void (*coded)(const SplitZipTables& tables, const T* x, index_t n, const SplitZipPlanes<std::byte>& planes,
                SplitZipEscapes& escapes, index_t limit);
  /// Writes all of a chunk with raw exponents.
  void (*raw)(const T* x, index_t n, const SplitZipPlanes<std::byte>& planes, std::byte* side);
};

template <class T>
struct DecodeKernels {
  /// Decodes a coded chunk of n elements.
  void (*coded)(const SplitZipTables& tables, const SplitZipPlanes<const std::byte>& planes, index_t n,
                const SplitZipList& list, T* y);
  /// Decodes one with raw exponents.
  void (*raw)(const SplitZipPlanes<const std::byte>& planes, const std::byte* side, index_t n, T* y);
};

template <class F, class T>
void encode_dense_portable(const SplitZipTables& tables, const T* x, index_t n, const SplitZipPlanes<std::byte>& planes,
                           SplitZipEscapes& escapes, index_t limit) {
  encode_portable<F>(tables, x, 0, n, planes, escapes, limit);
}

template <class F, class T>
void decode_dense_portable(const SplitZipTables& tables, const SplitZipPlanes<const std::byte>& planes, index_t n,
                           const SplitZipList& list, T* y) {
  decode_portable<F>(tables, planes, 0, n, y);
  list.patch<F>(0, y, 0, n);
}

template <class F, class T>
void encode_raw_portable(const T* x, index_t n, const SplitZipPlanes<std::byte>& planes, std::byte* side) {
  encode_raw_exponents<F>(x, 0, n, planes, side);
}

template <class F, class T>
void decode_raw_portable(const SplitZipPlanes<const std::byte>& planes, const std::byte* side, index_t n, T* y) {
  decode_raw_exponents<F>(planes, side, 0, n, y);
}

/// stream: results go around the caches, those of coded chunks; planes are at lines.
template <class F, class T>
EncodeKernels<T> encode_kernels(Isa isa, bool stream) {
#if DECANT_X86
  if (isa == Isa::avx512 && has_vbmi()) {
    return {stream ? encode_dense_vbmi<F, true, T> : encode_dense_vbmi<F, false, T>, encode_raw_vbmi<F, T>};
  }
  if (isa != Isa::portable) {
    return {stream ? encode_dense_avx2<F, true, T> : encode_dense_avx2<F, false, T>, encode_raw_avx2<F, T>};
  }
#else
  (void)isa, (void)stream;
#endif
  return {encode_dense_portable<F, T>, encode_raw_portable<F, T>};
}

/// stream: results go around the caches, those of coded chunks; chunks are at lines of y.
template <class F, class T>
DecodeKernels<T> decode_kernels(Isa isa, bool stream) {
#if DECANT_X86
  if (isa == Isa::avx512 && has_vbmi()) {
    return {stream ? decode_dense_vbmi<F, true, T> : decode_dense_vbmi<F, false, T>, decode_raw_vbmi<F, T>};
  }
  if (isa != Isa::portable) {
    return {stream ? decode_dense_avx2<F, true, T> : decode_dense_avx2<F, false, T>, decode_raw_avx2<F, T>};
  }
#else
  (void)isa, (void)stream;
#endif
  return {decode_dense_portable<F, T>, decode_raw_portable<F, T>};
}

}  // namespace decant::codec::detail

#endif
