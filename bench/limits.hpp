#pragma once
// The physical limits that benchmark rows are held against, and the buffers both run on: reading bytes once
// (stream_read) and moving them once (copy), on the same threads as the context under test.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

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

// Stores that bypass the caches, in whole 64-byte lines; `to` is aligned to them.
#if DECANT_X86
DECANT_TARGET_AVX2 inline void stream_avx2(char* to, const char* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), high);
  }
  _mm_sfence();
}

DECANT_TARGET_AVX512 inline void stream_avx512(char* to, const char* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  _mm_sfence();
}
#endif

inline void stream(char* to, const char* from, std::size_t bytes) {
#if DECANT_X86
  const std::size_t lines = bytes / 64 * 64;
  if (decant::best_isa() == decant::Isa::avx512) stream_avx512(to, from, lines);
  else if (decant::best_isa() == decant::Isa::avx2) stream_avx2(to, from, lines);
  else return static_cast<void>(std::memcpy(to, from, bytes));
  std::memcpy(to + lines, from + lines, bytes - lines);
#else
  std::memcpy(to, from, bytes);
#endif
}

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

/// Two ways to copy, by memcpy and past the caches: which is faster depends on the size. `to` is aligned to 64 bytes; all
/// must outlive the measurement.
inline std::vector<std::pair<std::string, std::function<void()>>> copies(decant::Cpu& cpu, void* to, const void* from,
                                                                         std::size_t bytes) {
  const auto on_threads = [&cpu, to, from, bytes](auto* copy_part) {
    return [&cpu, to, from, bytes, copy_part] {
      constexpr std::size_t grain = 4096;
      auto part = [&](decant::index_t first, decant::index_t last, decant::index_t) {
        const std::size_t begin = static_cast<std::size_t>(first) * grain;
        const std::size_t end = std::min(static_cast<std::size_t>(last) * grain, bytes);
        copy_part(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
        benchmark::ClobberMemory();
      };
      cpu.parallel_ranges(static_cast<decant::index_t>((bytes + grain - 1) / grain), 1, part);
    };
  };
  constexpr auto plain = [](char* t, const char* f, std::size_t size) { std::memcpy(t, f, size); };
  return {{"memcpy", on_threads(+plain)}, {"nt_copy", on_threads(&detail::stream)}};
}

}  // namespace bench
