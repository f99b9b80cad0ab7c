// Barriers and pipelines of libcu++, cooperative groups, parameters by address, SIMD in a word.
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cooperative_groups/memcpy_async.h>
#pragma nv_diag_suppress static_var_with_dynamic_init
namespace cg = cooperative_groups;
typedef unsigned int u32;
typedef cuda::barrier<cuda::thread_scope_block> Barrier;

// 256 threads: reverses through shared memory; then the upper half drops out of the barrier, and the lower half goes on with it.
extern "C" __global__ void barrier_reverse(int* out, const int* in) {
    __shared__ Barrier all, half;
    __shared__ int buffer[256];
    u32 t = threadIdx.x;
    if (t == 0) { init(&all, 256); init(&half, 128); }
    __syncthreads();
    cuda::memcpy_async(&buffer[t], &in[t], sizeof(int), all);
    auto token = all.arrive();
    all.wait(std::move(token));
    int value = buffer[255 - t];
    out[t] = value;
    if (t >= 128) { all.arrive_and_drop(); return; }
    all.arrive_and_wait();
    for (int round = 0; round < 3; round++) {
        buffer[t] = value;
        all.arrive_and_wait();
        value += buffer[(t + 1) % 128];
        half.arrive_and_wait();
    }
    out[256 + t] = value;
}

// 128 threads, two stages: each adds up one word of every chunk of 128.
extern "C" __global__ void pipeline_sums(int* out, const int* in, int chunks) {
    constexpr int stages = 2;
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
    __shared__ __align__(16) int buffer[stages][128];
    auto block = cg::this_thread_block();
    auto pipeline = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int chunk = 0, fetched = 0; chunk < chunks; chunk++) {
        for (; fetched < chunks && fetched < chunk + stages; fetched++) {
            pipeline.producer_acquire();
            cuda::memcpy_async(block, buffer[fetched % stages], in + fetched * 128, cuda::aligned_size_t<16>(512), pipeline);
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        sum = sum * 3 + buffer[chunk % stages][(threadIdx.x * 7) % 128];
        pipeline.consumer_release();
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void tiles(int* out, int* elected, const int* in) {
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    auto eight = cg::tiled_partition<8>(warp);
    int t = block.thread_rank(), value = in[t];
    out[4 * t] = cg::reduce(eight, value, cg::plus<int>());
    out[4 * t + 1] = cg::inclusive_scan(warp, value);
    if (value & 1) {
        auto odd = cg::coalesced_threads();
        out[4 * t + 2] = odd.thread_rank() + 100 * odd.size();
        cg::invoke_one(odd, [&] { atomicAdd(elected, (int)odd.size()); });
    }
    auto same = cg::labeled_partition(warp, value % 3);
    out[4 * t + 3] = same.size() + 100 * same.thread_rank();
}

struct Table { int words[16]; float factor; };
__device__ __noinline__ float pick(const Table* table, int at) { return table->words[at & 15] * table->factor; }
extern "C" __global__ void by_address(const __grid_constant__ Table table, float* out) { out[threadIdx.x] = pick(&table, threadIdx.x); }

extern "C" __global__ void words(u32* out, const u32* a, const u32* b, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    u32 x = a[t], y = b[t];
    u32* o = out + 16 * t;
    o[0] = __vadd4(x, y); o[1] = __vaddus4(x, y); o[2] = __vaddss2(x, y); o[3] = __vabsdiffu4(x, y);
    o[4] = __vavgu4(x, y); o[5] = __vcmpgtu4(x, y); o[6] = __vmaxs2(x, y); o[7] = __vminu4(x, y);
    o[8] = __vsadu4(x, y); o[9] = __vsubss4(x, y); o[10] = __vseteq2(x, y); o[11] = __vabsss2(x);
    o[12] = __vhaddu2(x, y); o[13] = __vimax_s16x2_relu(x, y); o[14] = __viaddmax_s16x2_relu(x, y, x ^ y);
    o[15] = __vimax3_s32((int)x, (int)y, 7);
}
