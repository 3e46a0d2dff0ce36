// decant: View<T, Rank>, a pointer with extents and strides: how tensors that the caller owns come in. The element at
// (i, j, k) is data[i * stride(0) + j * stride(1) + k * stride(2)]; strides count elements and may be any number,
// so NHD and HND caches, slices and broadcasts (stride 0) are all the same type. Trivially copyable, host and device.
#ifndef DECANT_CORE_VIEW_HPP
#define DECANT_CORE_VIEW_HPP

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "error.hpp"

namespace decant {

namespace detail {

/// Anything with data() and size() over T: std::vector, std::array, std::span, Eigen vectors.
template <class S, class T>
concept ContiguousOf = requires(S& s) {
  { s.data() } -> std::convertible_to<T*>;
  { s.size() } -> std::convertible_to<index_t>;
} && !requires(S& s) { s.rank_tag; };

/// Anything mdspan-like of this rank with strides: std::mdspan, Kokkos::mdspan, cuda::std::mdspan.
template <class M, class T, int Rank>
concept MdspanOf = requires(const M& m) {
  { m.data_handle() } -> std::convertible_to<T*>;
  { m.extent(0) } -> std::convertible_to<index_t>;
  { m.stride(0) } -> std::convertible_to<index_t>;
  requires static_cast<int>(M::rank()) == Rank;
};

}  // namespace detail

/// A non-owning strided tensor of elements T with Rank dimensions.
template <class T, int Rank>
class View {
  static_assert(Rank >= 1 && Rank <= 8);

 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  static constexpr int rank = Rank;
  static constexpr bool rank_tag = true;

  /// Empty: null data, every extent 0.
  constexpr View() = default;

  /// Row-major over `data`: the last index is contiguous. View<float, 2>(p, rows, cols).
  template <std::convertible_to<index_t>... Extents>
    requires(sizeof...(Extents) == Rank)
  DECANT_HD constexpr View(T* data, Extents... extents) : data_(data), extents_{static_cast<index_t>(extents)...} {
    index_t stride = 1;
    for (int r = Rank - 1; r >= 0; --r) {
      strides_[r] = stride;
      stride *= extents_[r];
    }
  }

  /// Any layout: extents and strides in elements.
  DECANT_HD constexpr View(T* data, const index_t (&extents)[Rank], const index_t (&strides)[Rank]) : data_(data) {
    for (int r = 0; r < Rank; ++r) {
      extents_[r] = extents[r];
      strides_[r] = strides[r];
    }
  }

  /// View<T> converts to View<const T>.
  template <class U>
    requires(!std::same_as<U, T> && std::convertible_to<U (*)[], T (*)[]>)
  DECANT_HD constexpr View(const View<U, Rank>& other) : data_(other.data()) {
    for (int r = 0; r < Rank; ++r) {
      extents_[r] = other.extent(r);
      strides_[r] = other.stride(r);
    }
  }

  /// From a contiguous range (rank 1).
  template <class S>
    requires(Rank == 1 && detail::ContiguousOf<S, T>)
  constexpr View(S&& s) : View(s.data(), static_cast<index_t>(s.size())) {}

  /// From anything mdspan-like with strides.
  template <class M>
    requires detail::MdspanOf<M, T, Rank>
  constexpr View(const M& m) : data_(m.data_handle()) {
    for (int r = 0; r < Rank; ++r) {
      extents_[r] = static_cast<index_t>(m.extent(static_cast<std::size_t>(r)));
      strides_[r] = static_cast<index_t>(m.stride(static_cast<std::size_t>(r)));
    }
  }

  DECANT_HD constexpr T* data() const { return data_; }
  DECANT_HD constexpr index_t extent(int r) const { return extents_[r]; }
  DECANT_HD constexpr index_t stride(int r) const { return strides_[r]; }
  DECANT_HD constexpr bool empty() const { return size() == 0; }

  /// The number of elements.
  DECANT_HD constexpr index_t size() const {
    index_t n = 1;
    for (int r = 0; r < Rank; ++r) n *= extents_[r];
    return n;
  }

  /// True when the elements, if any, lie one after another in row-major order.
  DECANT_HD constexpr bool contiguous() const {
    if (empty()) return true;
    index_t stride = 1;
    for (int r = Rank - 1; r >= 0; --r) {
      if (extents_[r] != 1 && strides_[r] != stride) return false;
      stride *= extents_[r];
    }
    return true;
  }

  template <std::convertible_to<index_t>... Indices>
    requires(sizeof...(Indices) == Rank)
  DECANT_HD constexpr T& operator()(Indices... indices) const {
    const index_t at[Rank] = {static_cast<index_t>(indices)...};
    index_t offset = 0;
    for (int r = 0; r < Rank; ++r) offset += at[r] * strides_[r];
    return data_[offset];
  }

  /// The i-th slice along the first dimension: an element for rank 1, else a view of one rank less.
  DECANT_HD constexpr decltype(auto) operator[](index_t i) const {
    if constexpr (Rank == 1) {
      return static_cast<T&>(data_[i * strides_[0]]);
    } else {
      index_t extents[Rank - 1];
      index_t strides[Rank - 1];
      for (int r = 1; r < Rank; ++r) {
        extents[r - 1] = extents_[r];
        strides[r - 1] = strides_[r];
      }
      return View<T, Rank - 1>(data_ + i * strides_[0], extents, strides);
    }
  }

  /// Elements [first, first + count) of dimension r; the other dimensions whole.
  DECANT_HD constexpr View slice(int r, index_t first, index_t count) const {
    View v = *this;
    v.data_ += first * strides_[r];
    v.extents_[r] = count;
    return v;
  }

 private:
  T* data_ = nullptr;
  index_t extents_[Rank] = {};
  index_t strides_[Rank] = {};
};

template <class T, std::convertible_to<index_t>... Extents>
View(T*, Extents...) -> View<T, static_cast<int>(sizeof...(Extents))>;

/// Raises ArgumentError unless the elements of `v` lie one after another.
template <class T>
void require_contiguous(const View<T, 1>& v, const char* where, const char* argument) {
  require(v.contiguous(), where, argument,
          std::is_same_v<std::remove_cv_t<T>, std::byte> ? "contiguous bytes" : "contiguous elements", v.stride(0));
}

}  // namespace decant

#endif
