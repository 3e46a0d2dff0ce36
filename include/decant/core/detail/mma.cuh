// decant: the tensor-core instructions that decant uses, sm_80 and later: m16n8k16 products of fp16 and bf16 with
// float sums, ldmatrix, and conversions of pairs. Layouts as in the PTX ISA, section "Matrix fragments for
// mma.m16n8k16": lane = 4 * g + t holds rows g and g + 8 and columns 2 t and 2 t + 1.
#ifndef DECANT_CORE_DETAIL_MMA_CUH
#define DECANT_CORE_DETAIL_MMA_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include <cstdint>

#include "../dtype.hpp"

namespace decant::detail {

/// sum += a b: a 16 x 16, b 16 x 8.
__device__ inline void mma_16x8x16(bf16, float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                   std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_16x8x16(fp16, float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                   std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8, in shared memory, aligned to 16 bytes.
__device__ inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices(std::uint32_t (&to)[2], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(address)
               : "memory");
}
__device__ inline void load_transposed(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

/// Two numbers to storage, rounded to nearest even: `low` in the lower half.
__device__ inline std::uint32_t narrow_pair(bf16, float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline std::uint32_t narrow_pair(fp16, float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// And back.
__device__ inline float low_of_pair(bf16, std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_of_pair(bf16, std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
__device__ inline float low_of_pair(fp16, std::uint32_t pair) {
  float x;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(x) : "r"(pair));
  return x;
}
__device__ inline float high_of_pair(fp16, std::uint32_t pair) {
  float x;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(x) : "r"(pair));
  return x;
}

/// Whether a pair holds NaN or an infinity.
__device__ inline bool unbounded_pair(bf16, std::uint32_t pair) {
  return (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
}
__device__ inline bool unbounded_pair(fp16, std::uint32_t pair) {
  return (pair & 0x7c00u) == 0x7c00u || (pair & 0x7c000000u) == 0x7c000000u;
}

}  // namespace decant::detail

#endif
