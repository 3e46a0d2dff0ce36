// Streams and events. Everything runs at once and in order; what remains of streams is capture.

#include <algorithm>
#include <chrono>

#include "cudart.hpp"

namespace ptx::cudart {
namespace {

std::vector<std::unique_ptr<Stream>>& streams() {
  static auto* const all = new std::vector<std::unique_ptr<Stream>>;
  return *all;
}

Stream& legacy_stream() {
  static Stream* const stream = new Stream;
  return *stream;
}

Stream& thread_stream() {
  static Stream* const stream = [] {
    auto* result = new Stream;
    result->id = 2;
    return result;
  }();
  return *stream;
}

unsigned long long next_id = 16;

}  // namespace

bool is_legacy(cudaStream_t handle) {
  return handle == nullptr || handle == cudaStreamLegacy;
}

Stream* stream_of(cudaStream_t handle) {
  if (is_legacy(handle)) return &legacy_stream();
  if (handle == cudaStreamPerThread) return &thread_stream();
  for (const auto& stream : streams())
    if (stream.get() == reinterpret_cast<Stream*>(handle)) return stream.get();
  return nullptr;
}

cudaError_t refuse_while_capturing() {
  bool capturing = false;
  const auto look_at = [&](Stream& stream) {
    if (!stream.capture || stream.capture->mode == cudaStreamCaptureModeRelaxed) return;
    stream.capture->invalidated = true;
    capturing = true;
  };
  for (const auto& stream : streams()) look_at(*stream);
  look_at(thread_stream());
  return capturing ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t refuse_legacy_while_capturing(cudaStream_t handle) {
  if (!is_legacy(handle)) return cudaSuccess;
  bool capturing = false;
  for (const auto& stream : streams()) {
    if (!stream->capture || (stream->flags & cudaStreamNonBlocking)) continue;
    stream->capture->invalidated = true;
    capturing = true;
  }
  return capturing ? fail(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}

namespace {

double now_in_milliseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

cudaError_t create(cudaStream_t* handle, unsigned flags, int priority) {
  DECANT_CUDART_READY();
  if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking) return fail(cudaErrorInvalidValue);
  auto stream = std::make_unique<Stream>();
  stream->flags = flags;
  stream->priority = std::clamp(priority, -5, 0);
  stream->id = next_id++;
  *handle = reinterpret_cast<cudaStream_t>(stream.get());
  streams().push_back(std::move(stream));
  return cudaSuccess;
}

// The stream's capture ends; the graph goes to whoever asked, unless something spoiled it.
void leave_capture(Capture& capture) {
  for (Stream* forked : capture.forked) forked->capture.reset();
  capture.forked.clear();
}

}  // namespace
}  // namespace ptx::cudart

using namespace ptx::cudart;

#define DECANT_CUDART_STREAM(name, handle) \
  DECANT_CUDART_READY();                   \
  Stream* const name = stream_of(handle);  \
  if (!name) return fail(cudaErrorInvalidResourceHandle)

DECANT_CUDART cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return create(stream, cudaStreamDefault, 0);
}
DECANT_CUDART cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create(stream, flags, 0);
}
DECANT_CUDART cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create(stream, flags, priority);
}

DECANT_CUDART cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  DECANT_CUDART_READY();
  auto& all = streams();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.get() == reinterpret_cast<Stream*>(handle); });
  if (found == all.end()) return fail(cudaErrorInvalidResourceHandle);
  if ((*found)->capture) {
    delete (*found)->capture->graph;
    leave_capture(*(*found)->capture);
  }
  all.erase(found);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  DECANT_CUDART_STREAM(stream, handle);
  if (stream->capture) {
    stream->capture->invalidated = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (is_legacy(handle))
    if (const cudaError_t refused = refuse_legacy_while_capturing(handle)) return refused;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaDeviceSynchronize() {
  DECANT_CUDART_READY();
  return refuse_while_capturing();
}

DECANT_CUDART cudaError_t cudaStreamQuery(cudaStream_t handle) {
  DECANT_CUDART_STREAM(stream, handle);
  if (stream->capture) {
    stream->capture->invalidated = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  DECANT_CUDART_STREAM(stream, handle);
  *flags = stream->flags;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  DECANT_CUDART_STREAM(stream, handle);
  *priority = stream->priority;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  DECANT_CUDART_STREAM(stream, handle);
  *id = stream->id;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* which) {
  DECANT_CUDART_STREAM(stream, handle);
  *which = 0;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  DECANT_CUDART_READY();
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamSetAttribute(cudaStream_t handle, cudaStreamAttrID, const cudaStreamAttrValue*) {
  DECANT_CUDART_STREAM(stream, handle);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data,
                                                unsigned) {
  DECANT_CUDART_STREAM(stream, handle);
  if (stream->capture) {
    stream->capture->invalidated = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  callback(handle, cudaSuccess, data);
  return cudaSuccess;
}

// ---- capture

DECANT_CUDART cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  DECANT_CUDART_STREAM(stream, handle);
  if (is_legacy(handle)) return fail(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return fail(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->graph = new Graph;
  stream->capture->mode = mode;
  stream->capture->origin = stream;
  stream->capture->id = next_id++;
  stream->position = stream->joined_position = 0;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  DECANT_CUDART_STREAM(stream, handle);
  if (!stream->capture) return fail(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream) return fail(cudaErrorStreamCaptureUnmatched);
  const bool unjoined = std::any_of(capture->forked.begin(), capture->forked.end(),
                                    [](const Stream* forked) { return forked->position != forked->joined_position; });
  leave_capture(*capture);
  stream->capture.reset();
  if (capture->invalidated || unjoined) {
    delete capture->graph;
    return fail(capture->invalidated ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined);
  }
  *graph = reinterpret_cast<cudaGraph_t>(capture->graph);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  DECANT_CUDART_STREAM(stream, handle);
  if (const cudaError_t refused = refuse_legacy_while_capturing(handle)) return refused;
  *status = !stream->capture               ? cudaStreamCaptureStatusNone
            : stream->capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                           : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                                   unsigned long long* id, cudaGraph_t* graph,
                                                   const cudaGraphNode_t** dependencies,
                                                   const cudaGraphEdgeData** edges, std::size_t* count) {
  DECANT_CUDART_STREAM(stream, handle);
  if (const cudaError_t error = cudaStreamIsCapturing(handle, status)) return error;
  if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
  if (id) *id = stream->capture->id;
  if (graph) *graph = reinterpret_cast<cudaGraph_t>(stream->capture->graph);
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(*mode, current);
  return cudaSuccess;
}

// ---- events

DECANT_CUDART cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  DECANT_CUDART_READY();
  auto* created = new Event;
  created->flags = flags;
  *event = reinterpret_cast<cudaEvent_t>(created);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

DECANT_CUDART cudaError_t cudaEventDestroy(cudaEvent_t event) {
  DECANT_CUDART_READY();
  if (!event) return fail(cudaErrorInvalidResourceHandle);
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  DECANT_CUDART_STREAM(stream, stream_handle);
  if (!handle) return fail(cudaErrorInvalidResourceHandle);
  if (const cudaError_t refused = refuse_legacy_while_capturing(stream_handle)) return refused;
  Event& event = *reinterpret_cast<Event*>(handle);
  event.capture = stream->capture;
  event.stream = stream;
  event.position = stream->position;
  event.recorded = true;
  event.milliseconds = now_in_milliseconds();
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

DECANT_CUDART cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  DECANT_CUDART_STREAM(stream, handle);
  if (!event_handle) return fail(cudaErrorInvalidResourceHandle);
  Event& event = *reinterpret_cast<Event*>(event_handle);
  const bool captured = event.capture && event.capture->graph && event.stream->capture == event.capture;
  if (!captured) {
    if (stream->capture && event.recorded) {
      stream->capture->invalidated = true;
      return fail(cudaErrorStreamCaptureIsolation);
    }
    return cudaSuccess;
  }
  if (stream->capture && stream->capture != event.capture) return fail(cudaErrorStreamCaptureMerge);
  if (!stream->capture) {
    if (is_legacy(handle)) return fail(cudaErrorStreamCaptureImplicit);
    stream->capture = event.capture;
    stream->position = stream->joined_position = 0;
    event.capture->forked.push_back(stream);
  }
  // What the event covers is joined to this stream: to the origin, or to a fork that the origin will join.
  event.stream->joined_position = std::max(event.stream->joined_position, event.position);
  if (stream != event.capture->origin) ++stream->position;
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaEventQuery(cudaEvent_t handle) {
  DECANT_CUDART_READY();
  if (!handle) return fail(cudaErrorInvalidResourceHandle);
  Event& event = *reinterpret_cast<Event*>(handle);
  if (event.capture && event.stream->capture == event.capture) {
    event.capture->invalidated = true;
    return fail(cudaErrorCapturedEvent);
  }
  return cudaSuccess;
}

DECANT_CUDART cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return cudaEventQuery(event);
}

DECANT_CUDART cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  DECANT_CUDART_READY();
  if (!from || !to) return fail(cudaErrorInvalidResourceHandle);
  const Event &a = *reinterpret_cast<Event*>(from), &b = *reinterpret_cast<Event*>(to);
  if (!a.recorded || !b.recorded || ((a.flags | b.flags) & cudaEventDisableTiming))
    return fail(cudaErrorInvalidResourceHandle);
  *milliseconds = static_cast<float>(b.milliseconds - a.milliseconds);
  return cudaSuccess;
}
