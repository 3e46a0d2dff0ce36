// The second half of a transformer layer: norm, gated feed-forward network, residual sum.
#pragma once

#include <algorithm>

#include "backend.hpp"
#include "config.hpp"
#include "weights.hpp"

namespace runtime {

/// x [rows, hidden] += ffn(norm(x)), in blocks of rows, whose intermediate states stay in the second-level cache.
template <class Ctx>
void feed_forward(Ctx& ctx, const Config& c, const LayerWeights& w, View<float, 2> x) {
  constexpr index_t block = 64;
  const index_t total = x.extent(0), most = std::min(block, total);
  decant::Workspace& workspace = ctx.workspace();
  decant::Workspace::Scope scope(workspace);
  const auto normed = workspace.template take_view<float>(most, c.hidden);
  const auto gate = workspace.template take_view<float>(most, c.ffn);
  const auto up = workspace.template take_view<float>(most, c.ffn);
  for (index_t first = 0; first < total; first += block) {
    const index_t count = std::min(block, total - first);
    const auto rows = x.slice(0, first, count);
    const auto g = gate.slice(0, 0, count);
    const auto u = up.slice(0, 0, count);
    const auto h = normed.slice(0, 0, count);
    rms_norm(ctx, rows, w.ffn_norm, c.norm_eps, h);
    linear(ctx, w.gate, h, g);
    linear(ctx, w.up, h, u);
    swiglu(ctx, g, u);
    linear(ctx, w.down, g, h);
    add(ctx, rows, h);
  }
}

}  // namespace runtime
