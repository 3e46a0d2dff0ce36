// What drafters compute on CUDA, bit for bit as on the CPU: PARD-2's inputs, the likeliest tokens of rows and
// what SpecBlock's rank head is given of them, PAD-Rec's gates.
#include "decant/speculative/block_drafter.cuh"
#include "decant/speculative/parallel_mask.cuh"
#include "decant/speculative/position_gate.cuh"
#include "decant/speculative/top_logits.cuh"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "catch_compat.hpp"
#include "decant/core/random.hpp"
#include "device_memory.cuh"
#include "graph.cuh"

namespace {

using namespace decant;
using namespace decant::speculative;
using cuda_test::DeviceBuffer;
using cuda_test::Graph;
using cuda_test::Stream;
using Ints = std::vector<std::int32_t>;

std::vector<float> numbers(index_t n, std::uint64_t seed) {
  std::vector<float> v;
  for (index_t i = 0; i < n; ++i) v.push_back(4 * Philox{seed}.uniform(static_cast<std::uint32_t>(i)) - 2);
  return v;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
View<const T, 1> all(const DeviceBuffer<T>& buffer) {
  return View<const T, 1>(buffer.data(), buffer.size());
}

/// The device's rows, and the CPU's.
template <class T>
void expect_top(Cuda& cuda, const std::vector<T>& logits, index_t rows, index_t n, index_t stride, index_t k) {
  Cpu cpu;
  const auto places = static_cast<std::size_t>(rows * k);
  std::vector<float> value(places);
  Ints token(places), count(static_cast<std::size_t>(rows));
  std::vector<double> log_sum(count.size());
  top_logits(cpu, View<const T, 2>(logits.data(), {rows, n}, {stride, 1}),
             {View<float, 2>(value.data(), rows, k), View<std::int32_t, 2>(token.data(), rows, k),
              View<std::int32_t, 1>(count), View<double, 1>(log_sum)});
  const DeviceBuffer<T> x(logits);
  const DeviceBuffer<float> device_value(rows * k);
  const DeviceBuffer<std::int32_t> device_token(rows * k), device_count(rows);
  const DeviceBuffer<double> device_log_sum(rows);
  top_logits(cuda, View<const T, 2>(x.data(), {rows, n}, {stride, 1}),
             {device_value.view(rows, k), device_token.view(rows, k), device_count.view(rows),
              device_log_sum.view(rows)});
  cuda.check();
  INFO("n " << n << ", k " << k);
  CHECK(device_count.download() == count);
  CHECK(device_token.download() == token);
  CHECK(same_bits(device_value.download(), value));
  const std::vector<double> got = device_log_sum.download();
  for (std::size_t r = 0; r < got.size(); ++r) {
    if (!(got[r] == log_sum[r]) && !(std::isnan(got[r]) && std::isnan(log_sum[r]))) FAIL("log-sum-exp of row " << r);
  }
  if (k < rank_logits) return;
  std::vector<float> features(static_cast<std::size_t>(rows * rank_features));
  rank_head_features({View<float, 2>(value.data(), rows, k), {}, View<std::int32_t, 1>(count), {}},
                     View<float, 2>(features.data(), rows, rank_features));
  const DeviceBuffer<float> device_features(rows * rank_features);
  rank_head_features(cuda, {device_value.view(rows, k), {}, device_count.view(rows), {}},
                     device_features.view(rows, rank_features));
  cuda.check();
  const std::vector<float> made = device_features.download();
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!(made[i] == features[i]) && !(std::isnan(made[i]) && std::isnan(features[i]))) FAIL("feature " << i);
  }
}

TEST_CASE("top_logits on CUDA: tokens, ties and log-sum-exp of the CPU", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  for (const index_t n : {1, 65, 1023, 2048, 19000}) {
    const index_t stride = n + n % 3;
    std::vector<float> x = numbers(3 * stride, 3);
    for (index_t i = 0; i < n; ++i) {
      x[static_cast<std::size_t>(stride + i)] = std::floor(x[static_cast<std::size_t>(i)]);  // ties
      x[static_cast<std::size_t>(2 * stride + i)] = static_cast<float>(i) / 8;               // each enters
    }
    expect_top(cuda, x, 3, n, stride, n < 10 ? 1 : 10);
  }
  std::vector<bf16> narrow;
  for (const float v : numbers(3 * 5000, 4)) narrow.push_back(bf16(v));
  for (index_t i = 7; i < 5000; ++i) narrow[static_cast<std::size_t>(i)] = bf16(-INFINITY);  // too few for a rank head
  expect_top(cuda, narrow, 3, 5000, 5000, 32);
  // One number, a NaN, +inf twice, nothing.
  constexpr float inf = __builtin_huge_valf();
  std::vector<float> odd(4 * 3000, -inf);
  odd[70] = 1;
  odd[3000 + 5] = NAN;
  odd[3000 + 2900] = 2;
  odd[6000 + 3] = odd[6000 + 2000] = inf;
  odd[6000 + 1500] = 9;
  expect_top(cuda, odd, 4, 3000, 3000, 4);
}

TEST_CASE("embed_slots on CUDA: the CPU's rows, wide and narrow; wrong tokens are told", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  ParallelMaskOptions o;
  o.k = 4;
  o.mask_token = 6;
  const Ints tokens = {2, 0, 1, 5, 3, 3}, offsets = {0, 3, 4, 6};
  for (const index_t h : {80, 7}) {
    constexpr index_t vocab = 7, slots = 6 + 3 * 3;
    std::vector<bf16> table, features;
    for (const float v : numbers(vocab * h, 1)) table.push_back(bf16(v));
    for (const float v : numbers(6 * h, 2)) features.push_back(bf16(40 * v));
    std::vector<bf16> expected(static_cast<std::size_t>(slots * h));
    const DeviceBuffer<bf16> device_table(table), device_features(features);
    DeviceBuffer<bf16> out(slots * h);
    const DeviceBuffer<std::int32_t> device_tokens(tokens), device_offsets(offsets);
    const FreshTokens fresh{all(device_tokens), all(device_offsets)};
    for (const bool with : {true, false}) {
      const View<const bf16, 2> host_features(with ? features.data() : nullptr, 6, h);
      embed_slots(cpu, o, {View<const std::int32_t, 1>(tokens), View<const std::int32_t, 1>(offsets)},
                  View<const bf16, 2>(table.data(), vocab, h), host_features,
                  View<bf16, 2>(expected.data(), slots, h));
      const Graph graph(stream, [&] {
        embed_slots(cuda, o, fresh, device_table.view(vocab, h),
                    View<const bf16, 2>(with ? device_features.data() : nullptr, 6, h), out.view(slots, h));
      });
      graph.launch(stream);
      cuda.check();
      CHECK(same_bits(out.download(), expected));
    }
    // Fewer tokens than there is room for: rows behind them stay. A token without a row: told, and its row stays.
    const std::vector<bf16> filler(static_cast<std::size_t>(slots * h), bf16(9.0f));
    const auto run = [&](const Ints& t, const Ints& at) {
      out.upload(filler);
      const DeviceBuffer<std::int32_t> own(t), ends(at);
      embed_slots(cuda, o, {all(own), all(ends)}, device_table.view(vocab, h), {}, out.view(slots, h));
      cuda.check();
    };
    const auto row_is = [&](index_t r, bool filled) {
      return filled == (out.download()[static_cast<std::size_t>(r * h)].bits != bf16(9.0f).bits);
    };
    run({2, 0, 1, 5, 3, 3}, {0, 1, 2, 3});
    CHECK((row_is(11, true) && row_is(12, false) && row_is(14, false)));
    CHECK_THROWS_AS(run({2, 7, 1, 5, 3, 3}, {0, 3, 4, 6}), ArgumentError);
    CHECK((row_is(0, true) && row_is(1, false) && row_is(2, true)));
    CHECK_THROWS_AS(run(tokens, {0, 3, 3, 6}), ArgumentError);
    CHECK_THROWS_AS(run(tokens, {0, 3, 9, 6}), ArgumentError);
    CHECK_THROWS_AS(run(tokens, {-5, 3, 4, 6}), ArgumentError);
  }
  CHECK_THROWS_AS(embed_slots(cuda, o, {}, {}, {}, View<bf16, 2>()), ArgumentError);
}

TEST_CASE("position gates on CUDA: the CPU's rows; wrong slots and steps are told", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  constexpr index_t rows = 4;
  for (const index_t h : {33, 2500}) {
    const std::vector<float> item = numbers(6 * h, 1), step = numbers(3 * h, 2), w = numbers(h, 3),
                             embeddings = numbers(rows * h, 4), features = numbers(rows * h, 5),
                             z = numbers(rows * h, 6);
    const Ints slots = {6, 1, 3, 4}, steps = {1, 2, 3, 9};
    const PositionGate gate{View<const float, 2>(item.data(), 6, h), View<const float, 2>(step.data(), 3, h),
                            View<const float, 1>(w), .7f};
    std::vector<float> in(static_cast<std::size_t>(rows * 2 * h)), behind = z;
    gated_input(gate, slots, View<const float, 2>(embeddings.data(), rows, h),
                View<const float, 2>(features.data(), rows, h), View<float, 2>(in.data(), rows, 2 * h));
    gate_step(gate, steps, View<float, 2>(behind.data(), rows, h));
    const DeviceBuffer<float> device_item(item), device_step(step), device_w(w), e(embeddings), f(features),
        out(rows * 2 * h), device_z(z);
    const DeviceBuffer<std::int32_t> device_slots(slots), device_steps(steps), wrong(Ints{1, 0, 7, 2});
    const PositionGate on_device{device_item.view(6, h), device_step.view(3, h), all(device_w), .7f};
    const auto input = [&](const DeviceBuffer<std::int32_t>& s) {
      gated_input(cuda, on_device, all(s), e.view(rows, h), f.view(rows, h), out.view(rows, 2 * h));
    };
    const Graph graph(stream, [&] {
      input(device_slots);
      gate_step(cuda, on_device, all(device_steps), device_z.view(rows, h));
    });
    graph.launch(stream);
    cuda.check();
    CHECK(same_bits(out.download(), in));
    CHECK(same_bits(device_z.download(), behind));
    input(wrong);
    CHECK_THROWS_AS(cuda.check(), ArgumentError);
    gate_step(cuda, on_device, all(wrong), device_z.view(rows, h));
    CHECK_THROWS_AS(cuda.check(), ArgumentError);
    const std::vector<float> after = device_z.download();
    const auto second = static_cast<std::ptrdiff_t>(h);
    CHECK(std::equal(after.begin() + second, after.begin() + 2 * second, behind.begin() + second));
    CHECK_THROWS_AS(gate_step(cuda, on_device, all(device_steps), device_z.view(rows - 1, h)), ArgumentError);
  }
}

}  // namespace
