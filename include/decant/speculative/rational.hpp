// decant: Rational, an exact fraction of 128-bit integers, for proofs by enumeration (exact.hpp). What does not fit is
// an error, never a wrong result.
#ifndef DECANT_SPECULATIVE_RATIONAL_HPP
#define DECANT_SPECULATIVE_RATIONAL_HPP

#include <compare>
#include <cstdint>
#include <string>

#include "../core/error.hpp"

namespace decant::speculative {

class Rational {
 public:
  static constexpr bool exact = true;

  constexpr Rational() = default;
  constexpr Rational(std::int64_t n) : n_(n) {}  // NOLINT: integers are rational
  Rational(std::int64_t n, std::int64_t d) : n_(d < 0 ? -Wide{n} : Wide{n}), d_(d < 0 ? -Wide{d} : Wide{d}) {
    require(d != 0, "speculative::Rational", "d", "a denominator other than 0", d);
    reduce();
  }

  /// "3", "-1/3"; ArgumentError for anything else, naming `argument`.
  static Rational parse(const std::string& text, const char* argument) {
    const std::size_t slash = text.find('/');
    const auto whole = [&](const std::string& digits) {
      bool good = !digits.empty() && digits.size() <= 18;
      for (std::size_t i = 0; i < digits.size(); ++i) {
        good = good && ((digits[i] >= '0' && digits[i] <= '9') || (i == 0 && digits[i] == '-' && digits.size() > 1));
      }
      require(good, "speculative::Rational::parse", argument, "fractions of integers, as 1/3",
              [&] { return "\"" + text + "\""; });
      return std::int64_t{std::stoll(digits)};
    };
    const std::int64_t n = whole(text.substr(0, slash));
    const std::int64_t d = slash == std::string::npos ? 1 : whole(text.substr(slash + 1));
    require(d > 0, "speculative::Rational::parse", argument, "denominators above 0", [&] { return "\"" + text + "\""; });
    return {n, d};
  }

  explicit operator double() const { return static_cast<double>(n_) / static_cast<double>(d_); }

  /// "3" or "1/3".
  std::string text() const { return d_ == 1 ? digits(n_) : digits(n_) + "/" + digits(d_); }

  friend Rational operator-(const Rational& a) { return raw(-a.n_, a.d_); }
  friend Rational operator+(const Rational& a, const Rational& b) {
    const Wide g = gcd(a.d_, b.d_);
    return reduced(sum(product(a.n_, b.d_ / g), product(b.n_, a.d_ / g)), product(a.d_ / g, b.d_));
  }
  friend Rational operator-(const Rational& a, const Rational& b) { return a + -b; }
  friend Rational operator*(const Rational& a, const Rational& b) {
    const Wide g = gcd(a.n_, b.d_);
    const Wide h = gcd(b.n_, a.d_);
    return raw(product(a.n_ / g, b.n_ / h), product(a.d_ / h, b.d_ / g));
  }
  friend Rational operator/(const Rational& a, const Rational& b) {
    require(b.n_ != 0, "speculative::Rational", "divisor", "a number other than 0", 0);
    return a * (b.n_ < 0 ? raw(-b.d_, -b.n_) : raw(b.d_, b.n_));
  }
  Rational& operator+=(const Rational& b) { return *this = *this + b; }
  Rational& operator*=(const Rational& b) { return *this = *this * b; }
  friend bool operator==(const Rational&, const Rational&) = default;
  friend std::strong_ordering operator<=>(const Rational& a, const Rational& b) {
    const Wide g = gcd(a.d_, b.d_);
    return product(a.n_, b.d_ / g) <=> product(b.n_, a.d_ / g);
  }

 private:
  __extension__ typedef __int128 Wide;  // nvcc takes __extension__ before a typedef alone

  static Rational raw(Wide n, Wide d) {
    Rational r;
    r.n_ = n;
    r.d_ = d;
    return r;
  }
  static Rational reduced(Wide n, Wide d) {
    Rational r = raw(n, d);
    r.reduce();
    return r;
  }
  void reduce() {
    const Wide g = gcd(n_, d_);
    n_ /= g;
    d_ /= g;
  }
  /// At least 1.
  static Wide gcd(Wide a, Wide b) {
    a = a < 0 ? -a : a;
    b = b < 0 ? -b : b;
    while (b != 0) {
      const Wide r = a % b;
      a = b;
      b = r;
    }
    return a == 0 ? 1 : a;
  }
  static Wide product(Wide a, Wide b) {
    Wide c = 0;
    require(!__builtin_mul_overflow(a, b, &c), "speculative::Rational", "value", "fractions of 128-bit integers",
            "a larger one: take fewer nodes or smaller denominators");
    return c;
  }
  static Wide sum(Wide a, Wide b) {
    Wide c = 0;
    require(!__builtin_add_overflow(a, b, &c), "speculative::Rational", "value", "fractions of 128-bit integers",
            "a larger one: take fewer nodes or smaller denominators");
    return c;
  }
  static std::string digits(Wide n) {
    if (n == 0) return "0";
    std::string s;
    for (Wide m = n < 0 ? -n : n; m != 0; m /= 10) s.insert(s.begin(), static_cast<char>('0' + static_cast<int>(m % 10)));
    return n < 0 ? "-" + s : s;
  }

  Wide n_ = 0;
  Wide d_ = 1;
};

}  // namespace decant::speculative

#endif
