// Calls of Santa on the device: captured once and replayed as sequences grow, no allocation after the first, faults
// that write nothing, arguments that the host refuses.

#include "catch_compat.hpp"
#include "cuda/graph.cuh"
#include "device_santa.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

TEST_CASE("Cuda Santa: a captured call is replayed with other lengths, and allocates nothing") {
  const Problem<float> p = with_exact_logits(Problem<float>(2, 3, 20, 12, {70, 90}));
  DeviceContext c;
  Cpu cpu;
  for (const SantaScheme scheme : {SantaScheme::global_systematic, SantaScheme::prop}) {
    const Santa a{.samples = 20, .scheme = scheme, .scale = 0.0625f};
    const DenseCache<float> host(p);
    const OnDevice<DenseCache<float>> cache(host);
    const DeviceCall<> call(p);
    const auto enqueue = [&] { attend(c.cuda, a, call.rows(), cache.view, call.out(), call.lses()); };
    enqueue();
    c.cuda.check();
    const std::size_t high_water = c.cuda.workspace().high_water();
    const cuda_test::Graph graph(c.stream, enqueue);  // a capture that allocates fails
    for (const std::vector<std::int32_t>& lengths : {std::vector<std::int32_t>{0, 1}, {33, 50}, {70, 90}}) {
      cuda_test::must(cudaMemcpy(cache.lengths.data(), lengths.data(), 8, cudaMemcpyHostToDevice), "cudaMemcpy");
      graph.launch(c.stream);
      c.cuda.check();
      DenseCache<float> now(p);
      now.lengths = lengths;
      CHECK(difference(p, call.result(), draw(cpu, p, now, a)) < 1e-6);
    }
    CHECK(c.cuda.workspace().high_water() == high_water);
  }
}

TEST_CASE("Cuda Santa: bad lengths, tables, offsets and masks are reported, and nothing is written") {
  const Problem<float> p(1, 2, 16, 8, {40, 20});
  DeviceContext c;
  const auto faulty = [&](const char* what, const auto& cache, bool offsets, const auto& mask, std::int32_t first) {
    INFO(what);
    const DeviceCall<> call(p);
    std::vector<std::int32_t> indptr = p.indptr;
    indptr[0] = first;
    const DeviceBuffer<std::int32_t> device_indptr(indptr);
    Queries<float> q = call.queries(offsets);
    if (offsets) q.indptr = device_indptr.view(device_indptr.size());
    attend(c.cuda, Santa{}, q, cache, call.out(), call.lses(), mask);
    CHECK_THROWS_WITH(c.cuda.check(), catch_compat::contains(what));
    for (const float x : call.result().o) CHECK(std::isnan(x));
    c.cuda.check();  // told once
  };
  DenseCache<float> dense(p);
  dense.lengths[1] = 1000;
  const OnDevice<DenseCache<float>> bad_length(dense);
  faulty("`lengths`", bad_length.view, false, Causal{}, 0);
  faulty("`lengths`", bad_length.view, true, Causal{}, 0);
  dense.lengths[1] = 20;
  const OnDevice<DenseCache<float>> good(dense);
  faulty("`q.indptr`", good.view, true, Causal{}, 1);
  const DeviceBuffer<std::uint8_t> bits(std::vector<std::uint8_t>(6, 255));
  const DeviceBuffer<index_t> bit_offsets(std::vector<index_t>{0, 5, 6});
  faulty("BitMask", good.view, false, BitMask{bits.view(6), bit_offsets.view(3)}, 0);
  for (const bool offsets : {false, true}) {
    PagedCache<float> paged(p, 16);
    paged.indices[2] = 99;
    const OnDevice<PagedCache<float>> bad_page(paged);
    faulty("`indices`", bad_page.view, offsets, Causal{}, 0);
  }
}

TEST_CASE("Cuda Santa: arguments that do not fit are refused by name at once") {
  const Problem<float> p(2, 3, 16, 8, {40, 20});
  DeviceContext c;
  const OnDevice<DenseCache<float>> cache{DenseCache<float>(p)};
  const DeviceCall<> call(p);
  const auto refused = [&](const char* argument, const Santa& a, index_t requests = 0) {
    INFO(argument);
    const DeviceBuffer<std::uint32_t> numbers(std::vector<std::uint32_t>(at(requests), 0u));
    CHECK_THROWS_WITH(attend(c.cuda, a, call.rows(), cache.view, call.out(), call.lses(), Causal{}, {},
                             View<const std::uint32_t, 1>(numbers.view(requests))),
                      catch_compat::contains(argument));
  };
  refused("`samples`", {.samples = -1});
  refused("`scheme`", {.scheme = static_cast<SantaScheme>(7)});
  refused("`tile`", {.tile = 40});
  refused("`scale`", {.scale = quiet_nan});
  refused("`requests`", {}, 3);
  c.cuda.check();
  for (const float x : call.result().o) CHECK(std::isnan(x));

  const Problem<float> wide(1, 1, 40000, 4, {1});
  const OnDevice<DenseCache<float>> wide_cache{DenseCache<float>(wide)};
  const DeviceCall<> wide_call(wide);
  CHECK_THROWS_WITH(attend(c.cuda, Santa{}, wide_call.rows(), wide_cache.view, wide_call.out(), wide_call.lses()),
                    catch_compat::contains("head dims"));
}

}  // namespace
}  // namespace attention_test
