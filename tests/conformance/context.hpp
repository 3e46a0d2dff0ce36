#pragma once
// What a conformance suite runs on: Cpu, or a stand-in for another context that takes host memory as Cpu does
// (tests/cuda/mirror.cuh).
#include <concepts>
#include <cstdint>

#include "decant/core/cpu.hpp"

namespace conformance {

/// Which context a Ctx stands for, and how much of the suites it runs.
template <class Ctx>
struct ContextTraits {
  using Engine = Ctx;
  static constexpr std::uint32_t draws = 200;         // random shapes
  static constexpr decant::index_t nesting_step = 1;  // between budgets
};

template <class Ctx>
inline constexpr bool is_cpu = std::same_as<Ctx, decant::Cpu>;

}  // namespace conformance
