#pragma once
// The physical limits that benchmark rows are held against, and the buffers both run on: reading bytes once
// (stream_read) and moving them once (copy), on the same threads as the context under test.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include "decant/core/cpu.hpp"

#if DECANT_X86
#include <immintrin.h>
#endif

namespace bench {

/// Zeroed memory, 2 MiB aligned and on huge pages where the system has them, so that no figure depends on TLB luck.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t size) : size_(size) {
    constexpr std::size_t huge = std::size_t{2} << 20;
    const std::size_t bytes = (size * sizeof(T) + huge - 1) / huge * huge;
    data_.reset(static_cast<T*>(std::aligned_alloc(huge, bytes ? bytes : huge)));
    if (!data_) throw std::bad_alloc();
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_;
};

struct Limit {
  std::string name;
  std::function<void()> call;
};

namespace detail {

// Each reads whole 512-byte blocks; callers pass such sizes.
inline std::uint64_t read_portable(const char* p, std::size_t bytes) {
  std::uint64_t sum[8] = {};
  for (std::size_t i = 0; i < bytes; i += 64)
    for (std::size_t k = 0; k < 8; ++k) {
      std::uint64_t word;
      std::memcpy(&word, p + i + 8 * k, 8);
      sum[k] ^= word;
    }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

#if DECANT_X86
// The lanes are folded through memory: g++ 12 warns about its own reduction intrinsics.
DECANT_TARGET_AVX2 inline std::uint64_t read_avx2(const char* p, std::size_t bytes) {
  __m256i sum[4] = {};
  for (std::size_t i = 0; i < bytes; i += 128)
    for (int k = 0; k < 4; ++k)
      sum[k] = _mm256_xor_si256(sum[k], _mm256_load_si256(reinterpret_cast<const __m256i*>(p + i + 32 * k)));
  std::uint64_t lanes[16], all = 0;
  std::memcpy(lanes, sum, sizeof lanes);
  for (const std::uint64_t lane : lanes) all ^= lane;
  return all;
}

DECANT_TARGET_AVX512 inline std::uint64_t read_avx512(const char* p, std::size_t bytes) {
  __m512i sum[4] = {};
  for (std::size_t i = 0; i < bytes; i += 256)
    for (int k = 0; k < 4; ++k) sum[k] = _mm512_xor_si512(sum[k], _mm512_load_si512(p + i + 64 * k));
  std::uint64_t lanes[32], all = 0;
  std::memcpy(lanes, sum, sizeof lanes);
  for (const std::uint64_t lane : lanes) all ^= lane;
  return all;
}
#endif

inline std::uint64_t read(decant::Isa isa, const char* p, std::size_t bytes) {
#if DECANT_X86
  if (isa == decant::Isa::avx512) return read_avx512(p, bytes);
  if (isa == decant::Isa::avx2) return read_avx2(p, bytes);
#else
  (void)isa;
#endif
  return read_portable(p, bytes);
}

constexpr std::size_t block = 512;

}  // namespace detail

/// Reads that many bytes (rounded up to 512) of memory of its own, once, with the widest loads, on the threads of `cpu`,
/// which must outlive the measurement. A single forward stream: prefetching, or more streams, was not faster.
inline Limit stream_read(decant::Cpu& cpu, std::size_t bytes) {
  const auto blocks = static_cast<decant::index_t>((bytes + detail::block - 1) / detail::block);
  auto memory = std::make_shared<Buffer<char>>(static_cast<std::size_t>(blocks) * detail::block);
  return {"stream_read", [&cpu, memory, blocks] {
            auto part = [&](decant::index_t first, decant::index_t last, decant::index_t) {
              std::uint64_t all = detail::read(decant::best_isa(),
                                               memory->data() + static_cast<std::size_t>(first) * detail::block,
                                               static_cast<std::size_t>(last - first) * detail::block);
              benchmark::DoNotOptimize(all);
            };
            cpu.parallel_ranges(blocks, 1, part);
          }};
}

/// Copies that many bytes between two buffers of its own (so it reads and writes each byte once), on the threads of `cpu`.
inline Limit copy(decant::Cpu& cpu, std::size_t bytes) {
  auto from = std::make_shared<Buffer<char>>(bytes);
  auto to = std::make_shared<Buffer<char>>(bytes);
  return {"copy", [&cpu, from, to, bytes] {
            auto part = [&](decant::index_t first, decant::index_t last, decant::index_t) {
              std::memcpy(to->data() + first, from->data() + first, static_cast<std::size_t>(last - first));
              benchmark::ClobberMemory();
            };
            cpu.parallel_ranges(static_cast<decant::index_t>(bytes), 4096, part);
          }};
}

}  // namespace bench
