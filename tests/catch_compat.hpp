#pragma once
// Catch2 for the tests, version 2 or 3 alike: tests include this file, never <catch2/...>.
// It also gives decant_skip(why): a test that cannot run here says so in a line that tests/run.sh repeats at its end.

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
using Catch::Approx;
namespace catch_compat {
inline auto contains(const char* text) { return Catch::Matchers::ContainsSubstring(text); }
}
#else
#include <catch2/catch.hpp>
namespace catch_compat {
inline auto contains(const char* text) { return Catch::Matchers::Contains(text); }
}
#endif

#include <cstdio>

inline void decant_skip(const char* why) { std::printf("SKIPPED: %s\n", why); }
