// One call of a primitive, and the bytes of global memory that it must move: read once, written once. floors.py runs it
// on the PTX interpreter and holds what the kernels did against that.
//   floors CASE     prints {"floor": BYTES}; without CASE, the names of the cases
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "decant/attention/cascade.cuh"
#include "decant/attention/dense.cuh"
#include "decant/attention/mla.cuh"
#include "decant/attention/santa.cuh"
#include "decant/attention/santa_scores.cuh"
#include "decant/attention/sparse_gather.cuh"
#include "decant/codec/splitzip.cuh"
#include "decant/kv/compact.cuh"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/keydiff.cuh"
#include "decant/kv/knorm.cuh"
#include "decant/kv/paged_kv.hpp"
#include "decant/kv/window_attention.cuh"
#include "decant/kv/write.cuh"
#include "decant/quant/ear.cuh"
#include "decant/quant/matmul.cuh"
#include "decant/quant/rtn.hpp"
#include "decant/speculative/parallel_mask.cuh"
#include "decant/speculative/top_logits.cuh"
#include "device_memory.cuh"

namespace {

using namespace cuda_test;
using decant::bf16;
using decant::View;
namespace kv = decant::kv;

constexpr index_t heads = 2, group = 4, dim = 128, n = 4096, window = 8, page_size = 16, pages = n / page_size;
constexpr index_t row_bytes = dim * 2;  // one key or one value

/// Elements for SplitZip, of which one in a thousand has an exponent without a code, and their payload's bytes.
constexpr index_t coded = 1 << 20, escapes = (coded + 999) / 1000;
constexpr index_t payload_bytes = 64 + coded * 3 / 2 + coded / 1024 * 2 + coded / 65536 * 8 + 3 * escapes;

std::vector<bf16> coded_elements() {
  std::vector<bf16> x(coded);
  for (index_t i = 0; i < coded; ++i) {
    const auto bits = static_cast<std::uint32_t>(i) * 2654435761u >> 8;
    const std::uint32_t exponent = i % 1000 == 0 ? 90 : 114 + bits % 16;
    x[static_cast<std::size_t>(i)] = bf16::from_bits(static_cast<std::uint16_t>(exponent << 7 | (bits >> 4 & 0x807fu)));
  }
  return x;
}

/// A packed matrix of 256 rows and 4096 columns.
using Packed = decant::quant::Packed<decant::quant::Codebook2x16<decant::fp16>>;
constexpr index_t packed_rows = 256, packed_cols = 4096, packed_row_bytes = packed_cols / 2 + packed_cols / 128 * 2;
constexpr index_t packed_bytes = 64 + packed_rows * packed_row_bytes;

std::vector<std::byte> packed_matrix() {
  std::vector<float> w(packed_rows * packed_cols);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i * 2654435761u % 1024) - 512;
  std::vector<std::byte> bytes(packed_bytes);
  decant::Cpu cpu;
  quantize(cpu, decant::quant::Rtn<Packed::Format>{}, View<const float, 2>(w.data(), packed_rows, packed_cols), {},
           decant::quant::Packed<Packed::Format, std::byte>({}, packed_rows, packed_cols, View<std::byte, 1>(bytes)));
  return bytes;
}

/// y = x w^T.
void multiply(decant::Cuda& cuda, index_t tokens) {
  const DeviceBuffer<std::byte> w(packed_matrix());
  const DeviceBuffer<float> x(std::vector<float>(tokens * packed_cols, 0.5f)), y(tokens * packed_rows);
  matmul(cuda, Packed({}, packed_rows, packed_cols, View<const std::byte, 1>(w.data(), packed_bytes)),
         View<const float, 2>(x.data(), tokens, packed_cols), y.view(tokens, packed_rows));
  cuda.check();
}

struct Problem {
  Stream stream;
  decant::Cuda cuda{stream};
  DeviceBuffer<bf16> keys{std::vector<bf16>(heads * n * dim, bf16(0.5f))};
  DeviceBuffer<bf16> values{std::vector<bf16>(heads * n * dim, bf16(0.25f))};
  DeviceBuffer<float> q{std::vector<float>(heads * group * window * dim, 0.125f)};
  DeviceBuffer<float> lse{std::vector<float>(heads * group * window, 9.0f)};
  DeviceBuffer<float> out{heads * group * dim};
  DeviceBuffer<float> scores{heads * n};
  DeviceBuffer<std::int32_t> length{std::vector<std::int32_t>{n}};

  kv::DenseKV<bf16> dense() const {
    return {keys.view(1, heads, n, dim), values.view(1, heads, n, dim), length.view(1)};
  }
  auto layer() const {
    kv::LayerView x{dense()};
    x.queries = View<const float, 3>(q.data(), heads * group, window, dim);
    x.lse = View<const float, 2>(lse.data(), heads * group, window);
    return x;
  }
  template <class S>
  void score(const S& s) {
    using kv::score;
    score(cuda, s, layer(), scores.view(heads, n));
  }
  template <class C, class A = decant::attention::Dense>
  void attend(const C& cache, const A& policy = {}) {
    decant::attention::attend(cuda, policy, View<const float, 3>(q.data(), 1, heads * group, dim), cache,
                              out.view(1, heads * group, dim));
  }
};

struct Case {
  const char* name;
  index_t floor;
  void (*run)(Problem&);
};

constexpr index_t kv_rows = heads * n * 2 * row_bytes;      // all keys and values
constexpr index_t key_rows = heads * n * row_bytes;         // all keys
constexpr index_t score_bytes = heads * n * 4;
constexpr index_t query_bytes = heads * group * dim * 4;    // of one token, in or out

/// Santa on keys that are all alike: every fourth key is drawn, by all query heads the same ones. An exponential goes
/// out and comes in twice, half a byte of sums and a 64th of a largest logit go out and come in, and so does each
/// head's sum of values over 1024 keys.
constexpr index_t drawn = n / 4, listed = 2048;
constexpr index_t santa_bytes = key_rows + heads * drawn * row_bytes +
                                heads * group * (n * 4 * 3 + n / 2 * 2 + n / 64 * 4 * 2 + n / 1024 * dim * 4 * 2) +
                                2 * query_bytes;

constexpr index_t mla_heads = 16, mla_tokens = 1024, nope = 128, rope = 64, latent = 512;  // MLA

const Case cases[] = {
    {"attend, dense, bf16", kv_rows + 2 * query_bytes, [](Problem& p) { p.attend(p.dense()); }},
    {"attend, paged, bf16", kv_rows + 2 * query_bytes + heads * pages * 4,
     [](Problem& p) {
       std::vector<std::int32_t> table;
       for (index_t i = 0; i < pages; ++i) table.push_back(static_cast<std::int32_t>(pages - 1 - i));
       const DeviceBuffer<std::int32_t> indices(table), indptr(std::vector<std::int32_t>{0, pages}),
           last(std::vector<std::int32_t>{page_size});
       p.attend(kv::PagedKV<bf16>{p.keys.view(pages, heads, page_size, dim), p.values.view(pages, heads, page_size, dim),
                                  indptr.view(2), indices.view(pages), last.view(1)});
     }},
    // 16 requests that share all but the last 64 tokens of theirs: rows once, and o and lse of 32 states, out and in.
    {"attend, cascade, bf16", kv_rows + 32 * heads * group * 2 * 4 * (dim + dim + 1),
     [](Problem& p) {
       namespace attention = decant::attention;
       constexpr index_t requests = 16, own = 64;
       std::vector<attention::Segment> segments{{-1, 0, 0, n - requests * own}};
       std::vector<index_t> leaves;
       for (index_t r = 0; r < requests; ++r) {
         leaves.push_back(r + 1);
         segments.push_back({0, 0, n - (requests - r) * own, n - (requests - r - 1) * own});
       }
       const attention::CascadePlan plan = attention::plan(
           attention::Cascade{}, View<const attention::Segment, 1>(segments), View<const index_t, 1>(leaves));
       if (cascade_bytes(plan, heads, heads * group, dim, dim, 2) != kv_rows + 32 * heads * group * 8 * (2 * dim + 1))
         throw std::runtime_error("another number of bytes than expected");
       const attention::CascadeRoom room = cascade_room(plan);
       std::vector<std::int32_t> staging(static_cast<std::size_t>(cascade_words(room)));
       const DeviceBuffer<std::int32_t> words(cascade_words(room));
       const DeviceBuffer<float> queries(std::vector<float>(requests * heads * group * dim, 0.125f));
       const DeviceBuffer<float> o(requests * heads * group * dim);
       attention::attend(p.cuda, attention::Dense{},
                         upload(p.cuda, plan, room, staging, words.view(words.size())),
                         View<const float, 3>(queries.data(), requests, heads * group, dim), p.dense(),
                         o.view(requests, heads * group, dim));
       p.cuda.check();
     }},
    // Queries are read by the 16 pieces of a head.
    {"attend, Santa, bf16", santa_bytes + 15 * query_bytes,
     [](Problem& p) { p.attend(p.dense(), decant::attention::Santa{.samples = drawn, .couple_group = true}); }},
    {"sparse_gather, bf16",
     heads * listed * (row_bytes + 4 * 2 + 4 * group) + heads * group * (listed / 256 * 2 + 1) * dim * 4,
     [](Problem& p) {
       std::vector<std::int32_t> rows;
       for (index_t i = 0; i < heads * listed; ++i) rows.push_back(static_cast<std::int32_t>(i * 1237 % n));
       const DeviceBuffer<std::int32_t> indptr(std::vector<std::int32_t>{0, listed, 2 * listed}), device_rows(rows);
       const DeviceBuffer<float> weights(std::vector<float>(heads * listed * group, 0.5f));
       decant::attention::sparse_gather(
           p.cuda, p.dense(),
           decant::attention::RowLists{indptr.view(3), device_rows.view(heads * listed),
                                       View<const float, 2>(weights.data(), heads * listed, group)},
           p.out.view(1, heads * group, dim));
     }},
    // All features are used, as all |q| are alike: their numbers and factors once per page.
    {"bernoulli_scores, bf16", key_rows + group * score_bytes + n / 64 * heads * dim * (4 + 4 * group),
     [](Problem& p) {
       std::vector<std::int32_t> table;
       for (index_t i = 0; i < n / 64; ++i) table.push_back(static_cast<std::int32_t>(n / 64 - 1 - i));
       const DeviceBuffer<std::int32_t> indices(table), indptr(std::vector<std::int32_t>{0, n / 64}),
           last(std::vector<std::int32_t>{64});
       const DeviceBuffer<float> out(heads * group * n);
       const decant::attention::FeatureMajorKeys<bf16> keys{View<const bf16, 4>(p.keys.data(), n / 64, heads, dim, 64),
                                                            indptr.view(2), indices.view(n / 64), last.view(1)};
       bernoulli_scores(p.cuda, decant::attention::BernoulliQuery{},
                        View<const float, 3>(p.q.data(), 1, heads * group, dim), keys, out.view(1, heads * group, n));
     }},
    // Weights and cache once. Then queries once per 128 columns of the latent, absorbed ones out and once per 512 tokens
    // in, a state per 512 tokens and the latent result out and in, the latter once per 32 columns of the result.
    {"attend, Mla, two pools, bf16",
     mla_heads * ((nope + dim) * latent * 2 + 4 * (4 * nope + rope + 3 * (latent + rope) + 4 * (latent + 2) +
                                                   5 * latent + dim)) +
         mla_tokens * (latent + rope) * 2,
     [](Problem& p) {
       namespace attention = decant::attention;
       const DeviceBuffer<bf16> c(std::vector<bf16>(mla_tokens * latent, bf16(0.5f))),
           k_pe(std::vector<bf16>(mla_tokens * rope, bf16(0.5f))),
           kv_b(std::vector<bf16>(mla_heads * (nope + dim) * latent, bf16(0.01f)));
       const DeviceBuffer<float> q_nope(std::vector<float>(mla_heads * nope, 0.5f)),
           q_pe(std::vector<float>(mla_heads * rope, 0.5f)), out(mla_heads * dim);
       p.length.upload({mla_tokens});
       attention::attend(
           p.cuda, attention::Mla{},
           attention::MlaQueries<float>{q_nope.view(1, mla_heads, nope), q_pe.view(1, mla_heads, rope)},
           attention::mla_weights(kv_b.view(mla_heads * (nope + dim), latent), mla_heads, nope),
           kv::latent(c.view(1, mla_tokens, latent), k_pe.view(1, mla_tokens, rope), p.length.view(1)),
           out.view(1, mla_heads, dim));
       p.cuda.check();
     }},
    {"score, KNorm", key_rows + score_bytes, [](Problem& p) { p.score(kv::KNorm{}); }},
    // Also the sum of every 64 keys, in and out, and the mean key once per 64 keys.
    {"score, KeyDiff (keys twice)", 2 * key_rows + score_bytes + heads * n / 64 * dim * 12,
     [](Problem& p) { p.score(kv::KeyDiff{}); }},
    // From the caches: the queries once per 64 keys, and their norms once per 64 keys and warp.
    {"score, WindowAttention with lse",
     key_rows + score_bytes + n / 64 * window * (query_bytes + heads * group * 8 * 8),
     [](Problem& p) { p.score(kv::WindowAttention{.window = window}); }},
    // Every second row from row 1 on: all kept rows move; 4 bytes of index per row, twice, for checks and once per slice.
    {"compact, dense", n / 2 * heads * (2 * 2 * row_bytes + 8),
     [](Problem& p) {
       std::vector<std::int32_t> odd;
       for (index_t h = 0; h < heads; ++h) {
         for (std::int32_t t = 1; t < n; t += 2) odd.push_back(t);
       }
       const DeviceBuffer<std::int32_t> indices(odd), counts(std::vector<std::int32_t>(heads, n / 2));
       kv::compact(p.cuda, p.dense(), {indices.view(heads, n / 2), counts.view(heads)});
     }},
    {"append, float to bf16", 1024 * heads * dim * 2 * (4 + 2),
     [](Problem& p) {
       p.length.upload({n - 1024});
       const DeviceBuffer<float> rows(std::vector<float>(1024 * heads * dim, 1.0f));
       kv::append(p.cuda, p.dense(), 0, View<const float, 3>(rows.data(), 1024, heads, dim),
                  View<const float, 3>(rows.data(), 1024, heads, dim));
     }},
    // The second time from the cache.
    {"ear, bf16 (logits twice)", 2 * 2 * 8 * 32768 * 2 + 8 * 24,
     [](Problem& p) {
       const DeviceBuffer<bf16> reference(std::vector<bf16>(8 * 32768, bf16(0.5f))),
           other(std::vector<bf16>(8 * 32768, bf16(0.25f)));
       const DeviceBuffer<decant::quant::EarPosition> each(8);
       decant::quant::ear(p.cuda, reference.view(8, 32768), other.view(8, 32768), nullptr, {}, {}, each.view(8));
       p.cuda.check();
     }},
    // 4 leaves of 4 slots: values, tokens, counts and sums of the 10 likeliest out.
    {"top_logits, bf16", 16 * (32000 * 2 + 10 * 8 + 4 + 8),
     [](Problem& p) {
       const DeviceBuffer<bf16> logits(std::vector<bf16>(16 * 32000, bf16(0.5f)));
       const DeviceBuffer<float> value(160);
       const DeviceBuffer<std::int32_t> token(160), count(16);
       const DeviceBuffer<double> log_sum_exp(16);
       decant::speculative::top_logits(
           p.cuda, logits.view(16, 32000),
           {value.view(16, 10), token.view(16, 10), count.view(16), log_sum_exp.view(16)});
       p.cuda.check();
     }},
    // From the caches: the mask's row for all but one slot of each request.
    {"embed_slots, bf16", (2 + 2 * 12) * 3 * 4096 * 2,
     [](Problem& p) {
       const DeviceBuffer<bf16> table(std::vector<bf16>(4 * 4096, bf16(0.5f))),
           features(std::vector<bf16>(4 * 4096, bf16(0.5f))), out(26 * 4096);
       const DeviceBuffer<std::int32_t> tokens(std::vector<std::int32_t>{0, 1, 2, 0}),
           offsets(std::vector<std::int32_t>{0, 1, 4});
       decant::speculative::ParallelMaskOptions o;
       o.mask_token = 3;
       decant::speculative::embed_slots(
           p.cuda, o, {View<const std::int32_t, 1>(tokens.data(), 4), View<const std::int32_t, 1>(offsets.data(), 3)},
           table.view(4, 4096), features.view(4, 4096), out.view(26, 4096));
       p.cuda.check();
     }},
    // From the caches: x once per two rows.
    {"matvec, Codebook2x16", packed_bytes + packed_rows * 4 + packed_rows / 2 * packed_cols * 4,
     [](Problem& p) { multiply(p.cuda, 1); }},
    // x in, in bf16 out, and that from the caches once per 16 rows.
    {"matmul, Codebook2x16, 16 tokens",
     packed_bytes + 16 * packed_rows * 4 + 16 * packed_cols * (4 + 2) + packed_rows / 16 * 16 * packed_cols * 2,
     [](Problem& p) { multiply(p.cuda, 16); }},
    {"encode, SplitZip bf16", coded * 2 + payload_bytes,
     [](Problem& p) {
       const decant::codec::SplitZip<bf16> codec;
       const index_t room = max_encoded_size(codec, coded);
       const DeviceBuffer<bf16> x(coded_elements());
       const DeviceBuffer<std::byte> out(room);
       const DeviceBuffer<index_t> size(1);
       encode(p.cuda, codec, View<const bf16, 1>(x.data(), coded), out.view(room), size.data());
       if (size.download()[0] != payload_bytes) throw std::runtime_error("another payload than expected");
     }},
    {"decode, SplitZip bf16", coded * 2 + payload_bytes,
     [](Problem& p) {
       const decant::codec::SplitZip<bf16> codec;
       decant::Cpu cpu;
       const std::vector<bf16> x = coded_elements();
       std::vector<std::byte> payload(static_cast<std::size_t>(max_encoded_size(codec, coded)));
       index_t size = 0;
       encode(cpu, codec, View<const bf16, 1>(x), View<std::byte, 1>(payload), &size);
       if (size != payload_bytes) throw std::runtime_error("another payload than expected");
       const DeviceBuffer<std::byte> in(payload);
       const DeviceBuffer<bf16> y(coded);
       decode(p.cuda, codec, View<const std::byte, 1>(in.data(), size), y.view(coded));
     }},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Case& c : cases) {
    if (argc < 2) {
      std::printf("%s\n", c.name);
    } else if (std::strcmp(argv[1], c.name) == 0) {
      Problem p;
      c.run(p);
      p.cuda.check();
      std::printf("{\"floor\": %lld}\n", static_cast<long long>(c.floor));
      return 0;
    }
  }
  return argc < 2 ? 0 : 2;
}
