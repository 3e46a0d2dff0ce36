// decant: <immintrin.h>, without the warnings that g++ 12 raises inside it (its _mm512_undefined_ps reads itself): every
// kernel of ours includes it through here, so that users who build with -Wall see none.
#ifndef DECANT_CORE_DETAIL_INTRINSICS_HPP
#define DECANT_CORE_DETAIL_INTRINSICS_HPP

#include "../../config.hpp"

#if DECANT_X86
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#endif
