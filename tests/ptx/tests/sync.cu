// What orders memory between threads and blocks: results must be right, and nothing may be reported.

#include <cooperative_groups.h>
#include <cuda/atomic>

#include "check.cuh"

namespace cg = cooperative_groups;

namespace {

// Every block writes its sum; the last to arrive adds them all up.
__global__ void last_block_reduces(const int* in, int* partial, unsigned* ticket, int* out) {
  __shared__ int sum;
  __shared__ bool last;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, in[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) atomicAdd(&sum, partial[i]);
  __syncthreads();
  if (threadIdx.x == 0) *out = sum;
}

// The same with all threads writing and fencing before the barrier.
__global__ void all_fence(int* data, unsigned* ticket, int* out) {
  __shared__ bool last;
  data[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x + 1;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last || threadIdx.x) return;
  int sum = 0;
  for (unsigned i = 0; i < gridDim.x * blockDim.x; ++i) sum += data[i];
  *out = sum;
}

// And with cuda::atomic_ref.
__global__ void release_acquire(int* partial, unsigned* ticket, int* out) {
  if (threadIdx.x) return;
  partial[blockIdx.x] = blockIdx.x;
  cuda::atomic_ref<unsigned, cuda::thread_scope_device> counter(*ticket);
  if (counter.fetch_add(1, cuda::memory_order_acq_rel) != gridDim.x - 1) return;
  int sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
  *out = sum;
}

// Each block waits for its predecessor's flag: works in whatever order the blocks start.
__global__ void chain(int* value, unsigned* flag) {
  if (threadIdx.x) return;
  cuda::atomic_ref<unsigned, cuda::thread_scope_device> mine(flag[blockIdx.x]);
  int carried = 0;
  if (blockIdx.x > 0) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> before(flag[blockIdx.x - 1]);
    while (before.load(cuda::memory_order_acquire) == 0) {
    }
    carried = value[blockIdx.x - 1];
  }
  value[blockIdx.x] = carried + 1;
  mine.store(1, cuda::memory_order_release);
}

// Lanes of one warp wait for each other: independent thread scheduling.
__global__ void lock(unsigned* mutex, int* counter) {
  bool done = false;
  while (!done) {
    if (atomicCAS(mutex, 0u, 1u) == 0u) {
      __threadfence();
      *reinterpret_cast<volatile int*>(counter) = *reinterpret_cast<volatile int*>(counter) + 1;
      __threadfence();
      atomicExch(mutex, 0u);
      done = true;
    }
  }
}

__global__ void grid_sync(int* data, int rounds) {
  cg::grid_group grid = cg::this_grid();
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  for (int round = 0; round < rounds; ++round) {
    const int next = data[(i + 37) % n];
    grid.sync();
    data[i] = next + 1;
    grid.sync();
  }
}

// Three stages of cp.async; rows beyond the end are filled with zeros through the source size.
__global__ void pipeline(const float* in, float* out, int tiles, int valid) {
  __shared__ __align__(16) float stage[3][128];
  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      const int first = tile * 128 + threadIdx.x * 4;
      const int bytes = first >= valid ? 0 : (first + 4 <= valid ? 16 : 4 * (valid - first));
      const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&stage[tile % 3][threadIdx.x * 4]));
      asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(bytes ? in + first : in), "r"(bytes)
                   : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  fetch(0);
  fetch(1);
  for (int tile = 0; tile < tiles; ++tile) {
    fetch(tile + 2);
    asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncthreads();
    for (int i = threadIdx.x; i < 128; i += blockDim.x) out[tile * 128 + i] = 2 * stage[tile % 3][127 - i];
    __syncthreads();
  }
}

__global__ void named_barriers(int* out) {
  __shared__ int ring[4];
  const bool producer = threadIdx.x < 32;
  for (int i = 0; i < 8; ++i) {
    if (producer) {
      if (i > 0) asm volatile("bar.sync 2, 64;" ::: "memory");  // the consumer has read
      if (threadIdx.x == 0) ring[0] = i * i;
      __syncwarp();
      asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      if (threadIdx.x == 32) out[i] = ring[0];
      __syncwarp();
      if (i < 7) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
  }
}

__global__ void barrier_reductions(int* out) {
  const int even = __syncthreads_count(threadIdx.x % 2 == 0);
  const int all = __syncthreads_and(threadIdx.x < 96), any = __syncthreads_or(threadIdx.x == 95);
  if (threadIdx.x == 0) {
    out[0] = even;
    out[1] = all != 0;
    out[2] = any != 0;
  }
}

}  // namespace

int main() {
  {
    std::vector<int> in(16 * 128);
    int expected = 0;
    for (std::size_t i = 0; i < in.size(); ++i) expected += in[i] = static_cast<int>(i % 23);
    Device<int> d(in), partial(16), out(1);
    Device<unsigned> ticket(std::vector<unsigned>{0});
    last_block_reduces<<<16, 128>>>(d.get(), partial.get(), ticket.get(), out.get());
    CHECK(out.values()[0] == expected);
  }
  {
    Device<int> data(8 * 64), out(1);
    Device<unsigned> ticket(std::vector<unsigned>{0});
    all_fence<<<8, 64>>>(data.get(), ticket.get(), out.get());
    CHECK(out.values()[0] == 64 * 36);
  }
  {
    Device<int> partial(20), out(1);
    Device<unsigned> ticket(std::vector<unsigned>{0});
    release_acquire<<<20, 32>>>(partial.get(), ticket.get(), out.get());
    CHECK(out.values()[0] == 190);
  }
  {
    Device<int> value(12);
    Device<unsigned> flag(std::vector<unsigned>(12, 0));
    chain<<<12, 32>>>(value.get(), flag.get());
    CHECK(value.values()[11] == 12);
  }
  {
    Device<unsigned> mutex(std::vector<unsigned>{0});
    Device<int> counter(std::vector<int>{0});
    lock<<<2, 64>>>(mutex.get(), counter.get());
    CHECK(counter.values()[0] == 128);
  }
  {
    const int blocks = 6, threads = 64, n = blocks * threads, rounds = 3;
    std::vector<int> data(n);
    for (int i = 0; i < n; ++i) data[i] = i;
    Device<int> d(data);
    int* pointer = d.get();
    int count = rounds;
    void* arguments[] = {&pointer, &count};
    CHECK_CUDA(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(grid_sync), blocks, threads, arguments, 0, nullptr));
    const auto result = d.values();
    int wrong = 0;
    for (int i = 0; i < n; ++i) wrong += result[i] != (i + 37 * rounds) % n + rounds;
    CHECK(wrong == 0);
  }
  {
    std::vector<float> in(5 * 128);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
    Device<float> d(in), out(5 * 128);
    const int valid = 5 * 128 - 6;
    pipeline<<<1, 32>>>(d.get(), out.get(), 5, valid);
    const auto result = out.values();
    int wrong = 0;
    for (int tile = 0; tile < 5; ++tile)
      for (int i = 0; i < 128; ++i) {
        const int from = tile * 128 + 127 - i;
        wrong += result[tile * 128 + i] != (from < valid ? 2.0f * from : 0.0f);
      }
    CHECK(wrong == 0);
  }
  {
    Device<int> out(8);
    named_barriers<<<1, 64>>>(out.get());
    const auto result = out.values();
    for (int i = 0; i < 8; ++i) CHECK(result[i] == i * i);
  }
  {
    Device<int> out(3);
    barrier_reductions<<<1, 128>>>(out.get());
    CHECK(out.values() == (std::vector<int>{64, 0, 1}));
  }
  return finish("sync");
}
