// decant: views and mdspans. A View converts from any mdspan with strides (std::mdspan, Kokkos::mdspan,
// cuda::std::mdspan) by itself, without this header; here is the way back to std::mdspan, where the library has it
// (C++23), and the check that both ways fit.
#ifndef DECANT_INTEROP_MDSPAN_HPP
#define DECANT_INTEROP_MDSPAN_HPP

#include <version>

#include "../core/view.hpp"

#if defined(__cpp_lib_mdspan)
#include <array>
#include <mdspan>
#include <utility>

namespace decant {

/// The same elements as a std::mdspan with layout_stride. ArgumentError when a stride is not positive, which mdspan
/// does not allow.
template <class T, int Rank>
auto to_mdspan(View<T, Rank> view) {
  using Extents = std::dextents<index_t, static_cast<std::size_t>(Rank)>;
  std::array<index_t, static_cast<std::size_t>(Rank)> extents{};
  std::array<index_t, static_cast<std::size_t>(Rank)> strides{};
  for (int r = 0; r < Rank; ++r) {
    require(view.stride(r) > 0, "to_mdspan", "view", "strides above 0", view.stride(r));
    extents[static_cast<std::size_t>(r)] = view.extent(r);
    strides[static_cast<std::size_t>(r)] = view.stride(r);
  }
  return std::mdspan<T, Extents, std::layout_stride>(view.data(),
                                                     std::layout_stride::mapping<Extents>(Extents(extents), strides));
}

static_assert(std::convertible_to<std::mdspan<float, std::dextents<int, 3>>, View<float, 3>>);
static_assert(std::convertible_to<std::mdspan<float, std::extents<int, 2, 4>, std::layout_left>, View<const float, 2>>);

}  // namespace decant
#endif

#endif
