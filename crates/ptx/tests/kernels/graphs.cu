// Graphs and grids of whole numbers.
typedef unsigned int u32; typedef unsigned long long u64;

extern "C" __global__ void floyd_warshall(int* distance, int n, int k) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) return;
    int through = distance[y * n + k] + distance[k * n + x];
    if (through < distance[y * n + x]) distance[y * n + x] = through;
}

extern "C" __global__ void bfs_step(const int* offsets, const int* targets, int* level, const int* frontier, int size, int* next, int* next_size, int depth) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    int node = frontier[i];
    for (int e = offsets[node]; e < offsets[node + 1]; e++) {
        int other = targets[e];
        if (atomicCAS(&level[other], -1, depth) == -1) next[atomicAdd(next_size, 1)] = other;
    }
}

extern "C" __global__ void connect(const int2* edges, int* parent, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int a = edges[i].x, b = edges[i].y;
    while (true) {
        while (parent[a] != a) a = parent[a];
        while (parent[b] != b) b = parent[b];
        if (a == b) return;
        int high = max(a, b), low = min(a, b);
        if (atomicCAS(&parent[high], high, low) == high) return;
    }
}

extern "C" __global__ void flatten(int* parent, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int root = i;
    while (parent[root] != root) root = parent[root];
    parent[i] = root;
}

// 64 cells of a row in one word.
extern "C" __global__ void life_words(const u64* in, u64* out, int rows) {
    int y = blockIdx.x * blockDim.x + threadIdx.x;
    if (y >= rows) return;
    u64 one = 0, two = 0, four = 0;
    for (int dy = -1; dy <= 1; dy++) {
        u64 row = in[(y + dy + rows) % rows];
        for (int dx = -1; dx <= 1; dx++) {
            if (!dx && !dy) continue;
            u64 w = dx < 0 ? row << 1 | row >> 63 : dx > 0 ? row >> 1 | row << 63 : row;
            u64 carry = one & w; one ^= w;
            u64 second = two & carry; two ^= carry;
            four |= second;
        }
    }
    out[y] = two & ~four & (one | in[y]);
}

// Nearest centre by whole-number distance; sums for the next centres.
extern "C" __global__ void k_means(const int2* points, const int2* centres, int k, int* labels, u64* sums, int n) {
    __shared__ int2 c[16];
    if (threadIdx.x < k) c[threadIdx.x] = centres[threadIdx.x];
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int2 p = points[i];
    long long best = 0x7fffffffffffffffll; int label = 0;
    for (int j = 0; j < k; j++) {
        long long dx = p.x - c[j].x, dy = p.y - c[j].y, d = dx * dx + dy * dy;
        if (d < best) { best = d; label = j; }
    }
    labels[i] = label;
    atomicAdd(&sums[label * 3], (u64)p.x); atomicAdd(&sums[label * 3 + 1], (u64)p.y); atomicAdd(&sums[label * 3 + 2], 1ull);
}

extern "C" __global__ void transpose(const float* in, float* out, int width, int height) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8) if (x < width && y + k < height) tile[threadIdx.y + k][threadIdx.x] = in[(y + k) * width + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8) if (x < height && y + k < width) out[(y + k) * height + x] = tile[threadIdx.x][threadIdx.y + k];
}
