// decant: stores that go around the caches, for results that are too large to be found there afterwards: an ordinary
// store first reads the line that it is about to overwrite.
#ifndef DECANT_CODEC_DETAIL_SPLITZIP_STREAM_HPP
#define DECANT_CODEC_DETAIL_SPLITZIP_STREAM_HPP

#include <cstdint>

#include "../../core/error.hpp"
#include "../../core/simd.hpp"

#if DECANT_X86
#include <cpuid.h>

#include "../../core/detail/intrinsics.hpp"
#endif

namespace decant::codec::detail {

/// The bytes of the third-level cache, or 24 MiB where the processor does not report one.
inline index_t last_level_cache() {
#if DECANT_X86
  for (const unsigned leaf : {4u, 0x8000001du}) {  // Intel's, AMD's
    for (unsigned cache = 0; cache < 8; ++cache) {
      unsigned a = 0, b = 0, c = 0, d = 0;
      if (!__get_cpuid_count(leaf, cache, &a, &b, &c, &d) || (a & 31u) == 0) break;
      if ((a >> 5 & 7u) != 3) continue;
      return index_t{(b >> 22) + 1} * index_t{(b >> 12 & 0x3ffu) + 1} * index_t{(b & 0xfffu) + 1} * (index_t{c} + 1);
    }
  }
#endif
  return index_t{24} << 20;
}

/// Results of this many bytes are streamed.
inline index_t stream_from() {
  static const index_t bytes = last_level_cache() / 3;
  return bytes;
}

/// Whether p + bytes is at a line of the caches.
inline bool is_line(const void* p, index_t bytes = 0) {
  return (reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(bytes)) % 64 == 0;
}

/// Before another thread reads what was streamed.
inline void stream_fence() {
#if DECANT_X86
  _mm_sfence();
#endif
}

}  // namespace decant::codec::detail

#endif
