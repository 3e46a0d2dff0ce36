// Rows of which only 16 fit into shared memory, caches of a user's own rows, fp16 queries, more rows than one span, and
// a workspace that is too small.
#include "catch_compat.hpp"
#include "cuda/kv_scores/device_copy.cuh"
#include "cuda/kv_scores/score_error.cuh"
#include "decant/kv/capkv.cuh"
#include "decant/kv/expected_attention.cuh"
#include "decant/kv/keydiff.cuh"
#include "decant/kv/knorm.cuh"
#include "decant/kv/leverage.cuh"
#include "decant/kv/ridge_leverage.cuh"
#include "decant/kv/window_attention.cuh"

/// An engine's own cache: rows of int8 in device memory, with a scale.
namespace users_engine {

struct Row8 {
  const signed char* codes;
};
DECANT_HD inline void load_row(Row8 row, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = 0.125f * static_cast<float>(row.codes[i]);
}

struct Cache8 {
  const signed char* codes;  // [heads][n][key_dim + value_dim]
  const std::int32_t* lengths;
  std::int64_t heads, n, dims[2];
  DECANT_HD std::int64_t sequences() const { return 1; }
  DECANT_HD std::int64_t kv_heads() const { return heads; }
  DECANT_HD std::int64_t key_dim() const { return dims[0]; }
  DECANT_HD std::int64_t value_dim() const { return dims[1]; }
  DECANT_HD std::int64_t length(std::int64_t, std::int64_t h) const { return lengths[h]; }
  DECANT_HD Row8 key(std::int64_t, std::int64_t h, std::int64_t t) const {
    return {codes + (h * n + t) * (dims[0] + dims[1])};
  }
  DECANT_HD Row8 value(std::int64_t s, std::int64_t h, std::int64_t t) const { return {key(s, h, t).codes + dims[0]}; }
  DECANT_HD std::int64_t run(std::int64_t, std::int64_t, std::int64_t) const { return 1; }
  DECANT_HD std::int64_t key_stride() const { return dims[0] + dims[1]; }
  DECANT_HD std::int64_t value_stride() const { return dims[0] + dims[1]; }
};
inline void validate(const Cache8&) {}

}  // namespace users_engine

namespace {

using namespace cuda_test;
using decant::Cpu;
using decant::Cuda;
using decant::fp16;
using oracle::Layer;
using oracle::Row;
using oracle::Table;

/// The least head dim, two more than a multiple of four, of which 64 rows do not fit into this device's shared memory.
index_t too_wide(const Cuda& cuda) {
  return cuda.device().shared_bytes / 1024 * 4 + 2;
}

TEST_CASE("wide: head dims that leave room for 16 rows") {
  const Stream stream;
  Cuda cuda(stream);
  const index_t dim = too_wide(cuda);
  Layer<> data({37, 1, 2, dim, 7, 3}, 3);
  REQUIRE(kv::detail::row_tiling(cuda, "test", dim, 0).rows == 16);
  Table negative = oracle::key_norms(data);
  for (double& v : negative[0]) v = -v;
  REQUIRE(error_of(cuda, kv::KNorm{}, data, negative) < 1e-6);
  REQUIRE(error_of(cuda, kv::KeyDiff{}, data, oracle::key_diff(data)) < 2e-6);
  REQUIRE(error_of(cuda, kv::WindowAttention{.window = 3}, data, oracle::window_attention(data, 3)) < 2e-6);
  REQUIRE(error_of(cuda, kv::CapKV{}, data, oracle::cap_kv(data, 5, 1, 4, 512)) < 5e-5);
  REQUIRE(error_of(cuda, kv::ExpectedAttention{.future = 0, .covariance = false}, data,
                   oracle::expected_attention(data, 4, 0, false, true, 0)) < 2e-5);
  Layer<> half({20, 1, 1, dim, 7, 3}, 3);
  for (float& q : half.pre_rope) q *= 0.05f;
  Cpu cpu;
  DeviceCopy copy;
  std::vector<float> expected(20);
  const auto like_cpu = [&](const auto& scorer, double bound) {
    score(cpu, scorer, half.view(), View<float, 2>(expected.data(), 1, 20));
    const auto got = scored(cuda, scorer, copy(half.view()), 20);
    for (std::size_t i = 0; i < 20; ++i) REQUIRE(got[i] == Approx(expected[i]).epsilon(bound).margin(bound));
  };
  like_cpu(kv::ExpectedAttention{}, 2e-5);
  like_cpu(kv::Leverage{.sketch = 5}, 1e-3);
}

TEST_CASE("wide: forms over 16 rows, with a factor that was given") {
  const Stream stream;
  Cuda cuda(stream);
  const index_t n = 18, dim = too_wide(cuda), stride = dim + 2;
  std::vector<float> rows, inverse(static_cast<std::size_t>(dim * stride), 0.0f), expected(18, 0.0f);
  for (index_t i = 0; i < n * dim; ++i) rows.push_back(static_cast<float>(oracle::normal(1, i)));
  for (index_t r = 0; r < dim; ++r) inverse[static_cast<std::size_t>(r * stride + r)] = 1.0f + (r % 3);
  for (index_t r = 1; r < dim; ++r) inverse[static_cast<std::size_t>(r * stride + r - 1)] = -0.5f;
  for (index_t i = 0; i < n; ++i) {
    double sum = 0;
    const float* const u = rows.data() + i * dim;
    for (index_t r = 0; r < dim; ++r) {
      const double y = (1.0 + static_cast<double>(r % 3)) * u[r] - (r > 0 ? 0.5 * u[r - 1] : 0.0);
      sum += y * y;
    }
    expected[static_cast<std::size_t>(i)] = static_cast<float>(sum);
  }
  const DeviceBuffer<float> d_rows(rows), d_inverse(inverse), weights(std::vector<float>(18, 1.0f)), out(n);
  const DeviceBuffer<int> positive(std::vector<int>{1});
  kv::detail::GramMatrices g{1, dim, 2048, nullptr, nullptr, d_inverse.data(), positive.data(), 0};
  REQUIRE(g.stride() == stride);
  const kv::detail::WeightedRows source{d_rows.view(n, dim), weights.view(n), out.view(n)};
  kv::detail::forms(cuda, "test", source, source, g, 1, n);
  cuda.check();
  const auto got = out.download();
  for (std::size_t i = 0; i < 18; ++i) REQUIRE(got[i] == Approx(expected[i]).epsilon(1e-5));
}

TEST_CASE("wide: a user's own rows are widened first") {
  const Stream stream;
  Cuda cuda(stream);
  Cpu cpu;
  const index_t n = 50;
  std::vector<signed char> codes;
  for (std::uint32_t i = 0; i < 2 * 50 * 22; ++i) {
    codes.push_back(static_cast<signed char>(decant::Philox{3}(i).word[0] % 41) - 20);
  }
  const std::vector<std::int32_t> lengths{50, 23};
  Layer<> queries({n, 2, 2, 12, 10, 9}, 4);
  const auto layer_of = [&](const signed char* c, const std::int32_t* l) {
    return queries.with(users_engine::Cache8{c, l, 2, n, {12, 10}});
  };
  const auto host = layer_of(codes.data(), lengths.data());
  const DeviceBuffer<signed char> device_codes(codes);
  const DeviceBuffer<std::int32_t> device_lengths(lengths);
  DeviceCopy copy;
  auto device = layer_of(device_codes.data(), device_lengths.data());
  device.queries = copy(host.queries);
  device.queries_pre_rope = copy(host.queries_pre_rope);
  const auto check = [&](const auto& scorer, double bound) {
    std::vector<float> expected(static_cast<std::size_t>(2 * n), -7.0f);
    score(cpu, scorer, host, View<float, 2>(expected.data(), 2, n));
    const auto got = scored(cuda, scorer, device, n);
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == Approx(expected[i]).epsilon(bound).margin(bound));
  };
  check(kv::KNorm{}, 1e-6);
  check(kv::KeyDiff{}, 1e-5);
  check(kv::WindowAttention{.window = 9}, 1e-5);
  check(kv::CapKV{}, 1e-4);
  check(kv::ExpectedAttention{}, 1e-4);
  check(kv::Leverage{.sketch = 6}, 1e-3);
}

TEST_CASE("wide: keys of fp8 and queries of fp16") {
  const Stream stream;
  Cuda cuda(stream);
  Layer<decant::fp8_e4m3> data({70, 1, 2, 20, 10, 8}, 5);
  std::vector<fp16> queries;
  for (float& q : data.queries) queries.push_back(fp16(q)), q = queries.back();
  for (float& q : data.pre_rope) queries.push_back(fp16(q)), q = queries.back();
  using C = kv::DenseKV<decant::fp8_e4m3>;
  kv::LayerView<C, fp16> x{data.cache()};
  x.queries = View<const fp16, 3>(queries.data(), 2, 8, 20);
  x.queries_pre_rope = View<const fp16, 3>(queries.data() + 2 * 8 * 20, 2, 8, 20);
  DeviceCopy copy;
  const auto device = copy(x);
  REQUIRE(score_error(scored(cuda, kv::WindowAttention{.window = 8}, device, 70), oracle::window_attention(data, 8)) <
          2e-6);
  REQUIRE(score_error(scored(cuda, kv::CapKV{}, device, 70), oracle::cap_kv(data, 5, 1, 4, 512)) < 5e-5);
  REQUIRE(score_error(scored(cuda, kv::ExpectedAttention{}, device, 70),
                      oracle::expected_attention(data, 4, 512, true, true, 0)) < 2e-5);
}

TEST_CASE("wide: a large common direction over more rows than one span: within 1e-3, and never negative") {
  // Entry sd 0.3 around one vector of sd 3; formed in bf16 this A is indefinite.
  const Stream stream;
  Cuda cuda(stream);
  const index_t n = 2100, dim = 32;
  std::vector<float> u, w(static_cast<std::size_t>(n));
  for (index_t i = 0; i < n * dim; ++i) {
    u.push_back(static_cast<float>(3 * oracle::normal(46, i % dim) + 0.3 * oracle::normal(45, i)));
  }
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = 0.5f + 0.5f * static_cast<float>(i % 3);
  Table rows;
  for (index_t i = 0; i < n; ++i) rows.emplace_back(u.begin() + i * dim, u.begin() + (i + 1) * dim);
  const Row inv = oracle::inverse(oracle::gram(rows, Row(w.begin(), w.end()), 1), static_cast<std::size_t>(dim));
  const DeviceBuffer<float> du(u), dw(w), out(n);
  kv::ridge_leverage<float>(cuda, du.view(n, dim), dw.view(n), 1.0, out.view(n));
  cuda.check();
  const auto got = out.download();
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    REQUIRE(got[i] >= 0);
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) / (w[i] * oracle::form(inv, rows[i])) - 1));
  }
  CAPTURE(worst);
  REQUIRE(worst < 1e-3);
}

TEST_CASE("wide: a workspace that is too small says so") {
  const Stream stream;
  const DeviceBuffer<unsigned char> memory(256);
  Cuda cuda(stream, memory.data(), 256);
  Layer<> data({40, 2, 1, 12, 10, 4}, 6);
  DeviceCopy copy;
  const DeviceBuffer<float> out(std::vector<float>(80, -7.0f));
  REQUIRE_THROWS_AS(score(cuda, kv::CapKV{}, copy(data.view()), out.view(2, 40)), decant::WorkspaceError);
  cuda.check();
}

}  // namespace
