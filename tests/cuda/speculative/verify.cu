// verify() on CUDA: token for token, and number for number, what the CPU emits.
#include "decant/speculative/verify.cuh"

#include <vector>

#include "catch_compat.hpp"
#include "decant/sampling/process.hpp"
#include "decant/speculative/verify.hpp"
#include "device_memory.cuh"
#include "graph.cuh"
#include "oracle/drafted_trees.hpp"

namespace {

using cuda_test::DeviceBuffer;
using cuda_test::Graph;
using cuda_test::Stream;
using namespace drafted_trees;

/// A batch on the host.
struct Batch {
  DraftForest forest;
  std::vector<float> p, q;
  std::vector<std::uint32_t> requests, steps;
  index_t vocab, stride, levels;

  explicit Batch(index_t v, index_t padding = 0, index_t d = 3) : vocab(v), stride(v + padding), levels(d) {}

  void add(const Problem& x) {
    forest.add(x.tree.view(), static_cast<std::int32_t>(static_cast<index_t>(q.size()) / stride));
    const auto append = [&](std::vector<float>& to, const float* rows, index_t count) {
      for (index_t i = 0; i < count; ++i) {
        to.insert(to.end(), rows + i * vocab, rows + (i + 1) * vocab);
        to.resize(to.size() + static_cast<std::size_t>(stride - vocab), -1.0f);
      }
    };
    append(p, x.p.data(), x.tree.nodes());
    append(q, x.q.view().data(), x.q.rows());
    requests.push_back(static_cast<std::uint32_t>(3 + requests.size()));
    steps.push_back(static_cast<std::uint32_t>(100 * steps.size()));
  }
  index_t trees() const { return static_cast<index_t>(requests.size()); }
  ProbabilityRows rows(const float* from, std::size_t size) const {
    return ProbabilityRows(from, {static_cast<index_t>(size) / stride, vocab}, {stride, 1});
  }

  template <class V>
  Results on_cpu(const V& v) const {
    Cpu cpu;
    Results r(trees(), levels);
    verify(cpu, v, forest.view(), rows(p.data(), p.size()), rows(q.data(), q.size()),
           DrawKeys{Philox{5}, View<const std::uint32_t, 1>(requests), View<const std::uint32_t, 1>(steps)}, r.view());
    return r;
  }
};

/// The batch and its results on the device.
struct OnDevice {
  const Batch& batch;
  ForestView host = batch.forest.view();
  DeviceBuffer<std::int32_t> token = copy(host.all.token), parent = copy(host.all.parent),
                             first_child = copy(host.all.first_child), children = copy(host.all.children),
                             q_row = copy(host.all.q_row);
  DeviceBuffer<std::uint16_t> depth = copy(host.all.depth);
  DeviceBuffer<Law> law = copy(host.all.law);
  DeviceBuffer<float> rest = copy(host.all.rest);
  DeviceBuffer<std::int32_t> offsets{
      std::vector<std::int32_t>(host.offsets.data(), host.offsets.data() + host.offsets.extent(0))};
  DeviceBuffer<float> p{batch.p}, q{batch.q};
  DeviceBuffer<std::uint32_t> requests{batch.requests}, steps{batch.steps};
  Results r{batch.trees(), batch.levels};
  DeviceBuffer<std::int32_t> tokens{r.tokens}, nodes{r.nodes}, length{r.length}, independent{r.independent};
  DeviceBuffer<Status> status{r.status};
  DeviceBuffer<float> log_probability{r.log_probability};

  explicit OnDevice(const Batch& b) : batch(b) {}

  template <class T>
  DeviceBuffer<T> copy(const T* from) const {
    return DeviceBuffer<T>(std::vector<T>(from, from + host.all.nodes));
  }

  template <class V>
  void enqueue(Cuda& cuda, const V& v) {
    enqueue(cuda, v, batch.rows(p.data(), batch.p.size()));
  }
  template <class V, class Target>
  void enqueue(Cuda& cuda, const V& v, const Target& target) {
    const index_t b = batch.trees(), d = batch.levels;
    const ForestView trees{{host.all.nodes, token.data(), parent.data(), first_child.data(), children.data(),
                            depth.data(), law.data(), q_row.data(), rest.data()},
                           View<const std::int32_t, 1>(offsets.data(), b + 1)};
    verify(cuda, v, trees, target, batch.rows(q.data(), batch.q.size()),
           DrawKeys{Philox{5}, View<const std::uint32_t, 1>(requests.data(), b),
                    View<const std::uint32_t, 1>(steps.data(), b)},
           Accepted{View<std::int32_t, 2>(tokens.data(), b, d + 1), View<std::int32_t, 2>(nodes.data(), b, d),
                    View<std::int32_t, 1>(length.data(), b), View<Status, 1>(status.data(), b),
                    View<float, 2>(log_probability.data(), b, d + 1), View<std::int32_t, 1>(independent.data(), b)});
  }
  void expect(const Results& cpu) const {
    CHECK(tokens.download() == cpu.tokens);
    CHECK(nodes.download() == cpu.nodes);
    CHECK(length.download() == cpu.length);
    CHECK(status.download() == cpu.status);
    CHECK(independent.download() == cpu.independent);
    const auto logs = log_probability.download();
    for (std::size_t i = 0; i < logs.size(); ++i) {
      if (std::isnan(cpu.log_probability[i])) {
        CHECK(std::isnan(logs[i]));
      } else {
        CHECK(logs[i] == Approx(cpu.log_probability[i]).margin(1e-6));
      }
    }
  }
};

TEST_CASE("verify: every verifier emits what it emits on the CPU", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  for (const index_t vocab : {7, 2500}) {
    const Models models{vocab, Philox{static_cast<std::uint64_t>(vocab)}};
    const auto check = [&](const auto& v, const std::vector<std::int32_t>& branching, Law law) {
      if (vocab == 7 && law == Law::deterministic) return;
      Batch batch(vocab, vocab == 7 ? 3 : 0, 4);
      batch.add(drafted(models, {}, law, 0));  // nothing was drafted
      for (std::uint32_t s = 1; s < 4; ++s) batch.add(drafted(models, branching, law, s));
      OnDevice device(batch);
      device.enqueue(cuda, v);
      cuda.check();
      INFO("vocab " << vocab << " " << name(law));
      device.expect(batch.on_cpu(v));
    };
    each_verifier(check);
    each_other_verifier(check);
  }
}

TEST_CASE("verify: from logits it emits what the CPU emits from them", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  const index_t vocab = 1500;
  Batch batch(vocab);
  for (std::uint32_t s = 0; s < 3; ++s) {
    batch.add(drafted(Models{vocab, Philox{12}}, {2, 2}, Law::greedy_plus_one, s));
  }
  const index_t nodes = batch.forest.view().all.nodes;
  for (float& p : batch.p) p = std::log(p + 1e-9f);
  std::vector<sampling::LogitRow> rows(static_cast<std::size_t>(nodes));
  std::vector<sampling::RowStatus> status(rows.size(), sampling::RowStatus::ok);
  Cpu cpu;
  const View<const float, 2> logits(batch.p.data(), nodes, vocab);
  filter(cpu, sampling::Processing{.top_k = 100}, logits, View<sampling::LogitRow, 1>(rows),
         View<sampling::RowStatus, 1>(status));
  Results expected(3, batch.levels);
  verify(cpu, UniVer{}, batch.forest.view(), sampling::LogitRows{logits, View<const sampling::LogitRow, 1>(rows)},
         batch.rows(batch.q.data(), batch.q.size()),
         DrawKeys{Philox{5}, View<const std::uint32_t, 1>(batch.requests), View<const std::uint32_t, 1>(batch.steps)},
         expected.view());
  OnDevice device(batch);
  const DeviceBuffer<sampling::LogitRow> device_rows(rows);
  device.enqueue(cuda, UniVer{},
                 sampling::LogitRows{View<const float, 2>(device.p.data(), nodes, vocab),
                                     View<const sampling::LogitRow, 1>(device_rows.data(), nodes)});
  cuda.check();
  device.expect(expected);
}

TEST_CASE("verify: level-parallel evaluation emits the same", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  const Models models{1100, Philox{8}};
  for (const UniVer::Order order : {UniVer::Order::sampled_first, UniVer::Order::paper}) {
    Batch batch(1100);
    for (const Law law : {Law::greedy_plus_one, Law::without_replacement, Law::iid}) {
      batch.add(drafted(models, {2, 2, 1}, law, static_cast<std::uint32_t>(law)));
    }
    OnDevice device(batch);
    device.enqueue(cuda, UniVer{order, UniVer::Eval::level_parallel});
    cuda.check();
    device.expect(batch.on_cpu(UniVer{order}));
  }
}

TEST_CASE("verify: bad requests get their status on the device too", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  const Models models{90, Philox{9}};
  Batch batch(90);
  const Problem good = drafted(models, {2, 1}, Law::without_replacement, 1);
  batch.add(good);
  for (int kind = 0; kind < 6; ++kind) {
    Problem x = good;
    if (kind == 0) x.p[static_cast<std::size_t>(x.tree.token(1))] = std::nanf("");
    if (kind == 1) std::fill(x.p.begin(), x.p.end(), 0.0f);
    if (kind == 2) x.tree.set_law(0, Law::iid, 0);
    if (kind == 3) x.tree.set_law(0, Law::without_replacement, 99999);
    if (kind == 4) x.tree.push_child(0, 90, 0);
    if (kind == 5) x.tree.push_child(x.tree.push_child(4, 1, 0), 2, 0);
    x.tree.finalize();
    x.p.resize(static_cast<std::size_t>(x.tree.nodes() * 90));
    batch.add(x);
  }
  batch.add(good);
  const Results cpu = batch.on_cpu(RRSw{});
  CHECK(cpu.status == std::vector<Status>{Status::ok, Status::bad_row, Status::empty_support, Status::wrong_law,
                                          Status::bad_tree, Status::bad_tree, Status::bad_tree, Status::ok});
  OnDevice device(batch);
  device.enqueue(cuda, RRSw{});
  cuda.check();
  device.expect(cpu);
}

TEST_CASE("verify: captured once, it draws anew for every step written to the device", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  const Models models{300, Philox{10}};
  Batch batch(300);
  for (std::uint32_t s = 0; s < 3; ++s) batch.add(drafted(models, {2, 2}, Law::greedy_plus_one, s));
  OnDevice device(batch);
  device.enqueue(cuda, UniVer{});
  cuda.check();
  const std::size_t room = cuda.workspace().high_water();
  const Graph graph(stream, [&] { device.enqueue(cuda, UniVer{}); });
  for (std::uint32_t step : {1u, 2u, 3u}) {
    for (std::uint32_t& s : batch.steps) s += step;
    device.steps.upload(batch.steps);
    graph.launch(stream);
    cuda.check();
    device.expect(batch.on_cpu(UniVer{}));
  }
  CHECK(cuda.workspace().high_water() == room);
}

}  // namespace
