// Floating-point arithmetic and conversion: corner values derived by hand from the PTX ISA and IEEE 754.

#include "row.hpp"

using namespace ptx_test;

namespace {

constexpr Bits kTiny = 1;  // the smallest subnormal f32
constexpr Bits kMinNormal = 0x00800000;
constexpr Bits kMax32 = 0x7f7fffff;

}  // namespace

TEST_CASE("arithmetic on f32", "[ptx][float]") {
  check_all({
      {"add.f32 d, a, b", "32 32 32", {f32(1), 0x33800000}, f32(1)},  // 1 + 2^-24: a tie, to even
      {"add.rp.f32 d, a, b", "32 32 32", {f32(1), 0x33800000}, 0x3f800001},
      {"add.rz.f32 d, a, b", "32 32 32", {f32(-1), 0xb3800000}, f32(-1)},
      {"add.rm.f32 d, a, b", "32 32 32", {f32(-1), 0xb3800000}, 0xbf800001},
      {"add.rm.f32 d, a, b", "32 32 32", {f32(1), f32(-1)}, 0x80000000},  // exact zero, rounding down
      {"add.f32 d, a, b", "32 32 32", {kInf32, kMinusInf32}, kNan32},
      {"add.f32 d, a, b", "32 32 32", {0x7f800001, f32(1)}, kNan32},  // any NaN: the canonical one
      {"add.f32 d, a, b", "32 32 32", {kTiny, kTiny}, 2},
      {"add.ftz.f32 d, a, b", "32 32 32", {kTiny, kTiny}, 0},
      {"add.ftz.f32 d, a, b", "32 32 32", {0x80000001, 0x80000001}, 0x80000000},
      {"sub.ftz.f32 d, a, b", "32 32 32", {0x00800001, kMinNormal}, 0},  // the result is subnormal
      {"add.sat.f32 d, a, b", "32 32 32", {f32(3), f32(-1)}, f32(1)},
      {"add.sat.f32 d, a, b", "32 32 32", {kNan32, f32(1)}, 0},
      {"sub.sat.f32 d, a, b", "32 32 32", {f32(1), f32(3)}, 0},
      {"mul.f32 d, a, b", "32 32 32", {kMax32, f32(2)}, kInf32},
      {"mul.rz.f32 d, a, b", "32 32 32", {kMax32, f32(2)}, kMax32},
      {"mul.f32 d, a, b", "32 32 32", {kInf32, 0}, kNan32},
      // (1 + 2^-12)^2 - (1 + 2^-11) = 2^-24, which only a fused multiplication keeps.
      {"fma.rn.f32 d, a, b, c", "32 32 32 32", {0x3f800800, 0x3f800800, 0xbf801000}, 0x33800000},
      {"fma.rn.ftz.f32 d, a, b, c", "32 32 32 32", {kTiny, f32(1), kTiny}, 0},
      {"fma.rn.sat.f32 d, a, b, c", "32 32 32 32", {f32(2), f32(2), f32(0)}, f32(1)},
      {"fma.rp.f32 d, a, b, c", "32 32 32 32", {f32(1), f32(1), kTiny}, 0x3f800001},
      {"mad.rn.f32 d, a, b, c", "32 32 32 32", {f32(2), f32(3), f32(4)}, f32(10)},
      {"div.rn.f32 d, a, b", "32 32 32", {f32(1), f32(3)}, 0x3eaaaaab},
      {"div.rz.f32 d, a, b", "32 32 32", {f32(1), f32(3)}, 0x3eaaaaaa},
      {"div.rn.f32 d, a, b", "32 32 32", {f32(1), f32(-0.0f)}, kMinusInf32},
      {"div.full.f32 d, a, b", "32 32 32", {f32(6), f32(3)}, f32(2)},
      {"rcp.rn.f32 d, a", "32 32", {f32(3)}, 0x3eaaaaab},
      {"rcp.approx.ftz.f32 d, a", "32 32", {kTiny}, kInf32},
      {"sqrt.rn.f32 d, a", "32 32", {f32(2)}, 0x3fb504f3},
      {"sqrt.rp.f32 d, a", "32 32", {f32(2)}, 0x3fb504f4},
      {"sqrt.rn.f32 d, a", "32 32", {f32(-1)}, kNan32},
      {"sqrt.rn.f32 d, a", "32 32", {0x80000000}, 0x80000000},
      {"rsqrt.approx.f32 d, a", "32 32", {f32(4)}, f32(0.5)},
      {"rsqrt.approx.f32 d, a", "32 32", {0x80000000}, kMinusInf32},
      {"ex2.approx.f32 d, a", "32 32", {f32(3)}, f32(8)},
      {"ex2.approx.ftz.f32 d, a", "32 32", {kMinusInf32}, 0},
      {"lg2.approx.f32 d, a", "32 32", {f32(8)}, f32(3)},
      {"lg2.approx.f32 d, a", "32 32", {0}, kMinusInf32},
      {"lg2.approx.f32 d, a", "32 32", {f32(-1)}, kNan32},
      {"sin.approx.f32 d, a", "32 32", {f32(0)}, f32(0)},
      {"cos.approx.f32 d, a", "32 32", {f32(0)}, f32(1)},
      {"tanh.approx.f32 d, a", "32 32", {kInf32}, f32(1)},
      {"add.rn.f32x2 d, a, b", "64 64 64", {f32(1) | f32(2) << 32, f32(10) | f32(20) << 32}, f32(11) | f32(22) << 32},
      {"fma.rn.f32x2 d, a, b, c",
       "64 64 64 64",
       {f32(2) | f32(3) << 32, f32(4) | f32(5) << 32, f32(1) | f32(1) << 32},
       f32(9) | f32(16) << 32},
  });
}

TEST_CASE("minimum, maximum, sign and class of floats", "[ptx][float]") {
  check_all({
      {"min.f32 d, a, b", "32 32 32", {kNan32, f32(1)}, f32(1)},
      {"min.NaN.f32 d, a, b", "32 32 32", {kNan32, f32(1)}, kNan32},
      {"min.f32 d, a, b", "32 32 32", {0, 0x80000000}, 0x80000000},
      {"max.f32 d, a, b", "32 32 32", {0x80000000, 0}, 0},
      {"max.f32 d, a, b", "32 32 32", {kNan32, kNan32}, kNan32},
      {"min.ftz.f32 d, a, b", "32 32 32", {kTiny, f32(1)}, 0},
      {"max.xorsign.abs.f32 d, a, b", "32 32 32", {f32(-3), f32(2)}, f32(-3)},
      {"min.xorsign.abs.f32 d, a, b", "32 32 32", {f32(-3), f32(-2)}, f32(2)},
      {"max.f64 d, a, b", "64 64 64", {f64(-1), f64(2)}, f64(2)},
      {"neg.f32 d, a", "32 32", {f32(1)}, f32(-1)},
      {"neg.ftz.f32 d, a", "32 32", {kTiny}, 0x80000000},
      {"abs.f64 d, a", "64 64", {f64(-2)}, f64(2)},
      {"copysign.f32 d, a, b", "32 32 32", {f32(-1), f32(3)}, f32(-3)},
      {"testp.finite.f32 p, a", "1 32", {kInf32}, 0},
      {"testp.infinite.f32 p, a", "1 32", {kMinusInf32}, 1},
      {"testp.number.f32 p, a", "1 32", {kInf32}, 1},
      {"testp.notanumber.f64 p, a", "1 64", {0x7ff0000000000001}, 1},
      {"testp.normal.f32 p, a", "1 32", {kTiny}, 0},
      {"testp.subnormal.f32 p, a", "1 32", {kTiny}, 1},
  });
}

TEST_CASE("arithmetic on f64", "[ptx][float]") {
  check_all({
      {"add.f64 d, a, b", "64 64 64", {f64(1), f64(0x1p-53)}, f64(1)},
      {"add.rp.f64 d, a, b", "64 64 64", {f64(1), f64(0x1p-60)}, 0x3ff0000000000001},
      {"mul.f64 d, a, b", "64 64 64", {f64(3), f64(0.5)}, f64(1.5)},
      {"fma.rn.f64 d, a, b, c", "64 64 64 64", {f64(1 + 0x1p-30), f64(1 + 0x1p-30), f64(-1 - 0x1p-29)}, f64(0x1p-60)},
      {"div.rn.f64 d, a, b", "64 64 64", {f64(1), f64(3)}, 0x3fd5555555555555},
      {"rcp.rn.f64 d, a", "64 64", {f64(4)}, f64(0.25)},
      {"sqrt.rn.f64 d, a", "64 64", {f64(2)}, 0x3ff6a09e667f3bcd},
  });
}

TEST_CASE("arithmetic on f16 and bf16", "[ptx][half]") {
  check_all({
      {"add.f16 d, a, b", "16 16 16", {0x3c00, 0x1000}, 0x3c00},  // 1 + 2^-11: a tie, to even
      {"add.f16 d, a, b", "16 16 16", {0x3c01, 0x1000}, 0x3c02},  // 1 + 2^-10 + 2^-11: up to even
      {"add.f16 d, a, b", "16 16 16", {0x7bff, 0x7bff}, 0x7c00},
      {"add.sat.f16 d, a, b", "16 16 16", {0x4000, 0x4000}, 0x3c00},
      {"sub.f16 d, a, b", "16 16 16", {0x0401, 0x0400}, 0x0001},
      {"sub.ftz.f16 d, a, b", "16 16 16", {0x0401, 0x0400}, 0x0000},
      {"mul.f16 d, a, b", "16 16 16", {0x4200, 0x4000}, 0x4600},
      {"mul.f16 d, a, b", "16 16 16", {0x7c00, 0x0000}, 0x7fff},
      {"fma.rn.f16 d, a, b, c", "16 16 16 16", {0x3c01, 0x3c01, 0xbc02}, 0x0010},  // 2^-20
      {"fma.rn.relu.f16 d, a, b, c", "16 16 16 16", {0xbc00, 0x3c00, 0x0000}, 0x0000},
      {"min.f16 d, a, b", "16 16 16", {0x7fff, 0x3c00}, 0x3c00},
      {"max.NaN.f16 d, a, b", "16 16 16", {0x7e00, 0x3c00}, 0x7fff},
      {"neg.f16 d, a", "16 16", {0x3c00}, 0xbc00},
      {"abs.bf16 d, a", "16 16", {0xbf80}, 0x3f80},
      {"add.f16x2 d, a, b", "32 32 32", {0x3c004000, 0x3c003c00}, 0x40004200},
      {"fma.rn.f16x2 d, a, b, c", "32 32 32 32", {0x3c004000, 0x40004000, 0x3c000000}, 0x42004400},
      {"max.f16x2 d, a, b", "32 32 32", {0x3c00bc00, 0x40000000}, 0x40000000},
      {"ex2.approx.f16 d, a", "16 16", {0x4200}, 0x4800},
      {"tanh.approx.bf16 d, a", "16 16", {0x7f80}, 0x3f80},
      {"fma.rn.bf16 d, a, b, c", "16 16 16 16", {0x3f81, 0x3f81, 0xbf82}, 0x3880},  // 2^-14
      {"fma.rn.bf16x2 d, a, b, c", "32 32 32 32", {0x3f804000, 0x40004000, 0x3f800000}, 0x40404080},
      {"add.rn.bf16 d, a, b", "16 16 16", {0x3f80, 0x3b80}, 0x3f80},
      {"mul.rn.bf16x2 d, a, b", "32 32 32", {0x00800000, 0x3f000000}, 0x00400000},  // a subnormal bf16
      {"max.bf16x2 d, a, b", "32 32 32", {0x3f80bf80, 0x40000000}, 0x40000000},
      {"add.f32.bf16 d, a, b", "32 16 32", {0x3f80, f32(0.5)}, f32(1.5)},
      {"fma.rn.f32.f16 d, a, b, c", "32 16 16 32", {0x4000, 0x4200, f32(1)}, f32(7)},
  });
}

TEST_CASE("conversions between floats", "[ptx][convert]") {
  check_all({
      {"cvt.rn.f16.f32 d, a", "16 32", {f32(65519)}, 0x7bff},
      {"cvt.rn.f16.f32 d, a", "16 32", {f32(65520)}, 0x7c00},
      {"cvt.rz.f16.f32 d, a", "16 32", {f32(70000)}, 0x7bff},
      {"cvt.rm.f16.f32 d, a", "16 32", {f32(-70000)}, 0xfc00},
      {"cvt.rp.f16.f32 d, a", "16 32", {f32(0x1p-30f)}, 0x0001},
      {"cvt.rn.f16.f32 d, a", "16 32", {f32(0x1p-25f)}, 0x0000},
      {"cvt.rn.f16.f32 d, a", "16 32", {f32(0x1.8p-25f)}, 0x0001},
      {"cvt.rn.relu.f16.f32 d, a", "16 32", {f32(-2)}, 0x0000},
      {"cvt.f32.f16 d, a", "32 16", {0x0001}, f32(0x1p-24f)},
      {"cvt.f32.bf16 d, a", "32 16", {0xc000}, f32(-2)},
      {"cvt.rn.bf16.f32 d, a", "16 32", {0x3f808000}, 0x3f80},
      {"cvt.rn.bf16.f32 d, a", "16 32", {0x3f818000}, 0x3f82},
      {"cvt.rz.bf16.f32 d, a", "16 32", {0x3f81ffff}, 0x3f81},
      {"cvt.rn.bf16.f32 d, a", "16 32", {0x7f800001}, 0x7fff},
      {"cvt.rn.bf16x2.f32 d, a, b", "32 32 32", {f32(1), f32(-2)}, 0x3f80c000},
      {"cvt.rn.relu.bf16x2.f32 d, a, b", "32 32 32", {f32(1), f32(-2)}, 0x3f800000},
      {"cvt.rz.f16x2.f32 d, a, b", "32 32 32", {f32(1), f32(70000)}, 0x3c007bff},
      {"cvt.rna.tf32.f32 d, a", "32 32", {0x3f801000}, 0x3f802000},  // a tie, away from zero
      {"cvt.rn.tf32.f32 d, a", "32 32", {0x3f801000}, 0x3f800000},
      {"cvt.rn.satfinite.e4m3x2.f32 d, a, b", "16 32 32", {f32(1), f32(1000)}, 0x387e},
      {"cvt.rn.satfinite.e4m3x2.f32 d, a, b", "16 32 32", {kNan32, f32(-1000)}, 0x7ffe},
      {"cvt.rn.satfinite.e4m3x2.f32 d, a, b", "16 32 32", {f32(0x1p-9f), f32(0x1p-10f)}, 0x0100},
      {"cvt.rn.satfinite.e5m2x2.f32 d, a, b", "16 32 32", {f32(1), kInf32}, 0x3c7b},
      {"cvt.rn.satfinite.relu.e5m2x2.f32 d, a, b", "16 32 32", {f32(-1), f32(1.25)}, 0x003d},
      {"cvt.rn.f16x2.e4m3x2 d, a", "32 16", {0x387e}, 0x3c005f00},
      {"cvt.rn.f16x2.e5m2x2 d, a", "32 16", {0x3c7b}, 0x3c007b00},
      {"cvt.rn.satfinite.e4m3x2.f16x2 d, a", "16 32", {0x3c007bff}, 0x387e},
      {"cvt.f64.f32 d, a", "64 32", {f32(1.5)}, f64(1.5)},
      {"cvt.rn.f32.f64 d, a", "32 64", {f64(1 + 0x1p-24)}, f32(1)},
      {"cvt.rp.f32.f64 d, a", "32 64", {f64(1 + 0x1p-40)}, 0x3f800001},
      {"cvt.rz.f32.f64 d, a", "32 64", {f64(1e300)}, kMax32},
      {"cvt.rn.f32.f64 d, a", "32 64", {f64(1e300)}, kInf32},
      {"cvt.rn.ftz.f32.f64 d, a", "32 64", {f64(0x1p-140)}, 0},
      {"cvt.rni.f32.f32 d, a", "32 32", {f32(2.5)}, f32(2)},
      {"cvt.rmi.f32.f32 d, a", "32 32", {f32(-0.5)}, f32(-1)},
      {"cvt.rpi.f32.f32 d, a", "32 32", {f32(-0.5)}, 0x80000000},
      {"cvt.rzi.f64.f64 d, a", "64 64", {f64(-2.9)}, f64(-2)},
      {"cvt.sat.f32.f32 d, a", "32 32", {f32(-3)}, 0},
      {"cvt.rni.sat.f32.f32 d, a", "32 32", {f32(0.75)}, f32(1)},
      {"cvt.ftz.f32.f16 d, a", "32 16", {0x0001}, f32(0x1p-24f)},
  });
}

TEST_CASE("conversions from and to integers", "[ptx][convert]") {
  check_all({
      {"cvt.rzi.s32.f32 d, a", "32 32", {f32(-1.9f)}, u32(-1)},
      {"cvt.rni.s32.f32 d, a", "32 32", {f32(2.5)}, 2},
      {"cvt.rpi.s32.f32 d, a", "32 32", {f32(2.1f)}, 3},
      {"cvt.rmi.s32.f32 d, a", "32 32", {f32(-2.1f)}, u32(-3)},
      {"cvt.rzi.s32.f32 d, a", "32 32", {f32(3e9f)}, 0x7fffffff},
      {"cvt.rzi.s32.f32 d, a", "32 32", {f32(-3e9f)}, 0x80000000},
      {"cvt.rzi.u32.f32 d, a", "32 32", {f32(-1)}, 0},
      {"cvt.rzi.u32.f32 d, a", "32 32", {f32(5e9f)}, 0xffffffff},
      {"cvt.rzi.s32.f32 d, a", "32 32", {kNan32}, 0},
      {"cvt.rzi.s64.f32 d, a", "64 32", {kNan32}, u64(1) << 63},
      {"cvt.rzi.s32.f64 d, a", "32 64", {0x7ff8000000000000}, 0x80000000},
      {"cvt.rzi.u32.f64 d, a", "32 64", {0x7ff8000000000000}, 0x80000000},
      {"cvt.rzi.u64.f64 d, a", "64 64", {0x7ff8000000000000}, u64(1) << 63},
      {"cvt.rzi.s64.f32 d, a", "64 32", {f32(1e30f)}, 0x7fffffffffffffff},
      {"cvt.rzi.u64.f32 d, a", "64 32", {f32(1e30f)}, u64(-1)},
      {"cvt.rzi.ftz.u32.f32 d, a", "32 32", {1}, 0},
      {"cvt.rpi.ftz.u32.f32 d, a", "32 32", {1}, 0},
      {"cvt.rpi.u32.f32 d, a", "32 32", {1}, 1},
      {"cvt.rzi.s16.f32 d, a", "16 32", {f32(1e6f)}, 0x7fff},
      {"cvt.rzi.u8.f32 d, a", "16 32", {f32(300)}, 255},
      {"cvt.rzi.s8.f32 d, a", "32 32", {f32(-300)}, u32(-128)},
      {"cvt.rn.f32.s32 d, a", "32 32", {16777217}, f32(16777216)},
      {"cvt.rp.f32.s32 d, a", "32 32", {16777217}, f32(16777218)},
      {"cvt.rz.f32.u32 d, a", "32 32", {0xffffffff}, 0x4f7fffff},
      {"cvt.rn.f32.u32 d, a", "32 32", {0xffffffff}, 0x4f800000},
      {"cvt.rn.f32.u64 d, a", "32 64", {u64(-1)}, 0x5f800000},
      // 2^60 + 2^36 + 1 lies just above a tie that rounding twice, through f64, would take down.
      {"cvt.rn.f32.s64 d, a", "32 64", {(u64(1) << 60) + (u64(1) << 36) + 1}, 0x5d800001},
      {"cvt.rn.f64.s64 d, a", "64 64", {u64(-3)}, f64(-3)},
      {"cvt.rz.f64.u64 d, a", "64 64", {u64(-1)}, 0x43efffffffffffff},
      {"cvt.rn.f16.s32 d, a", "16 32", {2049}, 0x6800},
      {"cvt.rn.f16.u32 d, a", "16 32", {100000}, 0x7c00},
      {"cvt.rn.bf16.s32 d, a", "16 32", {257}, 0x4380},
      {"cvt.rzi.s32.f16 d, a", "32 16", {0xc500}, u32(-5)},
      {"cvt.s64.s32 d, a", "64 32", {u32(-1)}, u64(-1)},
      {"cvt.u64.u32 d, a", "64 32", {u32(-1)}, 0xffffffff},
      {"cvt.u32.u16 d, a", "32 16", {0xffff}, 0xffff},
      {"cvt.s32.s16 d, a", "32 16", {0xffff}, 0xffffffff},
      {"cvt.s32.s8 d, a", "32 32", {0x180}, u32(-128)},
      {"cvt.u16.u32 d, a", "16 32", {0x12345}, 0x2345},
      {"cvt.u8.u32 d, a", "32 32", {0x1ff}, 0xff},
      {"cvt.sat.s8.s32 d, a", "32 32", {1000}, 127},
      {"cvt.sat.u8.s32 d, a", "32 32", {u32(-5)}, 0},
      {"cvt.sat.s32.u32 d, a", "32 32", {0xffffffff}, 0x7fffffff},
      {"cvt.sat.u64.s64 d, a", "64 64", {u64(-5)}, 0},
      {"cvt.sat.s64.u64 d, a", "64 64", {u64(-5)}, 0x7fffffffffffffff},
      {"cvt.sat.u32.s64 d, a", "32 64", {u64(1) << 40}, 0xffffffff},
  });
}
