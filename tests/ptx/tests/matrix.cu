// ldmatrix, stmatrix, movmatrix and mma.sync in every shape and type, against products computed by the host. The
// fragments are loaded with ldmatrix, as kernels do it: rows of A and columns of B have 16 or 32 bytes whatever the
// type.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "check.cuh"

namespace {

enum class Kind { kF16, kF16Accumulate16, kBF16, kTF32, kS8, kU8S8, kE4M3, kE5M2 };

__device__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

#define MMA_16(shape, types)                                                                                        \
  asm volatile("mma.sync.aligned." shape ".row.col." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define MMA_8(shape, types)                                                                                \
  asm volatile("mma.sync.aligned." shape ".row.col." types " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" \
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                            \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]))

// kBytes: of a row of A. D = A B + C.
template <Kind kKind, int kBytes>
__global__ void multiply(const unsigned char* a_global, const unsigned char* b_global, unsigned* d_global) {
  __shared__ __align__(16) unsigned char a_shared[16 * kBytes], b_shared[8 * kBytes];
  const int lane = threadIdx.x;
  for (int i = lane; i < 16 * kBytes; i += 32) a_shared[i] = a_global[i];
  for (int i = lane; i < 8 * kBytes; i += 32) b_shared[i] = b_global[i];
  __syncwarp();
  unsigned a[4] = {}, b[2] = {}, c[4] = {};
  // Matrices of A: rows 0-7 and 8-15 of the first 16 bytes, then of the second.
  const unsigned a_row = shared_address(a_shared + (lane % 16) * kBytes + (kBytes == 32 ? lane / 16 * 16 : 0));
  const unsigned b_row = shared_address(b_shared + (lane % 8) * kBytes + (kBytes == 32 ? lane / 8 % 2 * 16 : 0));
  if constexpr (kBytes == 32) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(a_row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1]) : "r"(b_row));
    if constexpr (kKind == Kind::kF16) MMA_16("m16n8k16", "f32.f16.f16.f32");
    if constexpr (kKind == Kind::kBF16) MMA_16("m16n8k16", "f32.bf16.bf16.f32");
    if constexpr (kKind == Kind::kTF32) MMA_16("m16n8k8", "f32.tf32.tf32.f32");
    if constexpr (kKind == Kind::kS8) MMA_16("m16n8k32", "s32.s8.s8.s32");
    if constexpr (kKind == Kind::kU8S8) MMA_16("m16n8k32", "s32.u8.s8.s32");
    if constexpr (kKind == Kind::kE4M3) MMA_16("m16n8k32", "f32.e4m3.e4m3.f32");
    if constexpr (kKind == Kind::kE5M2) MMA_16("m16n8k32", "f32.e5m2.e5m2.f32");
    if constexpr (kKind == Kind::kF16Accumulate16)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
                   : "+r"(c[0]), "+r"(c[1])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(a[0]), "=r"(a[1]) : "r"(a_row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(b[0]) : "r"(b_row));
    if constexpr (kKind == Kind::kF16) MMA_8("m16n8k8", "f32.f16.f16.f32");
    if constexpr (kKind == Kind::kBF16) MMA_8("m16n8k8", "f32.bf16.bf16.f32");
    if constexpr (kKind == Kind::kTF32) MMA_8("m16n8k4", "f32.tf32.tf32.f32");
    if constexpr (kKind == Kind::kS8) MMA_8("m16n8k16", "s32.s8.s8.s32");
    if constexpr (kKind == Kind::kU8S8) MMA_8("m16n8k16", "s32.u8.s8.s32");
    if constexpr (kKind == Kind::kF16Accumulate16)
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%0,%1};"
                   : "+r"(c[0]), "+r"(c[1])
                   : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  }
  const int row = lane / 4, column = lane % 4 * 2;
  if constexpr (kKind == Kind::kF16Accumulate16) {
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 2; ++i) {
        const __half value = __ushort_as_half(static_cast<unsigned short>(c[half] >> (16 * i)));
        d_global[(row + 8 * half) * 8 + column + i] = __float_as_uint(__half2float(value));
      }
  } else {
    for (int i = 0; i < 4; ++i) d_global[(row + i / 2 * 8) * 8 + column + i % 2] = c[i];
  }
}

// A value as it is stored, and as it is.
template <Kind kKind>
double make(unsigned random, bool of_b, unsigned char* to, int& bytes) {
  const int small = static_cast<int>(random % 17) - 8;
  const auto put = [&](auto stored) {
    bytes = sizeof stored;
    std::memcpy(to, &stored, sizeof stored);
  };
  if constexpr (kKind == Kind::kF16 || kKind == Kind::kF16Accumulate16) put(__float2half(small * 0.25f));
  if constexpr (kKind == Kind::kBF16) put(__float2bfloat16(small * 0.25f));
  if constexpr (kKind == Kind::kTF32) put(small * 0.25f);
  if constexpr (kKind == Kind::kE4M3) put(__nv_fp8_e4m3(small * 0.25f));
  if constexpr (kKind == Kind::kE5M2) put(__nv_fp8_e5m2((small / 2) * 0.5f));
  if constexpr (kKind == Kind::kE5M2) return (small / 2) * 0.5;
  if constexpr (kKind == Kind::kS8 || kKind == Kind::kU8S8) {
    const auto byte = static_cast<unsigned char>(random >> 8);
    put(byte);
    return kKind == Kind::kU8S8 && !of_b ? static_cast<double>(byte)
                                         : static_cast<double>(static_cast<signed char>(byte));
  }
  return small * 0.25;
}

template <Kind kKind, int kBytes>
void test(const char* name) {
  unsigned char raw_a[16 * kBytes], raw_b[8 * kBytes];
  double a[16][32] = {}, b[8][32] = {};
  int depth = 0;
  std::srand(static_cast<unsigned>(kKind) + kBytes);
  for (int row = 0; row < 24; ++row) {
    unsigned char* bytes = row < 16 ? raw_a + row * kBytes : raw_b + (row - 16) * kBytes;
    int at = 0, k = 0;
    while (at < kBytes) {
      int size = 0;
      const double value = make<kKind>(static_cast<unsigned>(std::rand()), row >= 16, bytes + at, size);
      (row < 16 ? a[row] : b[row - 16])[k++] = value;
      at += size;
    }
    depth = k;
  }
  Device<unsigned char> da(std::vector<unsigned char>(raw_a, raw_a + sizeof raw_a)),
      db(std::vector<unsigned char>(raw_b, raw_b + sizeof raw_b));
  Device<unsigned> dd(128);
  multiply<kKind, kBytes><<<1, 32>>>(da.get(), db.get(), dd.get());
  CHECK_CUDA(cudaGetLastError());
  const std::vector<unsigned> d = dd.values();
  const bool integers = kKind == Kind::kS8 || kKind == Kind::kU8S8;
  int wrong = 0;
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      double sum = 0;
      for (int k = 0; k < depth; ++k) sum += a[row][k] * b[column][k];
      float as_float;
      std::memcpy(&as_float, &d[row * 8 + column], 4);
      const double got = integers ? static_cast<double>(static_cast<int>(d[row * 8 + column])) : as_float;
      // The operands are multiples of 1/4, so every sum is exact (in f16 too: below 128 with four bits behind the
      // point).
      wrong += got != sum;
    }
  if (wrong) std::printf("%s: %d wrong\n", name, wrong);
  CHECK(wrong == 0);
}

__global__ void multiply_f64(const double* a, const double* b, double* d) {
  const int lane = threadIdx.x, row = lane / 4, k = lane % 4;
  double c0 = 1, c1 = 2;
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+d"(c0), "+d"(c1)
               : "d"(a[row * 4 + k]), "d"(b[row * 4 + k]));  // B: row k, column lane / 4, stored by columns
  d[row * 8 + k * 2] = c0;
  d[row * 8 + k * 2 + 1] = c1;
}

void test_f64() {
  std::vector<double> a(32), b(32);
  for (int i = 0; i < 32; ++i) {
    a[i] = i - 7;
    b[i] = 3 * i % 11;
  }
  Device<double> da(a), db(b), dd(64);
  multiply_f64<<<1, 32>>>(da.get(), db.get(), dd.get());
  const auto d = dd.values();
  for (int row = 0; row < 8; ++row)
    for (int column = 0; column < 8; ++column) {
      double sum = column % 2 ? 2 : 1;
      for (int k = 0; k < 4; ++k) sum += a[row * 4 + k] * b[column * 4 + k];
      CHECK(d[row * 8 + column] == sum);
    }
}

// ldmatrix.trans, stmatrix and movmatrix transpose, each in its way.
__global__ void transpose(const unsigned short* in, unsigned short* by_load, unsigned short* by_store,
                          unsigned short* by_move) {
  __shared__ __align__(16) unsigned short tile[64], stored[64];
  const int lane = threadIdx.x;
  for (int i = lane; i < 64; i += 32) tile[i] = in[i];
  __syncwarp();
  const unsigned row = shared_address(tile + lane % 8 * 8);
  unsigned plain, transposed, moved;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(plain) : "r"(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(transposed) : "r"(row));
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(moved) : "r"(plain));
  const unsigned to = shared_address(stored + lane % 8 * 8);
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(plain) : "memory");
  __syncwarp();
  for (int i = 0; i < 2; ++i) {
    const int at = lane / 4 * 8 + lane % 4 * 2 + i;
    by_load[at] = static_cast<unsigned short>(transposed >> (16 * i));
    by_move[at] = static_cast<unsigned short>(moved >> (16 * i));
    by_store[at] = stored[at];
  }
}

void test_transposition() {
  std::vector<unsigned short> in(64);
  for (int i = 0; i < 64; ++i) in[i] = static_cast<unsigned short>(1000 + i);
  Device<unsigned short> d(in), by_load(64), by_store(64), by_move(64);
  transpose<<<1, 32>>>(d.get(), by_load.get(), by_store.get(), by_move.get());
  for (const auto& result : {by_load.values(), by_store.values(), by_move.values()})
    for (int row = 0; row < 8; ++row)
      for (int column = 0; column < 8; ++column) CHECK(result[row * 8 + column] == in[column * 8 + row]);
}

}  // namespace

int main() {
  test<Kind::kF16, 32>("f16 m16n8k16");
  test<Kind::kF16, 16>("f16 m16n8k8");
  test<Kind::kF16Accumulate16, 32>("f16 m16n8k16, f16 accumulators");
  test<Kind::kF16Accumulate16, 16>("f16 m16n8k8, f16 accumulators");
  test<Kind::kBF16, 32>("bf16 m16n8k16");
  test<Kind::kBF16, 16>("bf16 m16n8k8");
  test<Kind::kTF32, 32>("tf32 m16n8k8");
  test<Kind::kTF32, 16>("tf32 m16n8k4");
  test<Kind::kS8, 32>("s8 m16n8k32");
  test<Kind::kS8, 16>("s8 m16n8k16");
  test<Kind::kU8S8, 32>("u8 s8 m16n8k32");
  test<Kind::kU8S8, 16>("u8 s8 m16n8k16");
  test<Kind::kE4M3, 32>("e4m3 m16n8k32");
  test<Kind::kE5M2, 32>("e5m2 m16n8k32");
  test_f64();
  test_transposition();
  return finish("matrix");
}
