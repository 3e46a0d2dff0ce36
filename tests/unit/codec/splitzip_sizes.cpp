// How large SplitZip's payloads are: the closed form, exactly; what the distributions of the literature must give; and
// that no input grows by more than a header.
#include "catch_compat.hpp"
#include "unit/codec/splitzip_data.hpp"

namespace {

using namespace codec_test;
using decant::bf16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;

template <class T>
std::vector<std::uint64_t> counts_of(decant::Cpu& cpu, const std::vector<T>& x) {
  std::vector<std::uint64_t> counts(at(exponents<T>));
  histogram(cpu, SplitZip<T>{}, view(x), view(counts));
  return counts;
}

template <class T>
double ratio_of(const Bytes& payload, const std::vector<T>& x) {
  return static_cast<double>(x.size() * sizeof(T)) / static_cast<double>(payload.size());
}

/// The ratio without header, padding and directory.
template <class T>
double ratio_without_directory(const Bytes& payload, const std::vector<T>& x, index_t chunk) {
  const auto l = decant::codec::detail::splitzip_layout<T>(index_t(x.size()), chunk, payload[4]);
  const double bytes = static_cast<double>(index_t(payload.size()) - 64 - (l.side - l.directory));
  return static_cast<double>(x.size() * sizeof(T)) / bytes;
}

TEST_CASE("SplitZip: n elements take 12 + 24 eps + 16 / chunk bits each, with the super entries and the header") {
  Random random{1};
  decant::Cpu cpu;
  const index_t n = 1 << 18;  // no padding anywhere
  for (const index_t chunk : {64, 1024, 8192}) {
    const SplitZip<bf16> codec{.chunk = chunk};
    const std::vector<bf16> x = mostly_coded<bf16>(random, n, codec.book, 0.002);
    const std::vector<std::uint64_t> counts = counts_of(cpu, x);
    const double escapes = escape_rate(view(counts), codec.book) * double(n);
    const index_t chunks = n / chunk;
    const index_t super = (chunks / 64 + (chunks % 64 != 0)) * 8;
    const index_t fixed = 64 + n / 2 + n + (chunks * 2 + 63) / 64 * 64 + (super + 63) / 64 * 64;
    const Bytes payload = encoded(cpu, codec, x);
    CHECK(index_t(payload.size()) == fixed + 3 * index_t(std::lround(escapes)));
    const double bits = 8.0 * double(payload.size() - 64) / double(n);
    CHECK(bits == Approx(12 + 24 * escapes / double(n) + 17.0 / double(chunk)).margin(0.01));
    CHECK(estimated_bits<bf16>(view(counts), codec.book, chunk) == Approx(bits).margin(0.01));
  }
}

TEST_CASE("SplitZip: N(0, 1) in bf16: escapes, ratio, entropy") {
  Random random{2};
  decant::Cpu cpu;
  const std::vector<bf16> x = normals<bf16>(random, index_t{1} << 24);
  const std::vector<std::uint64_t> counts = counts_of(cpu, x);
  // The book that is there without calibration is the most frequent sixteen.
  CHECK(decant::codec::frequent_codebook<bf16>(view(counts), 4, false) == SplitZip<bf16>{}.book);
  // Within four standard errors, sqrt(eps / n) = 2.4e-6: a false alarm for 1 of 16,000 seeds.
  CHECK(escape_rate(view(counts), SplitZip<bf16>{}.book) == Approx(9.72e-5).margin(4 * 2.41e-6));
  CHECK(decant::codec::exponent_entropy(view(counts)) == Approx(2.545).margin(0.005));
  const Bytes payload = encoded(cpu, SplitZip<bf16>{}, x);
  CHECK(ratio_without_directory(payload, x, 1024) == Approx(1.3331).margin(0.0002));
  CHECK(ratio_of(payload, x) == Approx(16 / (12 + 24 * 9.72e-5 + 17.0 / 1024)).margin(0.0002));
  // Calibration knows that three bits are better here: 11.3 bits.
  const SplitZip<bf16> fitted = calibrate(cpu, SplitZip<bf16>{}, view(x));
  CHECK(fitted.book.code_bits == 3);
  CHECK(ratio_of(encoded(cpu, fitted, x), x) == Approx(1.416).margin(0.003));
}

TEST_CASE("SplitZip: the entropy of a Gaussian in bf16 does not depend on its scale") {
  Random random{3};
  decant::Cpu cpu;
  for (const double scale : {1.0, 1.3, 0.01, 700.0}) {
    // The estimate's standard error at this n is 0.003 bits: the interval is more than three of them around 2.545.
    const double entropy = decant::codec::exponent_entropy(view(counts_of(cpu, normals<bf16>(random, 1 << 18, scale))));
    CHECK((entropy >= 2.54 - 0.01 && entropy <= 2.55 + 0.01));
  }
}

TEST_CASE("SplitZip: channels scaled by exp(1.15 N(0, 1)), as KV caches are") {
  Random random{4};
  decant::Cpu cpu;
  // A scale of its own for each element: neighbours are of different channels, and the mixture is what the law says.
  std::vector<bf16> x(1 << 21);
  for (bf16& e : x) e = bf16(static_cast<float>(std::exp(1.15 * random.normal()) * random.normal()));
  const SplitZip<bf16> codec = calibrate(cpu, SplitZip<bf16>{}, view(x));
  CHECK(codec.book.code_bits == 4);
  CHECK(codec.book.contiguous());
  CHECK(ratio_without_directory(encoded(cpu, codec, x), x, codec.chunk) == Approx(1.3287).margin(0.002));
  CHECK(ratio_of(encoded(cpu, codec, x), x) == Approx(1.3269).margin(0.002));
  const std::vector<std::uint64_t> counts = counts_of(cpu, x);
  CHECK(decant::codec::exponent_entropy(view(counts)) == Approx(3.237).margin(0.02));
  CHECK(escape_rate(view(counts), decant::codec::frequent_codebook<bf16>(view(counts), 3, false)) ==
        Approx(0.0781).margin(0.003));

  const auto rounded = [&]<class T>(T, double scale) {
    std::vector<T> y;
    for (const bf16 e : x) y.push_back(T(static_cast<float>(scale * float(e))));
    return y;
  };
  // E5M2 with four bits: x1.136. (Three are chosen where they are estimated to be smaller.)
  const std::vector<fp8_e5m2> e5m2 = rounded(fp8_e5m2{}, 1);
  const std::vector<std::uint64_t> e5m2_counts = counts_of(cpu, e5m2);
  SplitZip<fp8_e5m2> four;
  four.book = decant::codec::frequent_codebook<fp8_e5m2>(view(e5m2_counts), 4, false);
  CHECK(ratio_without_directory(encoded(cpu, four, e5m2), e5m2, four.chunk) == Approx(1.136).margin(0.002));

  // E4M3 saves nothing at this scale, and calibration says so; at a quarter of it, x1.03.
  const std::vector<fp8_e4m3> wide = rounded(fp8_e4m3{}, 1);
  const SplitZip<fp8_e4m3> none = calibrate(cpu, SplitZip<fp8_e4m3>{}, view(wide));
  CHECK(none.book == Codebook{});
  CHECK(encoded(cpu, none, wide).size() == 64 + wide.size());
  const std::vector<fp8_e4m3> narrow = rounded(fp8_e4m3{}, 0.25);
  const SplitZip<fp8_e4m3> three = calibrate(cpu, SplitZip<fp8_e4m3>{}, view(narrow));
  CHECK(three.book.code_bits == 3);
  const double narrow_ratio = ratio_of(encoded(cpu, three, narrow), narrow);
  CHECK((narrow_ratio > 1.02 && narrow_ratio < 1.04));
}

template <class T>
void never_grows(std::uint64_t seed) {
  Random random{seed};
  decant::Cpu cpu;
  for (const index_t chunk : {64, 1024, 8192}) {
    for (const index_t n : {index_t{0}, index_t{1}, index_t{100}, index_t{50000}, index_t{200001}}) {
      for (const double escapes : {0.17, 1.0}) {
        const SplitZip<T> codec{.chunk = chunk};
        const std::vector<T> x = mostly_coded<T>(random, n, codec.book, escapes);
        const Bytes payload = encoded(cpu, codec, x);
        CHECK(payload.size() <= 64 + x.size() * sizeof(T));
        CHECK(same_bits(decoded(cpu, codec, payload, n), x));
      }
    }
  }
}

TEST_CASE("SplitZip: adversarial elements grow by the header alone") {
  never_grows<bf16>(5);
  never_grows<fp8_e5m2>(6);
  never_grows<fp8_e4m3>(7);
}

}  // namespace
