// decant: prefix sums over integers in 64 bits: lengths to offsets. Exact, so the same for any number of threads.
#ifndef DECANT_CORE_SCAN_HPP
#define DECANT_CORE_SCAN_HPP

#include <concepts>
#include <type_traits>

#include "cpu.hpp"
#include "view.hpp"

namespace decant {

namespace detail {

/// out[i] = values[0] + ... + values[i - 1], plus values[i] when `inclusive`. Returns the sum of all n values.
template <class T>
index_t scan(Cpu& cpu, const View<T, 1>& values, index_t n, const View<index_t, 1>& out, bool inclusive) {
  constexpr index_t grain = 65536;
  Workspace::Scope scope(cpu.workspace());
  const index_t parts = cpu.parts(n, grain);
  index_t* const sums = cpu.workspace().take<index_t>(parts);
  if (parts > 1) {
    cpu.parallel_ranges(n, grain, [&](index_t first, index_t last, index_t part) {
      index_t sum = 0;
      for (index_t i = first; i < last; ++i) sum += static_cast<index_t>(values[i]);
      sums[part] = sum;
    });
  } else if (parts == 1) {
    sums[0] = 0;
  }
  index_t before = 0;
  for (index_t part = 0; part < parts; ++part) {
    const index_t sum = sums[part];
    sums[part] = before;
    before += sum;
  }
  cpu.parallel_ranges(n, grain, [&](index_t first, index_t last, index_t part) {
    index_t sum = sums[part];
    for (index_t i = first; i < last; ++i) {
      const auto value = static_cast<index_t>(values[i]);  // read first: out may be the same memory
      out[i] = inclusive ? sum + value : sum;
      sum += value;
    }
    sums[part] = sum;
  });
  return parts == 0 ? 0 : sums[parts - 1];
}

}  // namespace detail

/// out[i] = values[0] + ... + values[i - 1]; returns the sum of all. out has as many elements as values, or one more,
/// which then is the sum: the offsets of a CSR table. May be in place when T is index_t. O(n).
template <class T>
  requires std::integral<std::remove_cv_t<T>>
index_t exclusive_scan(Cpu& cpu, View<T, 1> values, View<index_t, 1> out) {
  const index_t n = values.extent(0);
  require(out.extent(0) == n || out.extent(0) == n + 1, "exclusive_scan", "out",
          [&] { return std::to_string(n) + " or one more element"; }, out.extent(0));
  const index_t sum = detail::scan(cpu, values, n, out, false);
  if (out.extent(0) == n + 1) out[n] = sum;
  return sum;
}

/// out[i] = values[0] + ... + values[i]; returns the sum of all. May be in place when T is index_t. O(n).
template <class T>
  requires std::integral<std::remove_cv_t<T>>
index_t inclusive_scan(Cpu& cpu, View<T, 1> values, View<index_t, 1> out) {
  require_equal(out.extent(0), values.extent(0), "inclusive_scan", "out");
  return detail::scan(cpu, values, values.extent(0), out, true);
}

}  // namespace decant

#endif
