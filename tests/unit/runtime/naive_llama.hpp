// The definition that the runtime is tested against: a Llama over all tokens at full depth, in double, where a function
// says which key a query sees in which layer. It knows nothing of caches.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "model_files.hpp"

namespace runtime_test {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

class NaiveLlama {
 public:
  /// seen(layer, query, key): whether the query sees the key, which is not after it.
  using Seen = std::function<bool(index_t, index_t, index_t)>;
  /// needed(layer, token): false where the token's state is of no consequence; it is NaN there.
  using Needed = std::function<bool(index_t, index_t)>;

  explicit NaiveLlama(const Shape& s) : s_(s) {
    for (NamedTensor& t : tensors_of(s)) tensors_[t.name] = t;
  }

  /// Logits of every token, [tokens][vocab].
  Rows logits(const std::vector<std::int32_t>& tokens, const Seen& seen, const Needed& needed) const {
    Rows x;
    for (const std::int32_t t : tokens) x.push_back(matrix_row("model.embed_tokens.weight", t));
    for (index_t l = 0; l < s_.layers; ++l) {
      for (std::size_t t = 0; t < x.size(); ++t) {
        if (!needed(l, static_cast<index_t>(t))) x[t].assign(x[t].size(), std::numeric_limits<double>::quiet_NaN());
      }
      layer(l, x, seen);
    }
    Rows out;
    for (const Row& row : x) {
      out.push_back(times(s_.tied ? "model.embed_tokens.weight" : "lm_head.weight", norm("model.norm.weight", row)));
    }
    return out;
  }
  Rows logits(const std::vector<std::int32_t>& tokens) const {
    return logits(
        tokens, [](index_t, index_t, index_t) { return true; }, [](index_t, index_t) { return true; });
  }

 private:
  void layer(index_t l, Rows& x, const Seen& seen) const {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    Rows q, k, v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const Row h = norm(p + "input_layernorm.weight", x[t]);
      q.push_back(rotated(times(p + "self_attn.q_proj.weight", h), t));
      k.push_back(rotated(times(p + "self_attn.k_proj.weight", h), t));
      v.push_back(times(p + "self_attn.v_proj.weight", h));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      Row attended;
      for (index_t head = 0; head < s_.heads; ++head) {
        const Row one = attend(l, q, k, v, t, head, seen);
        attended.insert(attended.end(), one.begin(), one.end());
      }
      add(x[t], times(p + "self_attn.o_proj.weight", attended));
    }
    for (Row& row : x) {
      const Row h = norm(p + "post_attention_layernorm.weight", row);
      Row gate = times(p + "mlp.gate_proj.weight", h);
      const Row up = times(p + "mlp.up_proj.weight", h);
      for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      add(row, times(p + "mlp.down_proj.weight", gate));
    }
  }

  Row attend(index_t l, const Rows& q, const Rows& k, const Rows& v, std::size_t t, index_t head,
             const Seen& seen) const {
    const index_t d = s_.head_dim;
    const index_t kv_head = head / (s_.heads / s_.kv_heads);
    Row out(static_cast<std::size_t>(d), 0.0);
    double total = 0;
    for (std::size_t j = 0; j <= t; ++j) {
      if (!seen(l, static_cast<index_t>(t), static_cast<index_t>(j))) continue;
      double dot = 0;
      for (index_t i = 0; i < d; ++i) dot += at(q[t], head * d + i) * at(k[j], kv_head * d + i);
      const double weight = std::exp(dot / std::sqrt(static_cast<double>(d)));
      total += weight;
      for (index_t i = 0; i < d; ++i) out[static_cast<std::size_t>(i)] += weight * at(v[j], kv_head * d + i);
    }
    for (double& o : out) o /= total;
    return out;
  }

  Row rotated(Row heads, std::size_t position) const {
    const index_t half = s_.head_dim / 2;
    for (std::size_t h = 0; h < heads.size(); h += static_cast<std::size_t>(s_.head_dim)) {
      for (index_t f = 0; f < half; ++f) {
        const double angle =
            static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(f) / static_cast<double>(half));
        double& a = heads[h + static_cast<std::size_t>(f)];
        double& b = heads[h + static_cast<std::size_t>(f + half)];
        const double x = a, y = b;
        a = x * std::cos(angle) - y * std::sin(angle);
        b = y * std::cos(angle) + x * std::sin(angle);
      }
    }
    return heads;
  }

  Row norm(const std::string& name, const Row& x) const {
    double square = 0;
    for (const double e : x) square += e * e;
    const double scale = 1 / std::sqrt(square / static_cast<double>(x.size()) + 1e-5);
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * scale * weight(name, static_cast<index_t>(i)));
    return y;
  }

  Row times(const std::string& name, const Row& x) const {
    Row y;
    for (index_t r = 0; r < tensors_.at(name).shape[0]; ++r) {
      double sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum += weight(name, r * static_cast<index_t>(x.size()) + static_cast<index_t>(i)) * x[i];
      }
      y.push_back(sum);
    }
    return y;
  }

  Row matrix_row(const std::string& name, index_t r) const {
    Row row;
    for (index_t i = 0; i < s_.hidden; ++i) row.push_back(weight(name, r * s_.hidden + i));
    return row;
  }

  double weight(const std::string& name, index_t i) const {
    return static_cast<double>(tensors_.at(name).values[static_cast<std::size_t>(i)]);
  }
  static double at(const Row& row, index_t i) { return row[static_cast<std::size_t>(i)]; }
  static void add(Row& x, const Row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Shape s_;
  std::map<std::string, NamedTensor> tensors_;
};

}  // namespace runtime_test
