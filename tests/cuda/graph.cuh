// A captured call, for tests: what it enqueues on a stream can be launched again.
#pragma once

#include "device_memory.cuh"

namespace cuda_test {

class Graph {
 public:
  /// Captures what `call` enqueues on the stream.
  template <class Call>
  Graph(cudaStream_t stream, const Call& call) {
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    call();
    must(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    must(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
  }
  void launch(cudaStream_t stream) const { must(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace cuda_test
