// Order, selection, counting.
#define INFINITY_F __int_as_float(0x7f800000)
typedef unsigned char u8; typedef unsigned int u32; typedef unsigned long long u64;

// Least significant digit first, two bits a pass, one block of 256.
extern "C" __global__ void radix_sort(u32* keys) {
    __shared__ u32 now[256], next[256], sums[256];
    u32 t = threadIdx.x;
    now[t] = keys[blockIdx.x * 256 + t];
    for (int shift = 0; shift < 32; shift++) {
        u32 key = now[t], bit = key >> shift & 1;
        sums[t] = 1 - bit;
        __syncthreads();
        for (u32 d = 1; d < 256; d *= 2) {
            u32 add = t >= d ? sums[t - d] : 0;
            __syncthreads();
            sums[t] += add;
            __syncthreads();
        }
        u32 zeros = sums[255], place = bit ? zeros + t - sums[t] : sums[t] - 1;
        next[place] = key;
        __syncthreads();
        now[t] = next[t];
        __syncthreads();
    }
    keys[blockIdx.x * 256 + t] = now[t];
}

// Each element finds its place in the other run by bisection.
extern "C" __global__ void merge_runs(const int* in, int* out, int run, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int pair = i / (2 * run) * 2 * run, middle = min(pair + run, n), end = min(pair + 2 * run, n);
    bool first = i < middle;
    int low = first ? middle : pair, high = first ? end : middle, value = in[i];
    while (low < high) {
        int m = (low + high) / 2;
        if (first ? in[m] < value : in[m] <= value) low = m + 1; else high = m;
    }
    out[first ? i + low - middle : i - middle + low] = value;
}

extern "C" __global__ void scan_blocks(const int* in, int* out, int* totals, int n) {
    extern __shared__ int s[];
    int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
    s[t] = i < n ? in[i] : 0;
    // Up and down a tree.
    for (int d = 1; d < blockDim.x; d *= 2) {
        __syncthreads();
        int k = (t + 1) * 2 * d - 1;
        if (k < blockDim.x) s[k] += s[k - d];
    }
    __syncthreads();
    if (t == 0) { totals[blockIdx.x] = s[blockDim.x - 1]; s[blockDim.x - 1] = 0; }
    for (int d = blockDim.x / 2; d >= 1; d /= 2) {
        __syncthreads();
        int k = (t + 1) * 2 * d - 1;
        if (k < blockDim.x) { int left = s[k - d]; s[k - d] = s[k]; s[k] += left; }
    }
    __syncthreads();
    if (i < n) out[i] = s[t];
}

extern "C" __global__ void add_offsets(int* out, const int* totals, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    for (int b = 0; b < blockIdx.x; b++) sum += totals[b];
    if (i < n) out[i] += sum;
}

// What passes keeps its order inside a warp; warps take places from a counter.
extern "C" __global__ void compact(const int* in, int* out, int* count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool keep = i < n && in[i] % 3 == 0;
    u32 ballot = __ballot_sync(0xffffffffu, keep), lane = threadIdx.x & 31;
    int start = 0;
    if (lane == 0) start = atomicAdd(count, __popc(ballot));
    start = __shfl_sync(0xffffffffu, start, 0);
    if (keep) out[start + __popc(ballot & ((1u << lane) - 1))] = in[i];
}

// Lanes with the same value add once.
extern "C" __global__ void histogram_match(const u8* in, u32* bins, int n) {
    __shared__ u32 s[256];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) s[k] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    u32 active = __ballot_sync(0xffffffffu, i < n);
    if (i < n) {
        u32 peers = __match_any_sync(active, (u32)in[i]);
        if ((threadIdx.x & 31) == __ffs(peers) - 1) atomicAdd(&s[in[i]], __popc(peers));
    }
    __syncthreads();
    for (int k = threadIdx.x; k < 256; k += blockDim.x) if (s[k]) atomicAdd(&bins[k], s[k]);
}

// Largest eight of each row by insertion, then merged over the warp.
extern "C" __global__ void top_k(const float* in, float* out, int columns) {
    float best[8];
    for (int k = 0; k < 8; k++) best[k] = -INFINITY_F;
    for (int c = threadIdx.x; c < columns; c += 32) {
        float v = in[blockIdx.x * columns + c];
        for (int k = 0; k < 8; k++) if (v > best[k]) { float kept = best[k]; best[k] = v; v = kept; }
    }
    int taken = 0;
    for (int k = 0; k < 8; k++) {
        float v = taken < 8 ? best[taken] : -INFINITY_F, most = v;
        for (int d = 16; d; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
        u32 who = __ballot_sync(0xffffffffu, v == most);
        if ((threadIdx.x & 31) == __ffs(who) - 1) { out[blockIdx.x * 8 + k] = v; taken++; }
    }
}

extern "C" __global__ void run_lengths(const u8* in, u32* starts, int* count, int n) {
    // One warp walks over the text; heads of runs are packed in order.
    u32 lane = threadIdx.x, at = 0;
    for (int base = 0; base < n; base += 32) {
        int i = base + lane;
        bool head = i < n && (i == 0 || in[i] != in[i - 1]);
        u32 heads = __ballot_sync(0xffffffffu, head);
        if (head) starts[at + __popc(heads & ((1u << lane) - 1))] = (u32)i << 8 | in[i];
        at += __popc(heads);
    }
    if (lane == 0) *count = at;
}

extern "C" __global__ void reduce_redux(const u32* in, u32* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    u32 v = i < n ? in[i] : 0, lane = threadIdx.x & 31, w = i / 32;
    u32 sum = __reduce_add_sync(0xffffffffu, v), least = __reduce_min_sync(0xffffffffu, v), all = __reduce_and_sync(0xffffffffu, v | 1u << lane);
    int most = __reduce_max_sync(0xffffffffu, (int)v);
    u32 any = __reduce_or_sync(0xffffffffu, v), odd = __reduce_xor_sync(0xffffffffu, v);
    if (lane == 0) { out[w * 6] = sum; out[w * 6 + 1] = least; out[w * 6 + 2] = all; out[w * 6 + 3] = most; out[w * 6 + 4] = any; out[w * 6 + 5] = odd; }
}

// Half the warps fill two buffers, the other half empties them; named barriers say when.
extern "C" __global__ void producer_consumer(const u32* in, u32* out, int rounds) {
    __shared__ u32 buffer[2][64];
    int half = threadIdx.x / 64, t = threadIdx.x % 64;
    u32 sum = 0;
    for (int r = 0; r < rounds; r++) {
        int b = r & 1;
        if (half == 0) {
            if (r >= 2) asm volatile("bar.sync %0, 128;" :: "r"(3 + b) : "memory");
            buffer[b][t] = in[r * 64 + t] * 3 + r;
            asm volatile("bar.arrive %0, 128;" :: "r"(1 + b) : "memory");
        } else {
            asm volatile("bar.sync %0, 128;" :: "r"(1 + b) : "memory");
            sum += buffer[b][63 - t] ^ r;
            if (r + 2 < rounds) asm volatile("bar.arrive %0, 128;" :: "r"(3 + b) : "memory");
        }
    }
    if (half) out[t] = sum;
}
