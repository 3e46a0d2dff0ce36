// Attention policies in Llama: which one computes prompts and which one decodes, and the layer that a policy with
// random numbers is told.
#include "llama.hpp"

#include <vector>

#include <decant/attention/santa.hpp>
#include <decant/stack.hpp>

#include "catch_compat.hpp"
#include "loaded_model.hpp"

namespace their_engine {

using decant::View;

/// Exact attention that notes the layer that it is told at every call. `prompts` says whether it computes prompts, too.
template <bool prompts>
struct Noting {
  std::vector<unsigned>* calls;
  std::uint32_t layer = 99;
  static constexpr double error_bound = decant::attention::Dense::error_bound;
  bool operator==(const Noting&) const = default;
};
template <bool prompts>
void validate(const Noting<prompts>&) {}
template <bool prompts, class Q, class C, class... Rest>
void attend(decant::Cpu& cpu, const Noting<prompts>& a, const Q& q, const C& cache, View<float, 3> out,
            const Rest&... rest) {
  a.calls->push_back(a.layer);
  attend(cpu, decant::attention::Dense{}, q, cache, out, rest...);
}
inline decant::attention::Dense for_prompts(const Noting<false>&) { return {}; }

}  // namespace their_engine

namespace runtime_test {
namespace {

using Cache = runtime::RaggedCache<float>;
using decant::attention::Santa;
using decant::attention::SantaScheme;
namespace kv = decant::kv;

template <bool prompts>
std::vector<unsigned> layers_noted(const Loaded& model) {
  std::vector<unsigned> calls;
  decant::Cpu cpu;
  const decant::Stack stack{kv::FullVisibility{}, kv::Full{}, their_engine::Noting<prompts>{&calls}};
  runtime::Llama<std::remove_const_t<decltype(stack)>, Cache> llama(cpu, model.config, model.weights, stack);
  llama.prefill(random_prompt(20), 3);
  llama.decode({7, 8});
  llama.decode({9});
  llama.prefill(random_prompt(20), 0);
  return calls;
}

TEST_CASE("llama: a policy decodes and is told the layer; prompts are its own or what for_prompts gives", "[llama]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  CHECK(layers_noted<false>(model) == std::vector<unsigned>{0, 1, 2, 3, 0, 1, 2, 3});
  CHECK(layers_noted<true>(model) ==
        std::vector<unsigned>{99, 99, 99, 99, 0, 1, 2, 3, 0, 1, 2, 3, 99, 99, 99, 99});
}

TEST_CASE("llama: Santa in a stack, all of its rows being the definition's", "[llama]") {
  const TemporaryFolder folder;
  const Shape shape;
  write_model(folder, shape);
  const Loaded model(folder);
  const runtime::Tokens tokens = random_prompt(40, shape.vocab);
  const Rows expected = NaiveLlama(shape).logits(tokens);
  const decant::Stack stack{kv::FullVisibility{}, kv::Full{},
                            Santa{.samples = 1 << 20, .scheme = SantaScheme::threshold_systematic}};
  const decant::Stack few{kv::FullVisibility{}, kv::Full{}, Santa{.samples = 2}};
  using Stack = std::remove_const_t<decltype(stack)>;
  using Llama = runtime::Llama<Stack, Cache>;
  decant::Cpu cpu;
  Llama every(cpu, model.config, model.weights, stack), sampled(cpu, model.config, model.weights, few);
  for (Llama* llama : {&every, &sampled}) {  // prompts are exact
    const auto logits = llama->prefill({tokens.begin(), tokens.begin() + 30}, 10, runtime::Logits::all);
    for (index_t t = 0; t < 30; ++t) CHECK(distance(logits[t], expected[static_cast<std::size_t>(t)]) < 2e-5);
  }
  auto logits = every.decode({tokens.begin() + 30, tokens.begin() + 36}, runtime::Logits::all);
  for (index_t t = 0; t < 6; ++t) CHECK(distance(logits[t], expected[static_cast<std::size_t>(30 + t)]) < 5e-5);
  CHECK(distance(every.decode({tokens[36]})[0], expected[36]) < 5e-5);
  CHECK(distance(sampled.decode({tokens[30]})[0], expected[30]) > 1e-3);
}

TEST_CASE("llama: a stack whose attention makes no sense is refused by name", "[llama]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const decant::Stack stack{kv::FullVisibility{}, kv::Full{}, Santa{.samples = -1}};
  decant::Cpu cpu;
  CHECK_THAT(error_of<decant::ArgumentError>([&] {
               runtime::Llama<std::remove_const_t<decltype(stack)>, Cache>(cpu, model.config, model.weights, stack);
             }),
             catch_compat::contains("attention::Santa: argument `samples`"));
}

}  // namespace
}  // namespace runtime_test
