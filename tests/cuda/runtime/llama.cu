// The example runtime through Cuda: the text of the shipped checkpoint is the same as through Cpu, without and with
// eviction and SPEED.
#include "backend.cuh"

#include <decant/attention/dense.cuh>
#include <decant/kv/capkv.cuh>
#include <decant/kv/eviction.cuh>
#include <decant/kv/full.cuh>
#include <decant/kv/snapkv.cuh>
#include <decant/stack.hpp>

#include <string>

#include "catch_compat.hpp"
#include "device_memory.cuh"
#include "llama.hpp"

namespace {

using namespace runtime;

struct Model {
  explicit Model(const std::string& folder)
      : config(read_config(folder + "/config.json")), checkpoint(folder), weights(config, checkpoint) {}
  Config config;
  Checkpoint checkpoint;
  Weights weights;
};

const Model& model() {
  static const Model shipped(DECANT_SOURCE_DIR "/examples/model");
  return shipped;
}

Token best(View<const float, 2> logits) {
  index_t token = 0;
  for (index_t i = 1; i < logits.extent(1); ++i) token = logits(0, i) > logits(0, token) ? i : token;
  return static_cast<Token>(token);
}

/// Greedy continuation, and the KV bytes at its end.
template <class L>
std::pair<Tokens, index_t> continuation(L& llama, const Tokens& prompt, index_t count) {
  Tokens tokens = {best(llama.prefill(prompt, count))};
  while (static_cast<index_t>(tokens.size()) < count) tokens.push_back(best(llama.decode({tokens.back()})));
  return {tokens, llama.kv_bytes()};
}

template <class Stack>
void check_same_text(const Stack& stack) {
  Tokens prompt = {0};
  for (const char c : std::string("It was a truth that nobody in the house would own")) prompt.push_back(c);
  decant::Cpu cpu;
  Llama<Stack, DenseCache<float>> on_cpu(cpu, model().config, model().weights, stack);
  const auto expected = continuation(on_cpu, prompt, 6);
  const cuda_test::Stream stream;
  decant::Cuda cuda(stream);
  const DeviceWeights weights(model().weights);
  Llama<Stack, DeviceDenseCache<float>, decant::Cuda> on_cuda(cuda, model().config, weights.weights(), stack);
  const auto got = continuation(on_cuda, prompt, 6);
  CHECK(got.first == expected.first);
  CHECK(got.second == expected.second);
}

TEST_CASE("greedy text of the full model is the CPU's") { check_same_text(decant::Stack{}); }

TEST_CASE("greedy text under SPEED and CapKV is the CPU's") {
  decant::Stack stack{decant::kv::Speed{.depth = 0.75f}, decant::kv::CapKV{}};
  stack.budget = decant::kv::Budget::keep(0.5);
  check_same_text(stack);
}

TEST_CASE("greedy text under SnapKV is the CPU's") {
  decant::Stack stack{decant::kv::FullVisibility{}, decant::kv::SnapKV{.window = 8}};
  stack.budget = decant::kv::Budget::keep(0.5);
  check_same_text(stack);
}

}  // namespace
