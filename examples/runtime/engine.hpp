// Engine: Llama<Stack, Cache> behind a virtual interface, for programs that choose policies and cache layout when they
// run. An engine with one fixed stack uses Llama itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <decant/core/cpu.hpp>

#include "any_policy.hpp"
#include "llama.hpp"

namespace runtime {

enum class CacheLayout { dense, paged, ragged };

/// How KV rows are stored.
struct CacheChoice {
  CacheLayout layout = CacheLayout::ragged;
  index_t page_size = 16;
  DType dtype = DType::f32;
};

/// From text: "dense", "paged", "paged:16" (page size) or "ragged", and "f32", "f16" or "bf16".
CacheChoice parse_cache(const std::string& layout, const std::string& dtype);

/// See Llama.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual View<const float, 2> prefill(const Tokens& prompt, index_t room, Logits which = Logits::last,
                                       Evict when = Evict::now) = 0;
  virtual View<const float, 2> decode(const Tokens& tokens, Logits which = Logits::last) = 0;
  virtual View<const float, 2> extend(const Tokens& tokens, const std::vector<std::int32_t>& parents,
                                      index_t layers, View<const float, 2> masks = {}) = 0;
  virtual View<const float, 2> finish() = 0;
  virtual void keep(const std::vector<std::int32_t>& path) = 0;
  virtual index_t draft_nodes() const = 0;
  virtual index_t draft_layers() const = 0;
  virtual void evict(const AnyEviction& policy, const kv::Budget& budget) = 0;
  virtual std::unique_ptr<Engine> copy() const = 0;
  virtual index_t kv_bytes() = 0;
};

/// `config` and `weights` must outlive the engine; `cpu` may be shared, one call at a time.
std::unique_ptr<Engine> make_engine(decant::Cpu& cpu, const Config& config, const Weights& weights,
                                    const AnyStack& stack, const CacheChoice& cache);

}  // namespace runtime
