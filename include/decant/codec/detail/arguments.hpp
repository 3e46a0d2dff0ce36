// decant: what every codec demands of the views that it is given, on every context.
#ifndef DECANT_CODEC_DETAIL_ARGUMENTS_HPP
#define DECANT_CODEC_DETAIL_ARGUMENTS_HPP

#include <cstddef>

#include "../../core/view.hpp"

namespace decant::codec::detail {

/// Of encode: contiguous elements, and `room` contiguous bytes for them.
template <class T>
void require_encode(const View<const T, 1>& x, const View<std::byte, 1>& out, index_t room) {
  constexpr const char* where = "codec::encode";
  require_contiguous(x, where, "x");
  require_contiguous(out, where, "out");
  require(
      out.extent(0) >= room, where, "out", [&] { return "at least " + std::to_string(room) + " bytes"; },
      out.extent(0));
}

/// Of decode and its like: contiguous bytes, and contiguous elements to write.
template <class T>
void require_decode(const char* where, const View<const std::byte, 1>& in, const View<T, 1>& y) {
  require_contiguous(in, where, "in");
  require_contiguous(y, where, "y");
}

}  // namespace decant::codec::detail

#endif
