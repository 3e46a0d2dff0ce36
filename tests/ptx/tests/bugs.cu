// Kernels with one mistake each, and twins without it. bugs.sh runs each in a process of its own: every bug must be
// reported in the default order or under one of three seeds, no twin ever.
//   bugs --list       the names, with "bug" or "clean" in front
//   bugs NAME         runs one

#include <cstring>

#include "check.cuh"

namespace {

constexpr int kThreads = 128;

// ---- races in shared memory

__global__ void missing_syncthreads(float* p, const float*) {
  __shared__ float s[kThreads];
  s[threadIdx.x] = threadIdx.x;
  p[threadIdx.x] = s[(threadIdx.x + 1) % kThreads];
}

__global__ void with_syncthreads(float* p, const float*) {
  __shared__ float s[kThreads];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  p[threadIdx.x] = s[(threadIdx.x + 1) % kThreads];
}

__global__ void write_after_read(float* p, const float*) {
  __shared__ float s[kThreads];
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    s[threadIdx.x] = i;
    __syncthreads();
    sum += s[kThreads - 1 - threadIdx.x];
    // The next round overwrites what others still read.
  }
  p[threadIdx.x] = sum;
}

__global__ void write_after_read_synced(float* p, const float*) {
  __shared__ float s[kThreads];
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    s[threadIdx.x] = i;
    __syncthreads();
    sum += s[kThreads - 1 - threadIdx.x];
    __syncthreads();
  }
  p[threadIdx.x] = sum;
}

__global__ void missing_syncwarp(float* p, const float*) {
  __shared__ float s[kThreads];
  s[threadIdx.x] = threadIdx.x;
  const float x = __shfl_sync(~0u, 1.0f, 0);  // exchanges registers, orders no memory
  p[threadIdx.x] = s[threadIdx.x ^ 1] + x;
}

__global__ void with_syncwarp(float* p, const float*) {
  __shared__ float s[kThreads];
  s[threadIdx.x] = threadIdx.x;
  __syncwarp();
  p[threadIdx.x] = s[threadIdx.x ^ 1];
}

// ---- barriers

__global__ void barrier_in_half_of_the_block(float* p, const float*) {
  if (threadIdx.x < 64) __syncthreads();
  p[threadIdx.x] = 1;
}

__global__ void barriers_at_two_places(float* p, const float*) {
  if (threadIdx.x < 64)
    __syncthreads();
  else
    __syncthreads();
  p[threadIdx.x] = 1;
}

__global__ void exit_before_barrier(float* p, const float*) {
  if (threadIdx.x >= 100) return;
  __syncthreads();
  p[threadIdx.x] = 1;
}

__global__ void barrier_in_diverging_loop(float* p, const float*) {
  for (int i = 0; i < (threadIdx.x < 64 ? 2 : 3); ++i) __syncthreads();
  p[threadIdx.x] = 1;
}

__global__ void barrier_in_loop(float* p, const float*) {
  for (int i = 0; i < 3; ++i) __syncthreads();
  p[threadIdx.x] = 1;
}

// Half the block produces, the other half consumes, through two named barriers.
__global__ void named_barriers(float* p, const float*) {
  __shared__ float s[64];
  if (threadIdx.x < 64) {
    s[threadIdx.x] = threadIdx.x;
    asm volatile("bar.arrive 1, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 128;" ::: "memory");
    p[threadIdx.x - 64] = s[127 - threadIdx.x];
  }
}

__global__ void named_barrier_forgotten(float* p, const float*) {
  __shared__ float s[64];
  if (threadIdx.x < 64) {
    asm volatile("bar.arrive 1, 128;" ::: "memory");
    s[threadIdx.x] = threadIdx.x;  // too late
  } else {
    asm volatile("bar.sync 1, 128;" ::: "memory");
    p[threadIdx.x - 64] = s[127 - threadIdx.x];
  }
}

// ---- masks

__global__ void mask_names_absent_lanes(float* p, const float*) {
  float x = threadIdx.x;
  if (threadIdx.x % 32 < 16) x = __shfl_xor_sync(~0u, x, 1);
  p[threadIdx.x] = x;
}

__global__ void mask_fits(float* p, const float*) {
  float x = threadIdx.x;
  if (threadIdx.x % 32 < 16) x = __shfl_xor_sync(0xffff, x, 1);
  p[threadIdx.x] = x;
}

__global__ void shuffle_from_inactive_lane(float* p, const float*) {
  float x = threadIdx.x;
  if (threadIdx.x % 32 < 16) x = __shfl_xor_sync(0xffff, x, 16);
  p[threadIdx.x] = x;
}

__global__ void exit_before_shuffle(float* p, const float*) {
  if (threadIdx.x % 32 >= 20) return;
  p[threadIdx.x] = __shfl_down_sync(~0u, 1.0f, 1);
}

// ---- bounds, alignment, initialisation

__global__ void shared_out_of_bounds(float* p, const float*) {
  extern __shared__ float dynamic[];
  dynamic[threadIdx.x + 1] = 1;
  __syncthreads();
  p[threadIdx.x] = dynamic[threadIdx.x + 1];
}

__global__ void global_out_of_bounds(float* p, const float*) {
  p[threadIdx.x + 1 + blockIdx.x * kThreads] = 1;
}

__global__ void misaligned_vector(float* p, const float*) {
  const float4 v = *reinterpret_cast<const float4*>(p + 1);
  p[threadIdx.x] = v.x;
}

__global__ void shared_uninitialised(float* p, const float*) {
  __shared__ float s[kThreads];
  if (threadIdx.x < kThreads - 1) s[threadIdx.x] = 1;
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x];
}

__global__ void global_uninitialised(float* p, const float* fresh) {
  p[threadIdx.x] = fresh[threadIdx.x];
}

// ---- between blocks

__global__ void race_between_blocks(float* p, const float*) {
  p[threadIdx.x] += blockIdx.x;
}

__global__ void atomic_and_plain(float* p, const float*) {
  unsigned* counter = reinterpret_cast<unsigned*>(p);
  if (threadIdx.x == 0) counter[0] = 0;
  atomicAdd(&counter[0], 1u);
}

__global__ void atomics_only(float* p, const float*) {
  atomicAdd(reinterpret_cast<unsigned*>(p), 1u);
}

// The last block to arrive adds up what all have written.
template <bool kFence>
__device__ void last_block_reduces(float* p) {
  __shared__ bool last;
  unsigned* ticket = reinterpret_cast<unsigned*>(p + 255);
  if (threadIdx.x == 0) {
    p[blockIdx.x] = blockIdx.x + 1;
    if (kFence) __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    if (kFence) __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += p[i];
    p[128] = sum;
  }
}

__global__ void last_block_without_fence(float* p, const float*) {
  last_block_reduces<false>(p);
}
__global__ void last_block_with_fence(float* p, const float*) {
  last_block_reduces<true>(p);
}

// ---- asynchronous copies

template <bool kWait>
__device__ void copy_asynchronously(float* p, const float* from) {
  __shared__ __align__(16) float s[kThreads];
  if (threadIdx.x < kThreads / 4) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(s + 4 * threadIdx.x));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from + 4 * threadIdx.x) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (kWait) asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x];
}

__global__ void async_copy_not_waited_for(float* p, const float*) {
  copy_asynchronously<false>(p, p + kThreads);
}
__global__ void async_copy(float* p, const float*) {
  copy_asynchronously<true>(p, p + kThreads);
}

struct Case {
  const char* name;
  bool bug;
  void (*kernel)(float*, const float*);
  int blocks;
  int shared;
};

#define BUG(kernel, blocks, shared)       \
  Case {                                  \
#kernel, true, kernel, blocks, shared \
  }
#define CLEAN(kernel, blocks)         \
  Case {                              \
#kernel, false, kernel, blocks, 0 \
  }

const Case kCases[] = {
    BUG(missing_syncthreads, 1, 0),
    CLEAN(with_syncthreads, 1),
    BUG(write_after_read, 1, 0),
    CLEAN(write_after_read_synced, 1),
    BUG(missing_syncwarp, 1, 0),
    CLEAN(with_syncwarp, 1),
    BUG(barrier_in_half_of_the_block, 1, 0),
    BUG(barriers_at_two_places, 1, 0),
    BUG(exit_before_barrier, 1, 0),
    BUG(barrier_in_diverging_loop, 1, 0),
    CLEAN(barrier_in_loop, 1),
    CLEAN(named_barriers, 1),
    BUG(named_barrier_forgotten, 1, 0),
    BUG(mask_names_absent_lanes, 1, 0),
    CLEAN(mask_fits, 1),
    BUG(shuffle_from_inactive_lane, 1, 0),
    BUG(exit_before_shuffle, 1, 0),
    BUG(shared_out_of_bounds, 1, 512),
    BUG(global_out_of_bounds, 2, 0),
    BUG(misaligned_vector, 1, 0),
    BUG(shared_uninitialised, 1, 0),
    BUG(global_uninitialised, 1, 0),
    BUG(race_between_blocks, 2, 0),
    BUG(atomic_and_plain, 1, 0),
    CLEAN(atomics_only, 8),
    BUG(last_block_without_fence, 8, 0),
    CLEAN(last_block_with_fence, 8),
    BUG(async_copy_not_waited_for, 1, 0),
    CLEAN(async_copy, 1),
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && !std::strcmp(argv[1], "--list")) {
    for (const Case& c : kCases) std::printf("%s %s\n", c.bug ? "bug" : "clean", c.name);
    return 0;
  }
  for (const Case& c : kCases) {
    if (argc != 2 || std::strcmp(argv[1], c.name)) continue;
    float *data, *fresh;
    cudaMalloc(&data, 1024);
    cudaMemset(data, 0, 1024);
    cudaMalloc(&fresh, 1024);
    c.kernel<<<c.blocks, kThreads, c.shared>>>(data, fresh);
    cudaDeviceSynchronize();
    return 0;
  }
  std::printf("usage: %s --list | NAME\n", argv[0]);
  return 2;
}
