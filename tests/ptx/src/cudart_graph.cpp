// Graphs: the recorded work in the order in which it was recorded (or added, which respects every dependency).

#include <algorithm>
#include <cstring>

#include "cudart.hpp"

namespace ptx::cudart {

Graph::~Graph() {
  for (const auto& node : nodes)
    for (std::byte* owned : node->owned) memory().release(owned);
}

namespace {

// Where work of the stream goes: nullptr: run it now.
cudaError_t find_graph(cudaStream_t handle, Graph*& graph) {
  Stream* stream = stream_of(handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  if (const cudaError_t refused = refuse_legacy_while_capturing(handle)) return refused;
  graph = nullptr;
  if (!stream->capture) return cudaSuccess;
  if (stream->capture->invalidated) return fail(cudaErrorStreamCaptureInvalidated);
  graph = stream->capture->graph;
  ++stream->position;
  return cudaSuccess;
}

Node& add(Graph& graph, cudaGraphNodeType type) {
  graph.nodes.push_back(std::make_unique<Node>());
  graph.nodes.back()->type = type;
  graph.nodes.back()->graph = &graph;
  return *graph.nodes.back();
}

// An executable graph: copies of the nodes, in the same order.
struct Executable {
  struct Step {
    const Node* node;
    cudaGraphNodeType type;
    std::function<cudaError_t()> run;
    std::shared_ptr<KernelWork> kernel;
    bool enabled;
  };
  std::vector<Step> steps;
};

void copy_nodes(const Graph& graph, Executable& executable) {
  executable.steps.clear();
  for (const auto& node : graph.nodes) {
    std::shared_ptr<KernelWork> kernel;
    if (node->kernel) kernel = std::make_shared<KernelWork>(*node->kernel);
    executable.steps.push_back({node.get(), node->type, node->run, kernel, node->enabled});
  }
}

cudaError_t run(const Executable& executable) {
  for (const Executable::Step& step : executable.steps) {
    if (!step.enabled) continue;
    cudaError_t error = cudaSuccess;
    if (step.kernel) {
      error = run_kernel(*step.kernel);
    } else if (step.run) {
      error = step.run();
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

Graph* graph_of(cudaGraph_t handle) {
  return reinterpret_cast<Graph*>(handle);
}
Node* node_of(cudaGraphNode_t handle) {
  return reinterpret_cast<Node*>(handle);
}
Executable* executable_of(cudaGraphExec_t handle) {
  return reinterpret_cast<Executable*>(handle);
}

}  // namespace

cudaError_t submit(cudaStream_t stream, cudaGraphNodeType type, std::function<cudaError_t()> work) {
  Graph* graph = nullptr;
  if (const cudaError_t error = find_graph(stream, graph)) return error;
  if (!graph) return work();
  add(*graph, type).run = std::move(work);
  return cudaSuccess;
}

cudaError_t submit_kernel(cudaStream_t stream, KernelWork&& work) {
  Graph* graph = nullptr;
  if (const cudaError_t error = find_graph(stream, graph)) return error;
  if (!graph) return run_kernel(work);
  add(*graph, cudaGraphNodeTypeKernel).kernel = std::make_unique<KernelWork>(std::move(work));
  return cudaSuccess;
}

}  // namespace ptx::cudart

using namespace ptx::cudart;

DECANT_CUDART cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  DECANT_CUDART_READY();
  *graph = reinterpret_cast<cudaGraph_t>(new Graph);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  DECANT_CUDART_READY();
  if (!graph) return fail(cudaErrorInvalidValue);
  delete graph_of(graph);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t original) {
  DECANT_CUDART_READY();
  auto copy = std::make_unique<Graph>();
  for (const auto& node : graph_of(original)->nodes) {
    Node& added = add(*copy, node->type);
    added.run = node->run;
    added.enabled = node->enabled;
    if (node->kernel) added.kernel = std::make_unique<KernelWork>(*node->kernel);
  }
  *clone = reinterpret_cast<cudaGraph_t>(copy.release());
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  DECANT_CUDART_READY();
  if (!graph) return fail(cudaErrorInvalidValue);
  const auto& all = graph_of(graph)->nodes;
  if (nodes)
    for (std::size_t i = 0; i < std::min(*count, all.size()); ++i)
      nodes[i] = reinterpret_cast<cudaGraphNode_t>(all[i].get());
  *count = all.size();
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  DECANT_CUDART_READY();
  *type = node_of(node)->type;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphDestroyNode(cudaGraphNode_t handle) {
  DECANT_CUDART_READY();
  Node* node = node_of(handle);
  auto& all = node->graph->nodes;
  all.erase(std::find_if(all.begin(), all.end(), [&](const auto& other) { return other.get() == node; }));
  return cudaSuccess;
}

// ---- nodes added by hand. Dependencies exist already when a node is added, so the order of adding respects them.

DECANT_CUDART cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*,
                                                std::size_t) {
  DECANT_CUDART_READY();
  *node = reinterpret_cast<cudaGraphNode_t>(&add(*graph_of(graph), cudaGraphNodeTypeEmpty));
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*,
                                               std::size_t, const cudaHostNodeParams* parameters) {
  DECANT_CUDART_READY();
  Node& added = add(*graph_of(graph), cudaGraphNodeTypeHost);
  added.run = [p = *parameters] {
    p.fn(p.userData);
    return cudaSuccess;
  };
  *node = reinterpret_cast<cudaGraphNode_t>(&added);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*,
                                                   std::size_t, void* to, const void* from, std::size_t bytes,
                                                   cudaMemcpyKind kind) {
  DECANT_CUDART_READY();
  if (const cudaError_t error = check_copy(to, from, bytes, kind)) return fail(error);
  Node& added = add(*graph_of(graph), cudaGraphNodeTypeMemcpy);
  added.run = [=] { return copy(to, from, bytes, kind); };
  *node = reinterpret_cast<cudaGraphNode_t>(&added);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*,
                                                 std::size_t, const cudaMemsetParams* parameters) {
  DECANT_CUDART_READY();
  const cudaMemsetParams p = *parameters;
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return fail(cudaErrorInvalidValue);
  Node& added = add(*graph_of(graph), cudaGraphNodeTypeMemset);
  added.run = [p] {
    for (std::size_t row = 0; row < p.height; ++row) {
      std::byte* at = static_cast<std::byte*>(p.dst) + row * p.pitch;
      if (!ptx::memory().contains(at, p.width * p.elementSize)) return cudaErrorInvalidValue;
      for (std::size_t i = 0; i < p.width; ++i) std::memcpy(at + i * p.elementSize, &p.value, p.elementSize);
      ptx::memory().mark_initialised(at, p.width * p.elementSize);
    }
    return cudaSuccess;
  };
  *node = reinterpret_cast<cudaGraphNode_t>(&added);
  return cudaSuccess;
}

namespace {

cudaError_t work_of(const cudaKernelNodeParams& parameters, KernelWork& work) {
  if (const cudaError_t error = gather_arguments(parameters.func, parameters.kernelParams, work)) return error;
  work.grid = parameters.gridDim;
  work.block = parameters.blockDim;
  work.shared = parameters.sharedMemBytes;
  return check_launch(work);
}

}  // namespace

DECANT_CUDART cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*,
                                                 std::size_t, const cudaKernelNodeParams* parameters) {
  DECANT_CUDART_READY();
  KernelWork work;
  if (const cudaError_t error = work_of(*parameters, work)) return fail(error);
  Node& added = add(*graph_of(graph), cudaGraphNodeTypeKernel);
  added.kernel = std::make_unique<KernelWork>(std::move(work));
  *node = reinterpret_cast<cudaGraphNode_t>(&added);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t handle, const cudaKernelNodeParams* parameters) {
  DECANT_CUDART_READY();
  Node* node = node_of(handle);
  if (!node->kernel) return fail(cudaErrorInvalidValue);
  KernelWork work;
  if (const cudaError_t error = work_of(*parameters, work)) return fail(error);
  *node->kernel = std::move(work);
  return cudaSuccess;
}

// ---- executable graphs

DECANT_CUDART cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  DECANT_CUDART_READY();
  if (!graph) return fail(cudaErrorInvalidValue);
  auto created = std::make_unique<Executable>();
  copy_nodes(*graph_of(graph), *created);
  *executable = reinterpret_cast<cudaGraphExec_t>(created.release());
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                        unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

DECANT_CUDART cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  DECANT_CUDART_READY();
  if (!executable) return fail(cudaErrorInvalidValue);
  delete executable_of(executable);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return ready();
}

DECANT_CUDART cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  DECANT_CUDART_READY();
  if (!executable) return fail(cudaErrorInvalidValue);
  // Captured in turn it is a child graph: a copy of what it is now.
  return fail(submit(stream, cudaGraphNodeTypeGraph, [copy = *executable_of(executable)] { return run(copy); }));
}

DECANT_CUDART cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                              cudaGraphExecUpdateResultInfo* result) {
  DECANT_CUDART_READY();
  Executable& old = *executable_of(executable);
  const auto& nodes = graph_of(graph)->nodes;
  bool same = old.steps.size() == nodes.size();
  for (std::size_t i = 0; same && i < nodes.size(); ++i) same = old.steps[i].type == nodes[i]->type;
  if (result) {
    std::memset(result, 0, sizeof *result);
    result->result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
  }
  if (!same) return fail(cudaErrorGraphExecUpdateFailure);
  copy_nodes(*graph_of(graph), old);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                                           const cudaKernelNodeParams* parameters) {
  DECANT_CUDART_READY();
  KernelWork work;
  if (const cudaError_t error = work_of(*parameters, work)) return fail(error);
  for (Executable::Step& step : executable_of(executable)->steps) {
    if (step.node != node_of(node) || !step.kernel) continue;
    step.kernel = std::make_shared<KernelWork>(std::move(work));
    return cudaSuccess;
  }
  return fail(cudaErrorInvalidValue);
}
