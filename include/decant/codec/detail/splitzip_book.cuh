// decant: a codebook as SplitZip's kernels use it: exponents to codes by a subtraction where the book is a window, else
// by a table in shared memory; codes to exponents by an addition, or a byte permutation over the book in four
// registers.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_BOOK_CUH
#define DECANT_CODEC_DETAIL_SPLITZIP_BOOK_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../codebook.hpp"
#include "splitzip_quads.cuh"

namespace decant::codec::detail {

/// A codebook as a kernel's parameter.
struct PackedBook {
  std::uint32_t exponents[4] = {};  // four each, the first in the lowest byte
  bool window = false;
  std::uint8_t code_bits = 0;

  explicit PackedBook(const Codebook& book) : window(book.contiguous()), code_bits(book.code_bits) {
    for (int c = 0; c < 16; ++c) exponents[c / 4] |= std::uint32_t{book.exponents[c]} << (8 * (c % 4));
  }
  /// c: known when the kernel is compiled.
  __device__ unsigned exponent(int c) const { return exponents[c / 4] >> (8 * (c % 4)) & 0xffu; }
};

/// The bits of a looked-up code that only exponents without a code set.
template <class F>
__device__ constexpr std::uint32_t no_code_bits() {
  return each_byte(0xffu << F::code_bits & 0xffu);
}

template <class F>
class ExponentCodes {
 public:
  /// All threads of the block; `table`: 256 bytes of shared memory.
  __device__ ExponentCodes(const PackedBook& book, std::uint8_t* table)
      : table_(table), first_(book.exponent(0)), window_(book.window) {
    if (window_) return;
    for (unsigned e = threadIdx.x; e < 256; e += blockDim.x) {
      unsigned code = 0x80;
#pragma unroll
      for (int c = 0; c < 1 << F::code_bits; ++c) code = book.exponent(c) == e ? static_cast<unsigned>(c) : code;
      table[e] = static_cast<std::uint8_t>(code);
    }
    __syncthreads();
  }

  /// The codes of a quad; where there is none, one of no_code_bits() is set.
  __device__ std::uint32_t operator()(std::uint32_t exponents) const {
    if (window_) {  // bytes minus bytes, without borrows between them
      const std::uint32_t first = each_byte(first_);
      const std::uint32_t top = each_byte(0x80);
      return ((exponents | top) - (first & ~top)) ^ ((exponents ^ ~first) & top);
    }
    std::uint32_t codes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) codes |= std::uint32_t{table_[exponents >> (8 * j) & 0xffu]} << (8 * j);
    return codes;
  }

  __device__ bool contains(unsigned exponent) const {
    const unsigned code = window_ ? exponent - first_ & 0xffu : table_[exponent];
    return code >> F::code_bits == 0;
  }

 private:
  const std::uint8_t* table_;
  unsigned first_;
  bool window_;
};

/// A quad whose bytes are 1 where `codes` has no code, and else 0.
template <class F>
__device__ inline std::uint32_t without_code(std::uint32_t codes) {
  const std::uint32_t high = codes & no_code_bits<F>();
  return ((high & each_byte(0x7f)) + each_byte(0x7f) | high) >> 7 & each_byte(1);
}

/// A quad of 0 and 1 as four bits, the first element's the lowest.
__device__ inline std::uint32_t quad_mask(std::uint32_t ones) {
  return (ones | ones >> 7 | ones >> 14 | ones >> 21) & 15u;
}

template <class F>
class CodeExponents {
 public:
  __device__ explicit CodeExponents(const PackedBook& book) : window_(book.window) {
#pragma unroll
    for (int w = 0; w < words; ++w) book_[w] = book.exponents[w];
  }

  __device__ std::uint32_t operator()(std::uint32_t codes) const {
    if (window_) return codes + each_byte(book_[0] & 0xffu);  // no carries: the last exponent fits into a byte
    const std::uint32_t low = codes & each_byte(7);
    const std::uint32_t which = __byte_perm(low | low >> 4, 0, 0x4420);  // a selector in each nibble
    std::uint32_t exponents = __byte_perm(book_[0], book_[1], which);
    if constexpr (F::code_bits == 4) {
      const std::uint32_t upper = (codes >> 3 & each_byte(1)) * 0xffu;
      exponents = (exponents & ~upper) | (__byte_perm(book_[2], book_[3], which) & upper);
    }
    return exponents;
  }

 private:
  static constexpr int words = (1 << F::code_bits) / 4;
  std::uint32_t book_[words];
  bool window_;
};

}  // namespace decant::codec::detail

#endif
