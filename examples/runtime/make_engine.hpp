// What the engine_*.cpp files share: they compile Llama for one cache layout each, so that a build can do them in
// parallel.
#pragma once

#include <memory>
#include <vector>

#include "engine.hpp"

namespace runtime::detail {

template <class Cache, class Ctx = decant::Cpu>
class LlamaEngine final : public Engine {
 public:
  LlamaEngine(Ctx& ctx, const Config& config, const Weights& weights, const AnyStack& stack,
              const CacheOptions& options)
      : llama_(ctx, config, weights, stack, options) {}

  View<const float, 2> prefill(const Tokens& prompt, index_t room, Logits which, Evict when) override {
    return llama_.prefill(prompt, room, which, when);
  }
  View<const float, 2> decode(const Tokens& tokens, Logits which) override { return llama_.decode(tokens, which); }
  View<const float, 2> extend(const Tokens& tokens, const std::vector<std::int32_t>& parents, index_t layers,
                              View<const float, 2> masks) override {
    return llama_.extend(tokens, parents, layers, masks);
  }
  View<const float, 2> finish() override { return llama_.finish(); }
  void keep(const std::vector<std::int32_t>& path) override { llama_.keep(path); }
  index_t draft_nodes() const override { return llama_.draft_nodes(); }
  index_t draft_layers() const override { return llama_.draft_layers(); }
  void evict(const AnyEviction& policy, const kv::Budget& budget) override { llama_.evict(policy, budget); }
  std::unique_ptr<Engine> copy() const override { return std::make_unique<LlamaEngine>(*this); }
  index_t kv_bytes() override { return llama_.kv_bytes(); }

 private:
  Llama<AnyStack, Cache, Ctx> llama_;
};

using EnginePointer = std::unique_ptr<Engine>;

template <template <class> class Cache>
EnginePointer make(decant::Cpu& cpu, const Config& config, const Weights& weights, const AnyStack& stack,
                   const CacheChoice& cache) {
  const CacheOptions options{cache.page_size};
  switch (cache.dtype) {
    case DType::f16:
      return std::make_unique<LlamaEngine<Cache<decant::fp16>>>(cpu, config, weights, stack, options);
    case DType::bf16:
      return std::make_unique<LlamaEngine<Cache<decant::bf16>>>(cpu, config, weights, stack, options);
    default:
      return std::make_unique<LlamaEngine<Cache<float>>>(cpu, config, weights, stack, options);
  }
}

EnginePointer make_dense(decant::Cpu&, const Config&, const Weights&, const AnyStack&, const CacheChoice&);
EnginePointer make_paged(decant::Cpu&, const Config&, const Weights&, const AnyStack&, const CacheChoice&);
EnginePointer make_ragged(decant::Cpu&, const Config&, const Weights&, const AnyStack&, const CacheChoice&);

}  // namespace runtime::detail
