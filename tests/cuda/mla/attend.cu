// MLA on the device against the definition in double; both cache layouts, in blocks and in pages, give the same bits;
// errors, faults, capture.

#include "catch_compat.hpp"
#include "cuda/graph.cuh"
#include "device_mla.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

template <class T, class W>
void agrees(const MlaProblem<T, W>& p, const Mla& a = {}) {
  INFO("heads " << p.heads << " latent " << p.dims.latent << " rope " << p.dims.rope);
  MlaContext c;
  const DeviceOneRow<T> cache{OneRowCache<T>(p)};
  const Result r = run_mla(c.cuda, p, cache.dense(), a);
  const Exact expected = exact_mla(p);
  const double bound = a.rounded ? Mla::rounded_error_bound(dtype_of<T>) : Mla::error_bound;
  CHECK(error(r, expected) <= bound);
  CHECK(lse_error(r, expected) <= 1e-5 + bound);
  CHECK(run_mla(c.cuda, p, DeviceTwoPools<T>{TwoPoolCache<T>(p)}.dense(), a).same_bits(r));
}

TEST_CASE("Cuda Mla: 16-bit caches, on tensor cores and off them") {
  agrees(MlaProblem<bf16, bf16>(5, {128, 64, 512, 128}, {37}));                       // DeepSeek's dims
  agrees(MlaProblem<bf16, bf16>(3, {20, 8, 48, 36}, {70, 1, 0, 33}));                 // CUDA cores
  agrees(MlaProblem<bf16, bf16>(5, {9, 3, 35, 7}, {70, 1, 0, 33}, {2, 1, 1, 3}));     // odd dims: no 16-byte accesses
  agrees(MlaProblem<bf16, bf16>(17, {20, 8, 48, 36}, {150}), {.chunk = 64, .rounded = true});
}

TEST_CASE("Cuda Mla: fp8 caches") {
  agrees(MlaProblem<fp8_e4m3, bf16>(5, {16, 16, 48, 12}, {70, 1, 0, 33}));
  agrees(MlaProblem<fp8_e4m3, bf16>(6, {9, 3, 35, 7}, {40}));
}

TEST_CASE("Cuda Mla: float caches") {
  agrees(MlaProblem<float, float>(5, {20, 8, 48, 36}, {70, 1, 0, 33}), {.chunk = 32});
  agrees(MlaProblem<float, float>(2, {9, 3, 35, 7}, {40, 9}, {2, 3}));
}

TEST_CASE("Cuda Mla: pages, pads and batches: the same bits") {
  const MlaProblem<bf16, bf16> p(6, {16, 8, 40, 12}, {70, 1, 0, 33});
  const Mla a{.chunk = 32};
  MlaContext c;
  const Result r = run_mla(c.cuda, p, DeviceOneRow<bf16>{OneRowCache<bf16>(p)}.dense(), a);
  CHECK(run_mla(c.cuda, p, DeviceOneRow<bf16>{OneRowCache<bf16>(p, 0, 3)}.dense(), a).same_bits(r));
  CHECK(run_mla(c.cuda, p, DeviceTwoPools<bf16>{TwoPoolCache<bf16>(p, 0, 3)}.dense(), a).same_bits(r));
  for (const index_t page_size : {1, 16}) {
    CHECK(run_mla(c.cuda, p, DeviceOneRow<bf16>{OneRowCache<bf16>(p, page_size)}.paged(), a).same_bits(r));
    CHECK(run_mla(c.cuda, p, DeviceTwoPools<bf16>{TwoPoolCache<bf16>(p, page_size)}.paged(), a).same_bits(r));
  }
  MlaProblem<bf16, bf16> one(6, p.dims, {33});
  one.kv_b = p.kv_b;
  std::copy_n(p.c.data() + 71 * 40, 33 * 40, one.c.data());
  std::copy_n(p.k_pe.data() + 71 * 8, 33 * 8, one.k_pe.data());
  std::copy_n(p.q_nope.data() + 3 * 6 * 16, 6 * 16, one.q_nope.data());
  std::copy_n(p.q_pe.data() + 3 * 6 * 8, 6 * 8, one.q_pe.data());
  const Result alone = run_mla(c.cuda, one, DeviceOneRow<bf16>{OneRowCache<bf16>(one)}.dense(), a);
  CHECK(std::memcmp(alone.o.data(), r.o.data() + 3 * 6 * 12, alone.o.size() * 4) == 0);
  CHECK(std::memcmp(alone.lse.data(), r.lse.data() + 3 * 6, alone.lse.size() * 4) == 0);
}

TEST_CASE("Cuda Mla: captured once, replayed with other lengths; the second call allocates nothing") {
  const MlaProblem<bf16, bf16> p(6, {16, 8, 40, 12}, {70, 33});
  MlaContext c;
  const DeviceTwoPools<bf16> cache{TwoPoolCache<bf16>(p)};
  const DeviceMla<bf16> call(p);
  const auto enqueue = [&] {
    attend(c.cuda, Mla{.chunk = 32}, call.queries(false), call.weights(), cache.dense(), call.out(), call.lses());
  };
  enqueue();
  c.cuda.check();
  const Result whole = call.result();
  const std::size_t high_water = c.cuda.workspace().high_water();
  const cuda_test::Graph graph(c.stream, enqueue);  // capture refuses allocations
  cuda_test::must(cudaMemset(cache.lengths.data(), 0, 8), "cudaMemset");
  graph.launch(c.stream);
  c.cuda.check();
  CHECK(call.result().o == std::vector<float>(whole.o.size(), 0.0f));
  const std::vector<std::int32_t> lengths{70, 33};
  cuda_test::must(cudaMemcpy(cache.lengths.data(), lengths.data(), 8, cudaMemcpyHostToDevice), "cudaMemcpy");
  graph.launch(c.stream);
  c.cuda.check();
  CHECK(call.result().same_bits(whole));
  CHECK(c.cuda.workspace().high_water() == high_water);
}

TEST_CASE("Cuda Mla: what the host sees is refused at once, what the device sees at check(), and nothing is written") {
  const MlaProblem<bf16, bf16> p(6, {16, 8, 40, 12}, {70, 33});
  MlaContext c;
  TwoPoolCache<bf16> host(p, 16);
  const DeviceTwoPools<bf16> cache(host);
  const DeviceMla<bf16> call(p);
  const auto unwritten = [&] {
    const Result r = call.result();
    return std::all_of(r.o.begin(), r.o.end(), [](float x) { return std::isnan(x); }) &&
           std::all_of(r.lse.begin(), r.lse.end(), [](float x) { return std::isnan(x); });
  };
  const auto q = call.queries(false);
  const auto w = call.weights();
  const auto refused = [&](const char* words, const auto& call_it) {
    CHECK_THROWS_WITH(call_it(), catch_compat::contains(words));
    c.cuda.check();
    CHECK(unwritten());
  };
  refused("`q.pe`", [&] {
    attend(c.cuda, Mla{}, MlaQueries<float>{q.nope, q.pe.slice(2, 0, 7)}, w, cache.paged(), call.out(), call.lses());
  });
  refused("`w.uk`", [&] {
    attend(c.cuda, Mla{}, q, MlaWeights<bf16>{w.uk.slice(2, 0, 39), w.uv}, cache.paged(), call.out(), call.lses());
  });
  refused("`lse`", [&] { attend(c.cuda, Mla{}, q, w, cache.paged(), call.out(), call.lses().slice(1, 0, 5)); });
  refused("`q`", [&] {
    attend(c.cuda, Mla{}, MlaQueries<float>{q.nope.slice(0, 0, 1), q.pe.slice(0, 0, 1)}, w, cache.paged(),
           call.out().slice(0, 0, 1));
  });
  auto torn = cache.paged();
  torn.pools.indptr = torn.pools.indptr.slice(0, 0, 2);
  refused("`indptr`", [&] { attend(c.cuda, Mla{}, q, w, torn, call.out(), call.lses()); });

  for (const std::int32_t bad : {-1, 1000}) {
    const std::int32_t good = host.indices[2];
    cuda_test::must(cudaMemcpy(cache.indices.data() + 2, &bad, 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    attend(c.cuda, Mla{}, q, w, cache.paged(), call.out(), call.lses());
    CHECK_THROWS_WITH(c.cuda.check(), catch_compat::contains("`indices`"));
    CHECK(unwritten());
    cuda_test::must(cudaMemcpy(cache.indices.data() + 2, &good, 4, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  const std::int32_t bad_last = 17;
  cuda_test::must(cudaMemcpy(cache.last.data(), &bad_last, 4, cudaMemcpyHostToDevice), "cudaMemcpy");
  for (const bool offsets : {false, true}) {
    attend(c.cuda, Mla{}, call.queries(offsets), w, cache.paged(), call.out(), call.lses());
    CHECK_THROWS_WITH(c.cuda.check(), catch_compat::contains("table"));
    CHECK(unwritten());
  }
}

TEST_CASE("Cuda Mla: absorb_query and up_project are those of the Cpu") {
  const MlaProblem<float, bf16> p(3, {70, 4, 264, 67}, {5}, {9});  // three pieces of columns and of rows
  MlaContext c;
  const DeviceMla<bf16> call(p);
  const std::vector<float> o = normal(9 * 3 * 264, 9);
  const DeviceBuffer<float> latent(o), q(std::vector<float>(at(9 * 3 * 268), 7.0f));
  absorb_query(c.cuda, call.weights().uk, call.queries(false).nope, q.view(9, 3, 268).slice(2, 0, 264));
  up_project(c.cuda, call.weights().uv, View<const float, 3>(latent.view(9, 3, 264)), call.out());
  c.cuda.check();
  Cpu cpu;
  std::vector<float> expected_q(at(9 * 3 * 268), 7.0f), expected_o(at(9 * 3 * 67));
  absorb_query(cpu, p.weights().uk, p.nope(), View<float, 3>(expected_q.data(), 9, 3, 268).slice(2, 0, 264));
  up_project(cpu, p.weights().uv, View<const float, 3>(o.data(), 9, 3, 264),
             View<float, 3>(expected_o.data(), 9, 3, 67));
  const std::vector<float> got_q = q.download(), got_o = call.o.download();
  CHECK(oracle::relative_error(doubles(got_q), doubles(expected_q)) <= 1e-6);
  CHECK(oracle::relative_error(doubles(got_o), doubles(expected_o)) <= 1e-6);
  for (std::size_t i = 264; i < got_q.size(); i += 268) CHECK(got_q[i] == 7.0f);

  const std::vector<bf16> wide(at(2 * 2000 * 264));
  const DeviceBuffer<bf16> too_wide(wide);
  CHECK_THROWS_WITH(absorb_query(c.cuda, View<const bf16, 3>(too_wide.view(1, 2000, 264)),
                                 View<const float, 3>(q.view(1, 1, 2000)), q.view(1, 1, 264)),
                    catch_compat::contains("`w_uk`: expected dims that fit in shared memory"));
}

}  // namespace
}  // namespace attention_test
