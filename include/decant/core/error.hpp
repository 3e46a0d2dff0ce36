// decant: errors. Every error names the function, the argument, what was expected and what was got, and is raised
// before any output is written. Arguments raise ArgumentError, bytes from outside raise FormatError.
// DECANT_THROW(exception) may be defined by the user; without exceptions the default prints the message and aborts.
#ifndef DECANT_CORE_ERROR_HPP
#define DECANT_CORE_ERROR_HPP

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "../config.hpp"

#ifndef DECANT_THROW
#if DECANT_HAS_EXCEPTIONS
#define DECANT_THROW(exception) throw exception
#else
#define DECANT_THROW(exception) ::decant::detail::abort_with((exception).what())
#endif
#endif

namespace decant {

/// Sizes, counts, offsets and strides everywhere in decant; products of sizes are formed in this type.
using index_t = std::int64_t;

/// The base of everything decant throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A call was given something it cannot work with: a shape, a stride, a parameter.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// Bytes that came from a file, a socket or a page table are not what their format says.
class FormatError : public Error {
 public:
  using Error::Error;
};

/// A workspace over fixed caller memory is too small for the call.
class WorkspaceError : public Error {
 public:
  using Error::Error;
};

namespace detail {

[[noreturn]] inline void abort_with(const char* message) {
  std::fprintf(stderr, "%s\n", message);
  std::abort();
}

inline std::string to_text(const char* s) { return s; }
inline std::string to_text(const std::string& s) { return s; }
inline std::string to_text(bool b) { return b ? "true" : "false"; }
inline std::string to_text(double x) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.9g", x);
  return buffer;
}
inline std::string to_text(float x) { return to_text(static_cast<double>(x)); }
template <class Int>
  requires(sizeof(Int) > 1 || !__is_same(Int, bool)) && (!requires(const Int& x) { x(); })
std::string to_text(Int x) {
  return std::to_string(x);
}
/// Words that hold numbers are given as a function, so that hot calls do not build strings that nobody reads.
template <class Words>
  requires requires(const Words& words) { std::string(words()); }
std::string to_text(const Words& words) {
  return words();
}

inline std::string describe(const char* where, const char* argument, const std::string& expected,
                            const std::string& got) {
  return std::string("decant::") + where + ": argument `" + argument + "`: expected " + expected + ", got " + got;
}

template <class Expected, class Got>
[[noreturn]] DECANT_NOINLINE void fail_argument(const char* where, const char* argument, const Expected& expected,
                                                const Got& got) {
  DECANT_THROW(ArgumentError(describe(where, argument, to_text(expected), to_text(got))));
}

template <class Expected, class Got>
[[noreturn]] DECANT_NOINLINE void fail_format(const char* where, const char* what, const Expected& expected,
                                              const Got& got) {
  DECANT_THROW(FormatError(describe(where, what, to_text(expected), to_text(got))));
}

}  // namespace detail

/// Raises ArgumentError unless `ok`. `expected` and `got` are strings, numbers or functions that return a string, as in
/// [&] { return "at most " + std::to_string(n); }; they are only formatted on failure.
template <class Expected, class Got>
inline void require(bool ok, const char* where, const char* argument, const Expected& expected, const Got& got) {
  if (!ok) detail::fail_argument(where, argument, expected, got);
}

/// Raises ArgumentError unless got == expected.
inline void require_equal(index_t got, index_t expected, const char* where, const char* argument) {
  if (got != expected) detail::fail_argument(where, argument, expected, got);
}

}  // namespace decant

#endif
