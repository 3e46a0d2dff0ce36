// decant: what became of one row of a batch that is sampled from.
#ifndef DECANT_SAMPLING_STATUS_HPP
#define DECANT_SAMPLING_STATUS_HPP

#include <cstdint>

namespace decant::sampling {

/// Anything but ok: nothing was written for that row, and other rows are not affected.
enum class RowStatus : std::int32_t {
  ok,
  bad_row,        ///< a NaN, +inf, or a number out of range among the values or the token history
  empty_support,  ///< nothing that could be drawn
};

constexpr const char* name(RowStatus status) {
  constexpr const char* names[] = {"ok", "bad_row", "empty_support"};
  return names[static_cast<int>(status)];
}

}  // namespace decant::sampling

#endif
