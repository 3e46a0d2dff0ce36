// CUDA's mathematical functions, whose code nvcc takes from libdevice, against the host's in double precision. The
// bounds are those of the CUDA programming guide, in units of the last place.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <limits>

#include "check.cuh"

namespace {

constexpr int kCount = 512;

#define FUNCTIONS(X)                       \
  X(expf, std::exp, 2, -80, 80)            \
  X(exp2f, std::exp2, 2, -100, 100)        \
  X(expm1f, std::expm1, 1, -5, 5)          \
  X(logf, std::log, 1, 0.001, 1000)        \
  X(log2f, std::log2, 1, 0.001, 1000)      \
  X(log1pf, std::log1p, 1, -0.9, 100)      \
  X(sinf, std::sin, 2, -200000, 200000)    \
  X(cosf, std::cos, 2, -200000, 200000)    \
  X(tanf, std::tan, 4, -3, 3)              \
  X(tanhf, std::tanh, 2, -10, 10)          \
  X(atanf, std::atan, 2, -10, 10)          \
  X(erff, std::erf, 2, -4, 4)              \
  X(erfcf, std::erfc, 5, -4, 4)            \
  X(lgammaf, std::lgamma, 6, 0.1, 30)      \
  X(cbrtf, std::cbrt, 1, -1000, 1000)      \
  X(sqrtf, std::sqrt, 0.5, 0, 1000)        \
  X(rsqrtf, 1 / std::sqrt, 2, 0.001, 1000) \
  X(log, std::log, 1, 0.001, 1000)         \
  X(exp, std::exp, 1, -300, 300)           \
  X(sin, std::sin, 2, -200000, 200000)

#define KERNEL(name, host, ulp, low, high)               \
  template <class T>                                     \
  __global__ void run_##name(const T* in, T* out) {      \
    const int i = blockIdx.x * blockDim.x + threadIdx.x; \
    out[i] = name(in[i]);                                \
  }
FUNCTIONS(KERNEL)

__global__ void power(const float* a, const float* b, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = powf(a[i], b[i]);
}

template <class T, class Kernel, class Host>
void test(const char* name, Kernel kernel, Host host, double bound, double low, double high) {
  std::vector<T> in(kCount);
  for (int i = 0; i < kCount; ++i) in[i] = static_cast<T>(low + (high - low) * i / (kCount - 1));
  Device<T> d(in), out(kCount);
  kernel<<<kCount / 128, 128>>>(d.get(), out.get());
  const std::vector<T> got = out.values();
  double worst = 0;
  for (int i = 0; i < kCount; ++i) {
    const long double exact = host(static_cast<long double>(in[i]));
    const T rounded = static_cast<T>(exact);
    const T unit = std::nextafter(std::fabs(rounded), std::numeric_limits<T>::infinity()) - std::fabs(rounded);
    const double error = static_cast<double>(std::fabs(static_cast<long double>(got[i]) - exact) / unit);
    if (!(error <= worst) && !std::isnan(worst)) worst = error;  // a NaN stays, and fails the check below
  }
  // Half a unit more for the rounding of the exact value.
  if (!(worst <= bound + 0.5)) std::printf("%s: %.2f units of the last place, at most %.1f\n", name, worst, bound);
  CHECK(worst <= bound + 0.5);
}

__global__ void round_trips(const float* in, float* bf16, float* e4m3, float* e5m2, float* half) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  bf16[i] = __bfloat162float(__float2bfloat16(in[i]));
  e4m3[i] = static_cast<float>(__nv_fp8_e4m3(in[i]));
  e5m2[i] = static_cast<float>(__nv_fp8_e5m2(in[i]));
  half[i] = __half2float(__float2half(in[i]));
}

}  // namespace

int main() {
#define TEST(name, host, ulp, low, high)                                                  \
  if (sizeof(name(0.5f)) == 4 && #name[sizeof #name - 2] == 'f')                          \
    test<float>(                                                                          \
        #name, run_##name<float>, [](long double x) { return host(x); }, ulp, low, high); \
  else                                                                                    \
    test<double>(                                                                         \
        #name, run_##name<double>, [](long double x) { return host(x); }, ulp, low, high);
  FUNCTIONS(TEST)

  std::vector<float> a(kCount), b(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[i] = 0.01f + 0.05f * i;
    b[i] = -8 + i / 32.0f;
  }
  Device<float> da(a), db(b), out(kCount), second(kCount), third(kCount), fourth(kCount);
  power<<<kCount / 128, 128>>>(da.get(), db.get(), out.get());
  const auto got = out.values();
  for (int i = 0; i < kCount; ++i) CHECK(std::fabs(got[i] / std::pow(double(a[i]), double(b[i])) - 1) < 5e-7);

  // Conversions give the very bits that the toolkit's own host code does.
  for (int i = 0; i < kCount; ++i) a[i] = std::ldexp(static_cast<float>(i - 200) / 37, i % 40 - 20);
  a[0] = std::numeric_limits<float>::infinity();
  Device<float> dc(a);
  round_trips<<<kCount / 128, 128>>>(dc.get(), out.get(), second.get(), third.get(), fourth.get());
  const auto bf16 = out.values(), e4m3 = second.values(), e5m2 = third.values(), half = fourth.values();
  for (int i = 0; i < kCount; ++i) {
    CHECK(bf16[i] == __bfloat162float(__float2bfloat16(a[i])));
    CHECK(e4m3[i] == static_cast<float>(__nv_fp8_e4m3(a[i])));
    CHECK(e5m2[i] == static_cast<float>(__nv_fp8_e5m2(a[i])));
    CHECK(half[i] == __half2float(__float2half(a[i])));
  }
  return finish("libdevice");
}
