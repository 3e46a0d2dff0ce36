// decant: Eigen matrices as views and views as Eigen maps, without copies. Needs Eigen 3.4 or newer.
#ifndef DECANT_INTEROP_EIGEN_HPP
#define DECANT_INTEROP_EIGEN_HPP

#include <Eigen/Core>
#include <type_traits>

#include "../core/view.hpp"

namespace decant {

namespace detail {
template <class M>
using eigen_element = std::remove_reference_t<decltype(*std::declval<M&>().data())>;
template <class M>
inline constexpr int eigen_rank = std::remove_const_t<M>::IsVectorAtCompileTime ? 1 : 2;
template <class T, class Matrix>
using map_target = std::conditional_t<std::is_const_v<T>, const Matrix, Matrix>;
}  // namespace detail

/// The elements of a matrix, map, block or Ref with memory of its own: View<T, 2> (rows, columns), or View<T, 1> for
/// what is a vector at compile time. A const argument gives a View<const T>. Temporaries are refused.
template <class M>
  requires std::is_base_of_v<Eigen::DenseBase<std::remove_const_t<M>>, std::remove_const_t<M>>
auto to_view(M& matrix) {
  using T = detail::eigen_element<M>;
  if constexpr (detail::eigen_rank<M> == 1) {
    return View<T, 1>(matrix.data(), {matrix.size()}, {matrix.innerStride()});
  } else {
    return View<T, 2>(matrix.data(), {matrix.rows(), matrix.cols()}, {matrix.rowStride(), matrix.colStride()});
  }
}

/// A view as a row-major Eigen map of any strides; ArgumentError when they are negative.
template <class T>
auto to_eigen(View<T, 2> view) {
  using Matrix = Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  for (int r = 0; r < 2; ++r) {
    require(view.stride(r) >= 0, "to_eigen", "view", "strides of at least 0", view.stride(r));
  }
  return Eigen::Map<detail::map_target<T, Matrix>, Eigen::Unaligned, Stride>(
      view.data(), view.extent(0), view.extent(1), Stride(view.stride(0), view.stride(1)));
}

/// A view as an Eigen column vector.
template <class T>
auto to_eigen(View<T, 1> view) {
  using Vector = Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, 1>;
  require(view.stride(0) >= 0, "to_eigen", "view", "strides of at least 0", view.stride(0));
  return Eigen::Map<detail::map_target<T, Vector>, Eigen::Unaligned, Eigen::InnerStride<>>(
      view.data(), view.extent(0), Eigen::InnerStride<>(view.stride(0)));
}

}  // namespace decant

#endif
