// Floating point: linear algebra, signals, networks, pictures, money.

// Radix two, 256 points, in shared memory; twiddles come from the host.
extern "C" __global__ void fft_256(float2* data, const float2* twiddles) {
    __shared__ float2 s[256];
    int t = threadIdx.x;
    float2* d = data + blockIdx.x * 256;
    s[__brev(t) >> 24] = d[t];
    s[__brev(t + 128) >> 24] = d[t + 128];
    for (int half = 1; half < 256; half *= 2) {
        __syncthreads();
        int k = t & (half - 1), i = (t - k) * 2 + k;
        float2 w = twiddles[k * (128 / half)], a = s[i], b = s[i + half];
        float re = w.x * b.x - w.y * b.y, im = w.x * b.y + w.y * b.x;
        s[i] = make_float2(a.x + re, a.y + im);
        s[i + half] = make_float2(a.x - re, a.y - im);
    }
    __syncthreads();
    d[t] = s[t]; d[t + 128] = s[t + 128];
}

extern "C" __global__ void spmv_csr(const int* offsets, const int* columns, const double* values, const double* x, double* y, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31;
    if (row >= rows) return;
    double sum = 0;
    for (int k = offsets[row] + lane; k < offsets[row + 1]; k += 32) sum += values[k] * x[columns[k]];
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (lane == 0) y[row] = sum;
}

extern "C" __global__ void lu(double* a, int n) {
    double* m = a + blockIdx.x * n * n;
    for (int k = 0; k < n - 1; k++) {
        for (int i = k + 1 + threadIdx.x; i < n; i += blockDim.x) m[i * n + k] /= m[k * n + k];
        __syncthreads();
        int rest = n - k - 1;
        for (int e = threadIdx.x; e < rest * rest; e += blockDim.x) {
            int i = k + 1 + e / rest, j = k + 1 + e % rest;
            m[i * n + j] -= m[i * n + k] * m[k * n + j];
        }
        __syncthreads();
    }
}

extern "C" __global__ void cholesky(float* a, int n) {
    float* m = a + blockIdx.x * n * n;
    for (int k = 0; k < n; k++) {
        if (threadIdx.x == 0) m[k * n + k] = sqrtf(m[k * n + k]);
        __syncthreads();
        for (int i = k + 1 + threadIdx.x; i < n; i += blockDim.x) m[i * n + k] /= m[k * n + k];
        __syncthreads();
        for (int i = k + 1 + threadIdx.x; i < n; i += blockDim.x)
            for (int j = k + 1; j <= i; j++) m[i * n + j] -= m[i * n + k] * m[j * n + k];
        __syncthreads();
    }
}

// One query a warp, keys in turn, softmax as it goes; 32 features.
extern "C" __global__ void attention(const float* q, const float* k, const float* v, float* out, int n, float scale) {
    int query = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, f = threadIdx.x & 31;
    if (query >= n) return;
    float mine = q[query * 32 + f], most = -1e30f, total = 0, sum = 0;
    for (int j = 0; j <= query; j++) {
        float s = mine * k[j * 32 + f];
        for (int d = 16; d; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
        s *= scale;
        float next = fmaxf(most, s), old = expf(most - next), weight = expf(s - next);
        total = total * old + weight;
        sum = sum * old + weight * v[j * 32 + f];
        most = next;
    }
    out[query * 32 + f] = sum / total;
}

extern "C" __global__ void convolve_1d(const float* in, const float* taps, float* out, int n, int radius) {
    extern __shared__ float tile[];
    int start = blockIdx.x * blockDim.x - radius;
    for (int k = threadIdx.x; k < blockDim.x + 2 * radius; k += blockDim.x) tile[k] = start + k >= 0 && start + k < n ? in[start + k] : 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int k = 0; k <= 2 * radius; k++) sum = fmaf(tile[threadIdx.x + k], taps[k], sum);
    out[i] = sum;
}

__constant__ float filter[25];
extern "C" __global__ void convolve_2d(const float* in, float* out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    float sum = 0;
#pragma unroll
    for (int dy = -2; dy <= 2; dy++)
#pragma unroll
        for (int dx = -2; dx <= 2; dx++) {
            int cx = min(max(x + dx, 0), w - 1), cy = min(max(y + dy, 0), h - 1);
            sum = fmaf(in[cy * w + cx], filter[(dy + 2) * 5 + dx + 2], sum);
        }
    out[y * w + x] = sum;
}

extern "C" __global__ void black_scholes(const float* price, const float* strike, const float* years, float rate, float volatility, float* call, float* put, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float root = sqrtf(years[i]);
    float d1 = (logf(price[i] / strike[i]) + (rate + 0.5f * volatility * volatility) * years[i]) / (volatility * root), d2 = d1 - volatility * root;
    float discount = strike[i] * expf(-rate * years[i]);
    call[i] = price[i] * normcdff(d1) - discount * normcdff(d2);
    put[i] = discount * normcdff(-d2) - price[i] * normcdff(-d1);
}

__device__ float gradient(int hash, float x, float y, float z) {
    int h = hash & 15;
    float u = h < 8 ? x : y, v = h < 4 ? y : h == 12 || h == 14 ? x : z;
    return ((h & 1) ? -u : u) + ((h & 2) ? -v : v);
}
__device__ float faded(float t) { return t * t * t * (t * (t * 6 - 15) + 10); }
__device__ float between(float t, float a, float b) { return a + t * (b - a); }

extern "C" __global__ void perlin(const int* table, float* out, int w, int h, float scale) {
    int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
    if (px >= w || py >= h) return;
    float x = px * scale, y = py * scale, z = 0.37f;
    int X = (int)floorf(x) & 255, Y = (int)floorf(y) & 255, Z = 0;
    x -= floorf(x); y -= floorf(y);
    float u = faded(x), v = faded(y), t = faded(z);
    int A = table[X] + Y, AA = table[A & 255] + Z, AB = table[(A + 1) & 255] + Z, B = table[(X + 1) & 255] + Y, BA = table[B & 255] + Z, BB = table[(B + 1) & 255] + Z;
    float low = between(v, between(u, gradient(table[AA & 255], x, y, z), gradient(table[BA & 255], x - 1, y, z)),
                        between(u, gradient(table[AB & 255], x, y - 1, z), gradient(table[BB & 255], x - 1, y - 1, z)));
    float high = between(v, between(u, gradient(table[(AA + 1) & 255], x, y, z - 1), gradient(table[(BA + 1) & 255], x - 1, y, z - 1)),
                         between(u, gradient(table[(AB + 1) & 255], x, y - 1, z - 1), gradient(table[(BB + 1) & 255], x - 1, y - 1, z - 1)));
    out[py * w + px] = between(t, low, high);
}

extern "C" __global__ void ray_spheres(const float4* spheres, int count, int* hit, float* depth, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    float dx = (x + 0.5f) / w - 0.5f, dy = (y + 0.5f) / h - 0.5f, dz = 1, inverse = 1 / sqrtf(dx * dx + dy * dy + dz * dz);
    dx *= inverse; dy *= inverse; dz *= inverse;
    float nearest = 1e30f; int who = -1;
    for (int k = 0; k < count; k++) {
        float4 s = spheres[k];
        float b = s.x * dx + s.y * dy + s.z * dz, c = s.x * s.x + s.y * s.y + s.z * s.z - s.w * s.w, d = b * b - c;
        if (d < 0) continue;
        float t = b - sqrtf(d);
        if (t > 0 && t < nearest) { nearest = t; who = k; }
    }
    hit[y * w + x] = who; depth[y * w + x] = nearest;
}

extern "C" __global__ void rms_norm(const float* in, const float* weight, float* out, int n) {
    __shared__ float part[8];
    float sum = 0;
    for (int k = threadIdx.x; k < n; k += blockDim.x) { float v = in[blockIdx.x * n + k]; sum += v * v; }
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < blockDim.x / 32; k++) sum += part[k];
    float r = rsqrtf(sum / n + 1e-5f);
    for (int k = threadIdx.x; k < n; k += blockDim.x) out[blockIdx.x * n + k] = in[blockIdx.x * n + k] * r * weight[k];
}

extern "C" __global__ void gelu(const float* in, float* exact, float* fast, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = in[i];
    exact[i] = 0.5f * x * (1 + erff(x * 0.70710678f));
    fast[i] = 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void batched_gemm(const double* a, const double* b, double* c, int n) {
    __shared__ double ta[8][8], tb[8][8];
    int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, base = blockIdx.z * n * n;
    double sum = 0;
    for (int k = 0; k < n; k += 8) {
        ta[threadIdx.y][threadIdx.x] = a[base + y * n + k + threadIdx.x];
        tb[threadIdx.y][threadIdx.x] = b[base + (k + threadIdx.y) * n + x];
        __syncthreads();
        for (int j = 0; j < 8; j++) sum += ta[threadIdx.y][j] * tb[j][threadIdx.x];
        __syncthreads();
    }
    c[base + y * n + x] = sum;
}

extern "C" __global__ void jacobi(const float* in, const float* right, float* out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    int i = y * w + x;
    out[i] = x && y && x < w - 1 && y < h - 1 ? 0.25f * (in[i - 1] + in[i + 1] + in[i - w] + in[i + w] - right[i]) : in[i];
}

extern "C" __global__ void red_black(float* u, const float* right, int w, int h, int colour, float omega) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= w - 1 || y >= h - 1 || ((x + y) & 1) != colour) return;
    int i = y * w + x;
    float next = 0.25f * (u[i - 1] + u[i + 1] + u[i - w] + u[i + w] - right[i]);
    u[i] += omega * (next - u[i]);
}

extern "C" __global__ void monte_carlo_pi(unsigned seed, unsigned long long* inside, int rounds) {
    unsigned s = seed ^ (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u;
    int count = 0;
    for (int k = 0; k < rounds; k++) {
        s = s * 1664525u + 1013904223u; float x = (s >> 8) * (1.0f / 16777216.0f);
        s = s * 1664525u + 1013904223u; float y = (s >> 8) * (1.0f / 16777216.0f);
        count += __fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)) < 1.0f;
    }
    for (int d = 16; d; d /= 2) count += __shfl_down_sync(0xffffffffu, count, d);
    if ((threadIdx.x & 31) == 0) atomicAdd(inside, (unsigned long long)count);
}

// Differences of numbers of very different size are not lost.
extern "C" __global__ void kahan_sums(const float* in, float* out, int n, int each) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0, lost = 0;
    for (int k = 0; k < each; k++) {
        float y = __fsub_rn(in[i * each + k], lost), t = __fadd_rn(sum, y);
        lost = __fsub_rn(__fsub_rn(t, sum), y);
        sum = t;
    }
    out[2 * i] = sum; out[2 * i + 1] = __fadd_ru(__fmul_rd(sum, 0.3f), __fdiv_rz(sum, 7.0f)) + __fsqrt_ru(fabsf(sum));
}
