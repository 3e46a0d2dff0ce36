// Captured once, replayed as sequences grow: no call allocates or waits after the first, and lengths are read when
// kernels run.

#include "catch_compat.hpp"
#include "device_problem.cuh"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

struct Context {
  cuda_test::Stream stream;
  Cuda cuda{stream};
};

/// A graph of what `enqueue` does. Capture refuses allocations and waiting.
class Graph {
 public:
  template <class F>
  Graph(cudaStream_t stream, const F& enqueue) : stream_(stream) {
    cuda_test::must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    enqueue();
    cuda_test::must(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    cuda_test::must(cudaGraphInstantiate(&exec_, graph_, 0), "cudaGraphInstantiate");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    (void)cudaGraphExecDestroy(exec_);
    (void)cudaGraphDestroy(graph_);
  }
  void launch() const { cuda_test::must(cudaGraphLaunch(exec_, stream_), "cudaGraphLaunch"); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

/// The problem with sequences cut to these lengths.
template <class T>
Problem<T> shortened(const Problem<T>& p, const std::vector<index_t>& lengths) {
  Problem<T> s(p.heads, p.group, p.key_dim, p.value_dim, lengths, p.queries);
  s.q = p.q;
  for (index_t i = 0; i < s.sequences(); ++i)
    for (index_t h = 0; h < s.heads; ++h)
      for (index_t t = 0; t < lengths[at(i)]; ++t) {
        std::copy_n(p.key(i, h, t), p.key_dim, s.key(i, h, t));
        std::copy_n(p.value(i, h, t), p.value_dim, s.value(i, h, t));
      }
  return s;
}

template <class T>
void check_capture(const Problem<T>& p, bool offsets) {
  Context c;
  const Dense a{.chunk = 32};
  const OnDevice<DenseCache<T>> cache{DenseCache<T>(p)};
  const DeviceCall<> call(p);
  const auto enqueue = [&] { attend(c.cuda, a, call.queries(offsets), cache.view, call.out(), call.lses()); };
  enqueue();
  c.cuda.check();
  const std::size_t high_water = c.cuda.workspace().high_water();
  const Graph graph(c.stream, enqueue);
  const std::vector<std::vector<index_t>> steps{{0, 1}, {33, 50}, p.lengths};
  for (const std::vector<index_t>& lengths : steps) {
    std::vector<std::int32_t> now(lengths.begin(), lengths.end());
    cuda_test::must(cudaMemcpy(cache.lengths.data(), now.data(), 8, cudaMemcpyHostToDevice), "cudaMemcpy");
    graph.launch();
    c.cuda.check();
    CHECK(error(call.result(), exact(shortened(p, lengths), a)) <= Dense::error_bound);
  }
  CHECK(c.cuda.workspace().high_water() == high_water);
}

TEST_CASE("Cuda Dense: a captured call is replayed with other lengths") {
  check_capture(Problem<float>(2, 3, 20, 12, {70, 90}), false);
  check_capture(Problem<float>(2, 3, 20, 12, {70, 90}, {3, 60}), true);
  check_capture(Problem<bf16>(2, 6, 20, 12, {70, 90}, {1, 30}), true);
}

TEST_CASE("Cuda Dense: a call whose workspace has not grown cannot be captured, and says so") {
  Context c;
  const Problem<float> p(2, 3, 20, 12, {70, 90});
  const OnDevice<DenseCache<float>> cache{DenseCache<float>(p)};
  const DeviceCall<> call(p);
  cuda_test::must(cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  CHECK_THROWS_AS(attend(c.cuda, Dense{}, call.rows(), cache.view, call.out(), call.lses()), WorkspaceError);
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(c.stream, &graph);
  (void)cudaGraphDestroy(graph);
  attend(c.cuda, Dense{}, call.rows(), cache.view, call.out(), call.lses());
  c.cuda.check();
  CHECK(error(call.result(), exact(p)) <= Dense::error_bound);
}

TEST_CASE("Cuda Dense: head dims that no block can hold are refused") {
  Context c;
  const index_t dim = 40000;
  const Problem<float> p(1, 1, dim, 4, {1});
  const OnDevice<DenseCache<float>> cache{DenseCache<float>(p)};
  const DeviceCall<> call(p);
  CHECK_THROWS_WITH(attend(c.cuda, Dense{}, call.rows(), cache.view, call.out(), call.lses()),
                    catch_compat::contains("head dims"));
}

}  // namespace
}  // namespace attention_test
