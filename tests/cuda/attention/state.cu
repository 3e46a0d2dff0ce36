// merge() of states on the device: the laws that are exact, and the CPU's numbers.

#include "catch_compat.hpp"
#include "cuda/device_memory.cuh"
#include "decant/attention/state.cuh"
#include "unit/attention/problem.hpp"

using namespace decant;
using attention::State;
using cuda_test::DeviceBuffer;

namespace attention_test {
namespace {

constexpr index_t queries = 5, heads = 3;

struct OwnedState {
  index_t dim;
  std::vector<float> o, lse;

  explicit OwnedState(index_t d) : dim(d), o(at(queries * heads * d), 0.0f), lse(at(queries * heads), -infinity) {}
  OwnedState(index_t d, unsigned seed) : dim(d), o(normal(queries * heads * d, seed)), lse(normal(15, seed + 100, 3)) {}
  State<float> view() {
    return {View<float, 3>(o.data(), queries, heads, dim), View<float, 2>(lse.data(), queries, heads)};
  }
  bool same_bits(const OwnedState& other) const {
    return std::memcmp(o.data(), other.o.data(), o.size() * 4) == 0 &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * 4) == 0;
  }
};

State<const float> constant(const State<float>& s) {
  return {s.o, s.lse};
}

struct DeviceState {
  index_t dim;
  DeviceBuffer<float> o, lse;

  explicit DeviceState(const OwnedState& s) : dim(s.dim), o(s.o), lse(s.lse) {}
  State<float> view() const { return {o.view(queries, heads, dim), lse.view(queries, heads)}; }
  OwnedState download() const {
    OwnedState s(dim);
    s.o = o.download();
    s.lse = lse.download();
    return s;
  }
};

/// Merged on the device into a state of its own, or into the part of that number.
OwnedState merged(const std::vector<OwnedState>& owned, int in_place = -1) {
  cuda_test::Stream stream;
  Cuda cuda(stream);
  std::vector<DeviceState> device;
  std::vector<State<const float>> parts;
  for (const OwnedState& s : owned) device.emplace_back(s);
  for (const DeviceState& s : device) parts.push_back(constant(s.view()));
  const DeviceState out(OwnedState(owned.empty() ? 4 : owned[0].dim, 77u));
  const DeviceState& to = in_place < 0 ? out : device[at(in_place)];
  merge(cuda, View<const State<const float>, 1>(parts), to.view());
  cuda.check();
  return to.download();
}

OwnedState on_cpu(std::vector<OwnedState> owned) {
  Cpu cpu;
  std::vector<State<const float>> parts;
  for (OwnedState& s : owned) parts.push_back(constant(s.view()));
  OwnedState out(owned[0].dim);
  merge(cpu, View<const State<const float>, 1>(parts), out.view());
  return out;
}

double distance(const OwnedState& a, const OwnedState& b) {
  return std::max(oracle::relative_error(doubles(a.o), doubles(b.o)),
                  oracle::relative_error(doubles(a.lse), doubles(b.lse)));
}

TEST_CASE("Cuda merge: identities and the order of two change no bit, NaN stays where it is") {
  for (const index_t dim : {17, 136}) {
    OwnedState a(dim, 1u), b(dim, 2u), empty(dim);
    a.o[3] = -0.0f;
    a.o[4] = 1e-42f;
    CHECK(merged({a, empty}).same_bits(a));
    CHECK(merged({empty, a}).same_bits(a));
    CHECK(merged({empty, empty}).same_bits(empty));
    CHECK(merged({a}).same_bits(a));
    for (float& x : empty.o) x = quiet_nan;
    CHECK(merged({a, empty}).same_bits(a));
    CHECK(merged({a, b}).same_bits(merged({b, a})));
    CHECK(distance(merged({a, b}), on_cpu({a, b})) < 2e-7);
    const OwnedState clean = merged({a, b});
    b.lse[4] = quiet_nan;
    const OwnedState dirty = merged({a, b});
    for (std::size_t i = 0; i < dirty.o.size(); ++i) {
      const bool hit = i / at(dim) == 4;
      CHECK((hit ? std::isnan(dirty.o[i]) : dirty.o[i] == clean.o[i]));
    }
    CHECK(std::isnan(dirty.lse[4]));
  }
}

TEST_CASE("Cuda merge: none, many, and in place") {
  CHECK(merged({}).same_bits(OwnedState(4)));
  std::vector<OwnedState> parts;
  for (unsigned i = 0; i < 70; ++i) parts.push_back(i % 9 == 4 ? OwnedState(12) : OwnedState(12, i));
  const OwnedState all = merged(parts);
  CHECK(distance(all, on_cpu(parts)) < 4e-7);
  for (const int place : {0, 35, 69}) CHECK(merged(parts, place).same_bits(all));
}

TEST_CASE("Cuda merge: shapes must agree") {
  cuda_test::Stream stream;
  Cuda cuda(stream);
  const DeviceState a(OwnedState(4, 1u)), b(OwnedState(8, 2u));
  CHECK_THROWS_AS(merge(cuda, constant(a.view()), constant(b.view()), a.view()), ArgumentError);
}

}  // namespace
}  // namespace attention_test
