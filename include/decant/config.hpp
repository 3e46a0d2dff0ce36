// decant: what the compiler is and can do. Macros only; no type's layout or members depend on any of them.
#ifndef DECANT_CONFIG_HPP
#define DECANT_CONFIG_HPP

#include "version.hpp"

// Marks a function that device code may call too. It vanishes in a plain C++ compiler.
#if defined(__CUDACC__)
#define DECANT_HD __host__ __device__
#else
#define DECANT_HD
#endif

// Before a DECANT_HD template whose arguments may have functions of the host alone, as long as it is only called there.
#if defined(__CUDACC__)
#define DECANT_HD_AS_ARGUMENTS _Pragma("nv_exec_check_disable")
#else
#define DECANT_HD_AS_ARGUMENTS
#endif

// Set where exceptions are available; DECANT_THROW may be defined by the user before the first include,
// as a macro taking the exception object, for builds with -fno-exceptions.
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define DECANT_HAS_EXCEPTIONS 1
#else
#define DECANT_HAS_EXCEPTIONS 0
#endif

#if defined(__GNUC__) || defined(__clang__)
#define DECANT_RESTRICT __restrict__
#define DECANT_INLINE inline __attribute__((always_inline))
#define DECANT_NOINLINE __attribute__((noinline))
#else
#define DECANT_RESTRICT
#define DECANT_INLINE inline
#define DECANT_NOINLINE
#endif

// Before loops over arrays of registers, which must be unrolled for the registers to be registers; g++ -O2 does so only
// when told.
#if defined(__clang__)
#define DECANT_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define DECANT_UNROLL _Pragma("GCC unroll 16")
#else
#define DECANT_UNROLL
#endif

// x86-64 kernels are compiled with per-function target attributes, so that plain -O2 suffices; elsewhere, in device
// passes, and with DECANT_NO_SIMD defined, the portable path is the only one.
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__)) && !defined(__CUDACC__) && !defined(DECANT_NO_SIMD)
#define DECANT_X86 1
#define DECANT_TARGET_AVX2 __attribute__((target("avx2,fma,f16c,bmi,bmi2")))
#define DECANT_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")))
#define DECANT_TARGET_VBMI \
  __attribute__((target("avx512vbmi,avx512vbmi2,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt")))
#else
#define DECANT_X86 0
#endif

#endif
