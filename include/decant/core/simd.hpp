// decant: which instruction set a CPU kernel runs on. Chosen once, from what the processor reports; a context may be
// told to use less, which is how the tests force every path.
#ifndef DECANT_CORE_SIMD_HPP
#define DECANT_CORE_SIMD_HPP

#include "../config.hpp"

namespace decant {

/// The CPU paths, each including the ones before it. avx512 means F, BW, DQ and VL.
enum class Isa : unsigned char { portable, avx2, avx512 };

/// "portable", "avx2", "avx512", as in benchmark rows.
constexpr const char* name(Isa isa) {
  constexpr const char* names[] = {"portable", "avx2", "avx512"};
  return names[static_cast<int>(isa)];
}

/// The best path that this processor and operating system run.
inline Isa best_isa() {
#if DECANT_X86
  static const Isa isa = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::portable;
  }();
  return isa;
#else
  return Isa::portable;
#endif
}

/// Whether a path of Isa::avx512 may use VBMI and VBMI2, permutations of bytes, which the first such processors lack.
inline bool has_vbmi() {
#if DECANT_X86
  static const bool has = best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512vbmi") &&
                          __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("popcnt");
  return has;
#else
  return false;
#endif
}

}  // namespace decant

#endif
