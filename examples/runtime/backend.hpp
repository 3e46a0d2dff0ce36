// What Llama needs of the place where it runs, beside decant's own functions: memory that stays between calls, lists
// that the host makes, and the way back to the host. This is the processor's; backend.cuh has the GPU's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <decant/core/cpu.hpp>
#include <decant/kv/layer.hpp>

#include "ops.hpp"
#include "weights.hpp"

namespace runtime {

/// Types by context: Vector<T> of memory that functions on the context read, Rope, Kept.
template <class Ctx>
struct Backend;

template <>
struct Backend<decant::Cpu> {
  template <class T>
  using Vector = std::vector<T>;
  using Rope = RopeTable;
  using Kept = decant::kv::Kept;
};

/// A host list where functions on the context can read it, until the enclosing workspace scope ends or the list does.
inline View<const std::int32_t, 1> stage(decant::Cpu&, const std::vector<std::int32_t>& list) {
  return list;
}
inline View<std::int32_t, 1> stage(decant::Cpu&, std::vector<std::int32_t>& list) {
  return list;
}

/// Copies all elements of contiguous rows into a vector of the context's, or of the host's.
inline void store(decant::Cpu&, View<const float, 2> rows, std::vector<float>& to) {
  to.assign(rows.data(), rows.data() + rows.size());
}
inline void fetch(decant::Cpu& cpu, View<const float, 2> rows, std::vector<float>& to) {
  store(cpu, rows, to);
}

/// Row i becomes row which[i] of x, `which` ascending; returns these rows.
inline View<float, 2> keep_rows(decant::Cpu&, View<float, 2> x, const std::vector<std::int32_t>& which) {
  for (std::size_t i = 0; i < which.size(); ++i) {
    const auto to = static_cast<index_t>(i);
    if (which[i] != to)
      std::memcpy(&x(to, 0), &x(which[i], 0), static_cast<std::size_t>(x.extent(1)) * sizeof(float));
  }
  return x.slice(0, 0, static_cast<index_t>(which.size()));
}

/// Row i of x becomes row ids[i] of the embedding.
inline void embed(decant::Cpu& cpu, const Matrix& embedding, const std::vector<std::int32_t>& ids, View<float, 2> x) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::visit([&](const auto& plain) { dequantize_row(cpu, plain, ids[i], x[static_cast<index_t>(i)]); }, embedding);
  }
}

}  // namespace runtime
