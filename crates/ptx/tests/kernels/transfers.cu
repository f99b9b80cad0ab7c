// Bulk copies that complete at a barrier, a cluster of one block, vector atomics.
#include <cuda/barrier>
#include <cuda/ptx>
#include <cooperative_groups.h>
#pragma nv_diag_suppress static_var_with_dynamic_init
namespace cg = cooperative_groups;
typedef unsigned int u32;
typedef cuda::barrier<cuda::thread_scope_block> Barrier;

// Each block copies a tile of 1024 words to shared memory, twice into two buffers, combines them, and copies the result back.
extern "C" __global__ void tiles(u32* out, const u32* in) {
    alignas(128) __shared__ u32 buffers[2][1024];
    __shared__ Barrier barriers[2];
    const u32* tile = in + blockIdx.x * 1024;
    if (threadIdx.x == 0) {
        init(&barriers[0], blockDim.x);
        init(&barriers[1], blockDim.x);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }
    __syncthreads();
    for (u32 stage = 0; stage < 2; stage++) {
        if (threadIdx.x == 0) {
            cuda::device::memcpy_async_tx(buffers[stage], tile, cuda::aligned_size_t<16>(4096), barriers[stage]);
            (void)cuda::device::barrier_arrive_tx(barriers[stage], 1, 4096);
        } else {
            (void)barriers[stage].arrive();
        }
    }
    barriers[0].wait_parity(false);
    barriers[1].wait_parity(false);
    for (u32 i = threadIdx.x; i < 1024; i += blockDim.x) buffers[0][i] = 3 * buffers[0][i] + buffers[1][1023 - i];
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, out + blockIdx.x * 1024, buffers[0], 4096);
        cuda::ptx::cp_reduce_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, cuda::ptx::op_add, out + gridDim.x * 1024, buffers[1], 4096);
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<0>());
    }
}

// Each thread reads its neighbour's word through the address map of the cluster, in phases that its barrier separates.
extern "C" __global__ void ring(u32* out, u32 rounds) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ u32 words[256];
    u32 t = threadIdx.x, value = t;
    for (u32 round = 0; round < rounds; round++) {
        words[t] = value;
        cluster.sync();
        u32* mapped = cluster.map_shared_rank(words, cluster.block_rank());
        value = 2 * mapped[(t + 1) % blockDim.x] + cluster.num_blocks();
        auto token = cluster.barrier_arrive();
        value += cluster.query_shared_rank(mapped);
        cluster.barrier_wait(std::move(token));
    }
    out[t] = value;
}

// All threads add a vector of four floats to one of eight sums.
extern "C" __global__ void vectors(float4* sums) {
    float t = threadIdx.x;
    atomicAdd(&sums[threadIdx.x % 8], make_float4(t, 1, 2 * t, -t));
}
