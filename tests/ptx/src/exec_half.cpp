// Arithmetic on f16 and bf16, alone and in pairs. Every operation is rounded once: what a double cannot hold exactly is
// rounded to odd first.

#include "float.hpp"

namespace ptx {
namespace {

constexpr std::uint32_t kFlush = 1u << 8, kSaturate = 1u << 9, kRelu = 1u << 10, kNan = 1u << 11, kXorSign = 1u << 12;

struct F16 {
  static constexpr const Format& format = kFormatF16;
  static float decode(std::uint16_t bits) { return f16_to_float(bits); }
  static std::uint16_t encode_float(float value) { return float_to_f16(value); }
};
struct BF16 {
  static constexpr const Format& format = kFormatBF16;
  static float decode(std::uint16_t bits) { return bf16_to_float(bits); }
  static std::uint16_t encode_float(float value) { return float_to_bf16(value); }
};

template <class H>
std::uint16_t flush_half(std::uint16_t bits) {
  const std::uint32_t exponent = H::format.infinity;
  return (bits & exponent) ? bits : static_cast<std::uint16_t>(bits & 0x8000);
}

template <bool kMaximum>
double min_max(double a, double b, bool nan_wins) {
  if (std::isnan(a)) return nan_wins ? a : b;
  if (std::isnan(b)) return nan_wins ? b : a;
  if (a == b) return std::signbit(a) == kMaximum ? b : a;
  return (a > b) == kMaximum ? a : b;
}

template <class H>
std::uint16_t compute(std::uint32_t option, std::uint16_t a_bits, std::uint16_t b_bits, std::uint16_t c_bits) {
  const auto operation = static_cast<FloatOperation>(option & 255);
  if (operation == FloatOperation::kNeg || operation == FloatOperation::kAbs) {
    if (option & kFlush) a_bits = flush_half<H>(a_bits);
    return static_cast<std::uint16_t>(operation == FloatOperation::kNeg ? a_bits ^ 0x8000 : a_bits & 0x7fff);
  }
  if (option & kFlush) {
    a_bits = flush_half<H>(a_bits);
    b_bits = flush_half<H>(b_bits);
    c_bits = flush_half<H>(c_bits);
  }
  const double a = H::decode(a_bits), b = H::decode(b_bits), c = H::decode(c_bits);
  double result = 0;
  switch (operation) {
    // Twice the mantissa and two bits more fit in a double, so a second rounding changes nothing.
    case FloatOperation::kAdd:
      result = a + b;
      break;
    case FloatOperation::kSub:
      result = a - b;
      break;
    case FloatOperation::kMul:
      result = a * b;
      break;
    case FloatOperation::kFma:
      result = exact_fma(a, b, c);
      break;
    case FloatOperation::kMin:
    case FloatOperation::kMax: {
      const bool maximum = operation == FloatOperation::kMax;
      const double x = (option & kXorSign) ? std::fabs(a) : a, y = (option & kXorSign) ? std::fabs(b) : b;
      result = maximum ? min_max<true>(x, y, option & kNan) : min_max<false>(x, y, option & kNan);
      if (option & kXorSign) result = std::copysign(result, std::signbit(a) != std::signbit(b) ? -1.0 : 1.0);
      break;
    }
    case FloatOperation::kExp2:
      result = std::exp2(a);
      break;
    case FloatOperation::kTanh:
      result = std::tanh(a);
      break;
    default:
      throw Error("an operation without half precision");
  }
  if (option & kSaturate) result = saturate(result);
  if ((option & kRelu) && result < 0) result = 0;
  if ((option & kRelu) && result == 0) result = 0;  // -0 too
  auto bits = static_cast<std::uint16_t>(encode(result, H::format, Rounding::kNearest));
  if (option & kFlush) bits = flush_half<H>(bits);
  return bits;
}

template <class H, int kValues>
Flow execute(Warp& warp, const Inst& inst, std::uint32_t mask) {
  using Word = std::conditional_t<kValues == 1, std::uint16_t, std::uint32_t>;
  Word* d = warp.lanes<Word>(inst.dst[0]);
  const auto input = [&](std::size_t k, int lane, int value) -> std::uint16_t {
    if (inst.src[k] == kNoReg) return 0;
    return static_cast<std::uint16_t>(warp.lanes<Word>(inst.src[k])[lane] >> (16 * value));
  };
  for_each_lane(mask, [&](int i) {
    std::uint32_t word = 0;
    for (int value = 0; value < kValues; ++value)
      word |= std::uint32_t{compute<H>(inst.option, input(0, i, value), input(1, i, value), input(2, i, value))}
              << (16 * value);
    d[i] = static_cast<Word>(word);
  });
  return Flow::kNext;
}

// ---- the common operations without modifiers, in single precision and vectorised. The product and the sum of two f16
// are rounded correctly that way (24 bits are at least twice 11 and two more); of bf16 so is everything that stays
// clear of single precision's own subnormal numbers, which bf16 shares: those few lanes are done again.

template <FloatOperation kOperation>
float compute_float(float a, float b) {
  if constexpr (kOperation == FloatOperation::kAdd) return a + b;
  if constexpr (kOperation == FloatOperation::kSub) return a - b;
  return a * b;
}

template <class H, int kValues, FloatOperation kOperation>
Flow execute_fast(Warp& warp, const Inst& inst, std::uint32_t mask) {
  if (mask != kFullMask) return execute<H, kValues>(warp, inst, mask);
  std::uint16_t* d = warp.lanes<std::uint16_t>(inst.dst[0]);
  const std::uint16_t* a = warp.lanes<std::uint16_t>(inst.src[0]);
  const std::uint16_t* b = warp.lanes<std::uint16_t>(inst.src[1]);
  std::uint16_t results[kValues * kLanes];
  int tiny = 0;
#ifndef __clang__
#pragma GCC ivdep
#endif
  for (int i = 0; i < kValues * kLanes; ++i) {
    const float result = compute_float<kOperation>(H::decode(a[i]), H::decode(b[i]));
    results[i] = H::encode_float(result);
    if constexpr (std::is_same_v<H, BF16>) tiny += std::fabs(result) < 0x1p-125f && result != 0;
    if constexpr (std::is_same_v<H, BF16> && kOperation == FloatOperation::kMul)
      tiny += result == 0 && H::decode(a[i]) != 0 && H::decode(b[i]) != 0;
  }
  if (tiny) return execute<H, kValues>(warp, inst, mask);
  std::copy(results, results + kValues * kLanes, d);
  return Flow::kNext;
}

template <class H, int kValues>
Execute choose(FloatOperation operation, bool plain) {
  if (plain && operation == FloatOperation::kAdd) return execute_fast<H, kValues, FloatOperation::kAdd>;
  if (plain && operation == FloatOperation::kSub) return execute_fast<H, kValues, FloatOperation::kSub>;
  if (plain && operation == FloatOperation::kMul) return execute_fast<H, kValues, FloatOperation::kMul>;
  return execute<H, kValues>;
}

// d = a op b (op c) in single precision where the sources named first are of half precision.
constexpr std::uint32_t kFromBF16 = 1u << 13;

Flow execute_mixed(Warp& warp, const Inst& inst, std::uint32_t mask) {
  const auto operation = static_cast<FloatOperation>(inst.option & 255);
  const auto half = [&](std::size_t k, int lane) {
    const std::uint16_t bits = warp.lanes<std::uint16_t>(inst.src[k])[lane];
    return (inst.option & kFromBF16) ? bf16_to_float(bits) : f16_to_float(bits);
  };
  float* d = warp.lanes<float>(inst.dst[0]);
  for_each_lane(mask, [&](int i) {
    float result = 0;
    if (operation == FloatOperation::kFma) {
      result = std::fma(half(0, i), half(1, i), warp.lanes<float>(inst.src[2])[i]);
    } else {
      const float b = warp.lanes<float>(inst.src[1])[i];
      result = operation == FloatOperation::kAdd ? half(0, i) + b : half(0, i) - b;
    }
    d[i] = (inst.option & kSaturate) ? saturate(result) : canonical(result);
  });
  return Flow::kNext;
}

}  // namespace

void lower_half(Lowering& lowering, Inst& inst, FloatOperation operation, std::size_t arity, Type type,
                const FloatModifiers& modifiers) {
  if (modifiers.rounding != Rounding::kNearest) lowering.fail("half precision rounds to nearest");
  if (operation == FloatOperation::kDiv || operation == FloatOperation::kRcp || operation == FloatOperation::kSqrt)
    lowering.fail("not for half precision");
  inst.option = static_cast<std::uint32_t>(operation) | (modifiers.flush ? kFlush : 0) |
                (modifiers.saturate ? kSaturate : 0) | (modifiers.relu ? kRelu : 0) | (modifiers.nan ? kNan : 0) |
                (modifiers.xorsign ? kXorSign : 0);
  const bool plain = inst.option == static_cast<std::uint32_t>(operation);
  switch (type) {
    case Type::kF16:
      inst.execute = choose<F16, 1>(operation, plain);
      break;
    case Type::kBF16:
      inst.execute = choose<BF16, 1>(operation, plain);
      break;
    case Type::kF16x2:
      inst.execute = choose<F16, 2>(operation, plain);
      break;
    default:
      inst.execute = choose<BF16, 2>(operation, plain);
      break;
  }
  same_width_operands(lowering, inst, arity, size_of(type));
}

void lower_mixed(Lowering& lowering, Inst& inst, FloatOperation operation, std::size_t arity,
                 const FloatModifiers& modifiers) {
  if (modifiers.rounding != Rounding::kNearest || modifiers.flush) lowering.fail("not supported with mixed types");
  if (operation != FloatOperation::kAdd && operation != FloatOperation::kSub && operation != FloatOperation::kFma)
    lowering.fail("not supported with mixed types");
  const Type type = lowering.take_type({Type::kF16, Type::kBF16});
  inst.option = static_cast<std::uint32_t>(operation) | (type == Type::kBF16 ? kFromBF16 : 0) |
                (modifiers.saturate ? kSaturate : 0);
  lowering.expect_operands(arity + 1);
  inst.dst[0] = lowering.destination(0, 4);
  inst.src[0] = lowering.source(1, 2);
  inst.src[1] = lowering.source(2, operation == FloatOperation::kFma ? 2 : 4);
  if (operation == FloatOperation::kFma) inst.src[2] = lowering.source(3, 4);
  inst.execute = execute_mixed;
}

}  // namespace ptx
