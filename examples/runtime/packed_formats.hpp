// What packed_matrix.cpp and recipes.cpp share: a PackedMatrix over a matrix in a given format.
#pragma once

#include <memory>

#include "packed_matrix.hpp"

namespace runtime {

/// `owner` keeps the bytes alive, or is null when the caller does. Compiled in packed_matrix.cpp, for every format
/// there.
template <class F>
PackedMatrix hold(const decant::quant::Packed<F>& matrix, std::shared_ptr<const void> owner);

}  // namespace runtime
