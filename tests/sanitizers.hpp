#pragma once
// Which sanitizer a test is compiled with. Exhaustive loops take larger steps under AddressSanitizer, where they run
// unoptimised.

#if defined(__SANITIZE_THREAD__)
#define DECANT_TESTS_SANITIZE_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DECANT_TESTS_SANITIZE_THREADS 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool under_asan = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool under_asan = true;
#else
inline constexpr bool under_asan = false;
#endif
#else
inline constexpr bool under_asan = false;
#endif
