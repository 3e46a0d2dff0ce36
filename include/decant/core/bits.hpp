// decant: bit_cast, as std::bit_cast, which device code may not call.
#ifndef DECANT_CORE_BITS_HPP
#define DECANT_CORE_BITS_HPP

#include "../config.hpp"

namespace decant {

/// The object of type To with the bytes of `value`; both trivially copyable and of one size.
template <class To, class From>
DECANT_HD constexpr To bit_cast(const From& value) {
  return __builtin_bit_cast(To, value);
}

}  // namespace decant

#endif
