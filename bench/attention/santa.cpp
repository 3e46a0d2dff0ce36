// attention::Santa at the decode step, one row of each kind per scheme and number of samples:
// - attend: its time against the bytes that it reads, against Dense (peer dense) and against exact top-k attention that
//   reads as many value rows (peer top_k: all scores, selection, gather, renormalised), in turns;
// - bytes: what it reads, different rows counted once; peer dense is then the bound of the gain, 2 / (1 + f) for a
//   fraction f of the value rows;
// - mse: its squared error over that of as many independent draws, (sum p |v|^2 - |o|^2) / S; peer predicted is what the
//   scheme's own formula says (1 where it is met), peer top_k the squared error of top-k at equal rows.
// Logits have a standard deviation of 2 and are similar within a group; values have means that change every 64 tokens,
// as neighbours' are alike.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "counting_cache.hpp"
#include "decant/attention/dense.hpp"
#include "decant/attention/santa.hpp"
#include "decant/attention/sparse_gather.hpp"
#include "decant/core/softmax.hpp"
#include "decant/core/topk.hpp"
#include "decant/interop/openmp.hpp"
#include "decant/kv/dense_kv.hpp"
#include "harness.hpp"

namespace {

using decant::bf16;
using decant::index_t;
using decant::View;
using decant::attention::Dense;
using decant::attention::Santa;
using decant::attention::SantaScheme;

constexpr index_t heads = 8, group = 4, query_heads = heads * group, dim = 128;
constexpr std::uint32_t error_draws = 32;

std::size_t size(index_t n) {
  return static_cast<std::size_t>(n);
}

struct Problem {
  index_t n;
  bench::Buffer<bf16> keys, values;
  bench::Buffer<float> q;
  std::vector<std::int32_t> length;

  explicit Problem(index_t n_)
      : n(n_),
        keys(size(heads * n * dim)),
        values(keys.size()),
        q(size(query_heads * dim)),
        length{static_cast<std::int32_t>(n)} {
    bench::fill(keys, 1);
    bench::fill(values, 2);
    bench::fill(q, 3);
    bench::Buffer<float> shared(size(heads * dim)), means(size(heads * (n / 64 + 1) * dim));
    bench::fill(shared, 4);
    bench::fill(means, 5);
    for (index_t h = 0; h < query_heads; ++h)
      for (index_t d = 0; d < dim; ++d) {
        float& x = q[size(h * dim + d)];
        x = 2 * (0.9f * shared[size(h / group * dim + d)] + std::sqrt(0.19f) * x);
      }
    for (index_t h = 0; h < heads; ++h)
      for (index_t t = 0; t < n; ++t)
        for (index_t d = 0; d < dim; ++d) {
          bf16& x = values[size((h * n + t) * dim + d)];
          x = bf16(static_cast<float>(x) + means[size((h * (n / 64 + 1) + t / 64) * dim + d)]);
        }
  }
  decant::kv::DenseKV<const bf16> cache() const {
    return {View<const bf16, 4>(keys.data(), 1, heads, n, dim), View<const bf16, 4>(values.data(), 1, heads, n, dim),
            View<const std::int32_t, 1>(length)};
  }
  View<const float, 3> queries() const { return {q.data(), 1, query_heads, dim}; }
};

struct Reads {
  index_t by_groups = 0;  // different rows of each KV head, all together
  index_t by_heads = 0;   // of each query head
};

Reads count_reads(const Problem& p, const Santa& a) {
  std::vector<char> seen(size(heads * p.n));
  Reads reads;
  decant::Cpu cpu;
  bench::Buffer<float> o(size(query_heads * dim));
  attend(cpu, a, p.queries(), bench::CountingCache{p.cache(), &seen, &reads.by_heads},
         View<float, 3>(o.data(), 1, query_heads, dim));
  for (const char s : seen) reads.by_groups += s;
  return reads;
}

double square(double x) {
  return x * x;
}

/// Root of the mean square error, over heads and draws, and relative to exact attention.
struct Error {
  double mse = 0;  // mean over heads of |o - exact|^2
  double relative = 0;
};

Error distance(const bench::Buffer<float>& o, const bench::Buffer<float>& exact) {
  double sum = 0, all = 0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    sum += square(static_cast<double>(o[i]) - static_cast<double>(exact[i]));
    all += square(static_cast<double>(exact[i]));
  }
  return {sum / static_cast<double>(query_heads), std::sqrt(sum / all)};
}

bench::Buffer<float> dense_output(const Problem& p) {
  decant::Cpu cpu;
  bench::Buffer<float> o(size(query_heads * dim));
  attend(cpu, Dense{}, p.queries(), p.cache(), View<float, 3>(o.data(), 1, query_heads, dim));
  return o;
}

Error error(const Problem& p, Santa a) {
  decant::Cpu cpu;
  const bench::Buffer<float> exact = dense_output(p);
  bench::Buffer<float> o(exact.size());
  Error mean;
  for (a.step = 0; a.step < error_draws; ++a.step) {
    attend(cpu, a, p.queries(), p.cache(), View<float, 3>(o.data(), 1, query_heads, dim));
    const Error e = distance(o, exact);
    mean.mse += e.mse / error_draws;
    mean.relative += square(e.relative) / error_draws;
  }
  mean.relative = std::sqrt(mean.relative);
  return mean;
}

/// Attention over the k keys of the largest logits of each query head, normalised over them.
class TopK {
 public:
  TopK(const Problem& p, index_t k) : p_(p), k_(k), logits_(size(group * p.n)), rows_(size(query_heads * k)) {
    for (index_t h = 0; h <= query_heads; ++h) indptr_.push_back(static_cast<std::int32_t>(h * k));
    weights_.resize(rows_.size());
  }

  void operator()(decant::Cpu& cpu, const View<float, 3>& out) {
    using namespace decant::attention::detail;
    const DenseKernels<bf16>& kernels = dense_kernels<bf16>(cpu.isa());
    std::vector<float> q(size(group * dim)), scores(size(group * dense_block)), of_list(size(k_));
    const bf16* keys[2][dense_block];
    for (index_t h = 0; h < heads; ++h) {
      std::copy_n(p_.q.data() + h * group * dim, group * dim, q.data());
      kernels.arrange(q.data(), dim, group, dim);
      const auto name_keys = [&](index_t first, const bf16** to) {
        for (index_t j = 0; j < dense_block; ++j) to[j] = p_.keys.data() + (h * p_.n + first + j) * dim;
      };
      name_keys(0, keys[0]);
      for (index_t t = 0, now = 0; t < p_.n; t += dense_block, now = 1 - now) {
        Ahead<bf16> later;
        if (t + dense_block < p_.n) {
          name_keys(t + dense_block, keys[1 - now]);
          later = {keys[1 - now], dense_block, dim * index_t{sizeof(bf16)}};
        }
        kernels.scores(q.data(), dim, group, keys[now], dense_block, dim, scores.data(), later);
        for (index_t g = 0; g < group; ++g)
          for (index_t j = 0; j < dense_block; ++j)
            logits_[size(g * p_.n + t + j)] = scores[size(g * dense_block + j)] / std::sqrt(float{dim});
      }
      for (index_t g = 0; g < group; ++g) {
        const float* const logits = logits_.data() + g * p_.n;
        std::int32_t* const list = rows_.data() + (h * group + g) * k_;
        decant::top_k(cpu, View<const float, 1>(logits, p_.n), k_, list);
        for (index_t i = 0; i < k_; ++i) of_list[size(i)] = logits[list[i]];
        decant::softmax(cpu.isa(), of_list.data(), k_, weights_.data() + (h * group + g) * k_);
      }
    }
    decant::attention::sparse_gather(
        cpu, p_.cache(),
        decant::attention::RowLists{View<const std::int32_t, 1>(indptr_), View<const std::int32_t, 1>(rows_),
                                    View<const float, 2>(weights_.data(), query_heads * k_, 1)},
        out);
  }

 private:
  const Problem& p_;
  index_t k_;
  std::vector<float> logits_, weights_;
  std::vector<std::int32_t> indptr_, rows_;
};

/// Probabilities of a query head's keys, in double precision.
std::vector<double> probabilities(const Problem& p, index_t head) {
  std::vector<double> x(size(p.n));
  const float* const q = p.q.data() + head * dim;
  for (index_t t = 0; t < p.n; ++t) {
    const bf16* const key = p.keys.data() + (head / group * p.n + t) * dim;
    for (index_t d = 0; d < dim; ++d)
      x[size(t)] += static_cast<double>(q[d]) * static_cast<double>(static_cast<float>(key[d]));
    x[size(t)] /= std::sqrt(double{dim});
  }
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& e : x) sum += e = std::exp(e - top);
  for (double& e : x) e /= sum;
  return x;
}

/// Mean square errors of the estimate of one head from S samples, by formula.
struct Formulas {
  double iid = 0, stratified = 0, systematic = 0;
};

Formulas formulas(const Problem& p, index_t head, index_t samples) {
  const std::vector<double> w = probabilities(p, head);
  const auto s = static_cast<double>(samples);
  const auto value = [&](index_t t, index_t d) {
    return static_cast<double>(static_cast<float>(p.values[size((head / group * p.n + t) * dim + d)]));
  };
  std::vector<double> o(size(dim)), squares(size(p.n)), ends(size(p.n));
  double running = 0, v2 = 0;
  for (index_t t = 0; t < p.n; ++t) {
    ends[size(t)] = running += w[size(t)];
    for (index_t d = 0; d < dim; ++d) {
      o[size(d)] += w[size(t)] * value(t, d);
      squares[size(t)] += square(value(t, d));
    }
    v2 += w[size(t)] * squares[size(t)];
  }
  const auto norm = [](const std::vector<double>& x) {
    return std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  };
  Formulas f;
  f.iid = (v2 - norm(o)) / s;

  // Each stratum by itself: the parts of keys that lie in it.
  std::vector<double> mean(size(dim));
  double from = 0;
  index_t t = 0;
  for (index_t stratum = 1; stratum <= samples; ++stratum) {
    std::fill(mean.begin(), mean.end(), 0.0);
    double inside = 0;
    for (const double end = static_cast<double>(stratum) / s; t < p.n; ++t) {
      const double to = std::min(ends[size(t)], end);
      for (index_t d = 0; d < dim; ++d) mean[size(d)] += s * (to - from) * value(t, d);
      inside += s * (to - from) * squares[size(t)];
      from = to;
      if (ends[size(t)] > end) break;
    }
    f.stratified += (inside - norm(mean)) / (s * s);
  }

  // As the shared offset grows from 0 to 1, the estimate changes where a threshold passes from a key to the next.
  std::vector<std::pair<double, index_t>> steps;
  std::vector<double> off(size(dim));
  for (index_t d = 0; d < dim; ++d) off[size(d)] = -o[size(d)];
  t = 0;
  for (index_t i = 0; i < samples; ++i) {
    while (t + 1 < p.n && ends[size(t)] <= static_cast<double>(i) / s) ++t;
    for (index_t d = 0; d < dim; ++d) off[size(d)] += value(t, d) / s;
  }
  for (t = 0; t + 1 < p.n; ++t) steps.emplace_back(s * ends[size(t)] - std::floor(s * ends[size(t)]), t);
  std::sort(steps.begin(), steps.end());
  double at = 0;
  for (const auto& [offset, key] : steps) {
    f.systematic += (offset - at) * norm(off);
    at = offset;
    for (index_t d = 0; d < dim; ++d) off[size(d)] += (value(key + 1, d) - value(key, d)) / s;
  }
  f.systematic += (1 - at) * norm(off);
  return f;
}

/// Means over all query heads.
Formulas formulas(const Problem& p, index_t samples) {
  Formulas mean;
  for (index_t h = 0; h < query_heads; ++h) {
    const Formulas f = formulas(p, h, samples);
    mean.iid += f.iid / query_heads;
    mean.stratified += f.stratified / query_heads;
    mean.systematic += f.systematic / query_heads;
  }
  return mean;
}

/// The last problem that was asked for: rows of one length share it.
const Problem& problem_of(index_t n) {
  static std::unique_ptr<Problem> last;
  if (!last || last->n != n) last = std::make_unique<Problem>(n);
  return *last;
}

double read_bytes(const Problem& p, const Santa& a) {
  return static_cast<double>((heads * p.n + count_reads(p, a).by_groups) * dim * index_t{sizeof(bf16)});
}

struct Case {
  index_t n;
  Santa santa;
  decant::Isa isa = decant::best_isa();
  int threads = 1;

  std::string shape() const {
    return bench::shape("n", n, "hkv", heads, "g", group, "d", dim, "dtype", "bf16", "scheme", name(santa.scheme), "s",
                        santa.samples, "coupled", santa.couple_group ? 1 : 0);
  }
};

void measure(const Case& c, bench::Row& row) {
  const Problem& p = problem_of(c.n);
  decant::Cpu cpu(c.threads > 1 ? decant::openmp(c.threads) : decant::ParallelFor{});
  cpu.set_isa(c.isa);
  bench::Buffer<float> o(size(query_heads * dim));
  const View<float, 3> out(o.data(), 1, query_heads, dim);
  const double bytes = read_bytes(p, c.santa);
  TopK top_k(p, count_reads(p, c.santa).by_heads / query_heads);
  bench::Measurement m{.ours = [&] { attend(cpu, c.santa, p.queries(), p.cache(), out); },
                       .limit = bench::stream_read(cpu, static_cast<std::size_t>(bytes)),
                       .peers = {{"dense", [&] { attend(cpu, Dense{}, p.queries(), p.cache(), out); }}},
                       .bytes = bytes,
                       .error = error(p, c.santa).relative};
  if (c.threads == 1) m.peers.emplace_back("top_k", [&] { top_k(cpu, out); });
  row.measure(m);
}

void count(const Case& c, bench::Row& row) {
  const Problem& p = problem_of(c.n);
  const auto dense = static_cast<double>(2 * heads * c.n * dim * index_t{sizeof(bf16)});
  row.figure({.metric = "bytes",
              .unit = "MB",
              .value = read_bytes(p, c.santa) * 1e-6,
              .peers = {{"dense", dense * 1e-6}},
              .higher_is_better = false});
}

void compare(const Case& c, bench::Row& row) {
  const Problem& p = problem_of(c.n);
  const Error ours = error(p, c.santa);
  const Formulas f = formulas(p, c.santa.samples);
  decant::Cpu cpu;
  bench::Buffer<float> o(size(query_heads * dim));
  TopK(p, count_reads(p, c.santa).by_heads / query_heads)(cpu, View<float, 3>(o.data(), 1, query_heads, dim));
  bench::Figure figure{.metric = "mse_over_iid",
                       .unit = "1",
                       .value = ours.mse / f.iid,
                       .peers = {{"top_k", distance(o, dense_output(p)).mse / f.iid}},
                       .higher_is_better = false,
                       .error = ours.relative};
  if (c.santa.scheme == SantaScheme::plain) figure.peers.emplace_back("predicted", 1.0);
  if (c.santa.scheme == SantaScheme::stratified) figure.peers.emplace_back("predicted", f.stratified / f.iid);
  if (c.santa.scheme == SantaScheme::systematic) figure.peers.emplace_back("predicted", f.systematic / f.iid);
  row.figure(figure);
}

void add(bench::Suite& suite, const Case& c) {
  const auto names = [&](const char* primitive) {
    return bench::Names{.primitive = primitive,
                        .policy = "Santa",
                        .shape = c.shape(),
                        .context = c.threads > 1 ? "openmp:" + std::to_string(c.threads) : "cpu",
                        .isa = decant::name(c.isa)};
  };
  suite.add(names("attend"), [c](bench::Row& row) { measure(c, row); });
  if (c.threads > 1 || c.isa != decant::best_isa()) return;  // those count the same
  suite.add(names("bytes"), [c](bench::Row& row) { count(c, row); });
  suite.add(names("mse"), [c](bench::Row& row) { compare(c, row); });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("attention", argc, argv);
  const int cores = omp_get_max_threads();
  for (const index_t n : suite.sizes({8192, 32768})) {
    for (const index_t part : {64, 16, 4})
      if (!suite.quick() || part == 16) add(suite, {.n = n, .santa = {.samples = n / part}});
    for (const decant::Isa isa : {decant::Isa::portable, decant::Isa::avx2})
      if (isa < decant::best_isa() && n == 8192) add(suite, {.n = n, .santa = {.samples = n / 16}, .isa = isa});
    if (suite.quick()) continue;
    add(suite, {.n = n, .santa = {.samples = n / 16, .couple_group = true}});
    for (const SantaScheme scheme : {SantaScheme::plain, SantaScheme::stratified, SantaScheme::flash, SantaScheme::prop,
                                     SantaScheme::prop_exact, SantaScheme::threshold_systematic})
      add(suite, {.n = n, .santa = {.samples = n / 16, .scheme = scheme}});
    if (cores > 1) add(suite, {.n = n, .santa = {.samples = n / 16}, .threads = cores});
  }
  return suite.run();
}
