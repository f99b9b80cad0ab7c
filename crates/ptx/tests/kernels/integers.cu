// Whole numbers: wide ones, random ones, and what counts with them.
typedef unsigned char u8; typedef unsigned int u32; typedef unsigned long long u64;

// 256 x 256 = 512 bits by rows, with carry chains.
extern "C" __global__ void multiply_256(const u32* a, const u32* b, u32* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32 r[16];
#pragma unroll
    for (int k = 0; k < 16; k++) r[k] = 0;
#pragma unroll
    for (int row = 0; row < 8; row++) {
        u32 x = a[i * 8 + row];
        asm volatile("mad.lo.cc.u32 %0, %1, %2, %0;" : "+r"(r[row]) : "r"(x), "r"(b[i * 8]));
#pragma unroll
        for (int k = 1; k < 8; k++) asm volatile("madc.lo.cc.u32 %0, %1, %2, %0;" : "+r"(r[row + k]) : "r"(x), "r"(b[i * 8 + k]));
        asm volatile("addc.u32 %0, %0, 0;" : "+r"(r[row + 8]));
        asm volatile("mad.hi.cc.u32 %0, %1, %2, %0;" : "+r"(r[row + 1]) : "r"(x), "r"(b[i * 8]));
#pragma unroll
        for (int k = 1; k < 7; k++) asm volatile("madc.hi.cc.u32 %0, %1, %2, %0;" : "+r"(r[row + k + 1]) : "r"(x), "r"(b[i * 8 + k]));
        asm volatile("madc.hi.u32 %0, %1, %2, %0;" : "+r"(r[row + 8]) : "r"(x), "r"(b[i * 8 + 7]));
    }
#pragma unroll
    for (int k = 0; k < 16; k++) out[i * 16 + k] = r[k];
}

extern "C" __global__ void add_128(const unsigned __int128* a, const unsigned __int128* b, unsigned __int128* sums, unsigned __int128* products, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { sums[i] = a[i] - b[i] * 3; products[i] = a[i] * b[i]; }
}

extern "C" __global__ void philox4x32(u32 key, uint4* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32 c0 = i, c1 = 0, c2 = 7, c3 = 9, k0 = key, k1 = ~key;
    for (int round = 0; round < 10; round++) {
        u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    out[i] = make_uint4(c0, c1, c2, c3);
}

extern "C" __global__ void xorwow(u32 seed, u32* out, int n, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32 v[5] = {seed ^ (u32)i, 362436069u, 521288629u, 88675123u, 5783321u}, d = 6615241u;
    for (int k = 0; k < count; k++) {
        u32 t = v[0] ^ v[0] >> 2;
        v[0] = v[1]; v[1] = v[2]; v[2] = v[3]; v[3] = v[4];
        v[4] = v[4] ^ v[4] << 4 ^ t ^ t << 1;
        d += 362437u;
        out[k * n + i] = v[4] + d;
    }
}

// One generator a block, its 624 words twisted by all threads.
extern "C" __global__ void mersenne_twister(u32 seed, u32* out, int batches) {
    __shared__ u32 s[624];
    if (threadIdx.x == 0) {
        s[0] = seed + blockIdx.x;
        for (int k = 1; k < 624; k++) s[k] = 1812433253u * (s[k - 1] ^ s[k - 1] >> 30) + k;
    }
    __syncthreads();
    for (int batch = 0; batch < batches; batch++) {
        // Word k needs k + 1 and k + 397: runs of 227 do not disturb each other.
        for (int start = 0; start < 624; start += 227) {
            int k = start + threadIdx.x;
            bool on = threadIdx.x < 227 && k < 624;
            u32 next = 0;
            if (on) {
                u32 y = (s[k] & 0x80000000u) | (s[(k + 1) % 624] & 0x7fffffffu);
                next = s[(k + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
            }
            __syncthreads();
            if (on) s[k] = next;
            __syncthreads();
        }
        for (int k = threadIdx.x; k < 624; k += blockDim.x) {
            u32 y = s[k];
            y ^= y >> 11; y ^= y << 7 & 0x9d2c5680u; y ^= y << 15 & 0xefc60000u; y ^= y >> 18;
            out[(blockIdx.x * batches + batch) * 624 + k] = y;
        }
        __syncthreads();
    }
}

// The state after i * stride steps, by squaring the step.
extern "C" __global__ void lcg_jump(u64 seed, u64 stride, u64* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 a = 6364136223846793005ull, c = 1442695040888963407ull, all_a = 1, all_c = 0, left = (u64)i * stride;
    while (left) {
        if (left & 1) { all_a *= a; all_c = all_c * a + c; }
        c *= a + 1; a *= a; left >>= 1;
    }
    out[i] = all_a * seed + all_c;
}

extern "C" __global__ void dot_int8(const int* a, const int* b, int* out, int n, int words) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int sum = 0;
    for (int k = 0; k < words; k++) sum = __dp4a(a[i * words + k], b[i * words + k], sum);
    u32 u = __dp4a((u32)a[i * words], (u32)b[i * words], (u32)sum);
    out[2 * i] = sum; out[2 * i + 1] = (int)u + __dp2a_lo(a[i * words], b[i * words], 5) + __dp2a_hi(a[i * words], b[i * words], -5);
}

extern "C" __global__ void power_modulo(const u64* base, const u64* exponent, u64 modulus, u64* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 r = 1, b = base[i] % modulus;
    for (u64 e = exponent[i]; e; e >>= 1) {
        if (e & 1) r = (u64)((unsigned __int128)r * b % modulus);
        b = (u64)((unsigned __int128)b * b % modulus);
    }
    out[i] = r;
}

extern "C" __global__ void collatz(const u32* start, u32* steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 x = start[i]; u32 count = 0;
    while (x != 1) { x = x & 1 ? 3 * x + 1 : x >> 1; count++; }
    steps[i] = count;
}

extern "C" __global__ void sieve(u32* bits, int limit) {
    for (int p = 2 + blockIdx.x * blockDim.x + threadIdx.x; (long long)p * p < limit; p += gridDim.x * blockDim.x)
        for (int m = p * p; m < limit; m += p) atomicOr(&bits[m >> 5], 1u << (m & 31));
}

// Counts placements behind the first queen with an explicit stack.
extern "C" __global__ void queens(int n, u32* out) {
    int first = blockIdx.x * blockDim.x + threadIdx.x;
    if (first >= n) return;
    u32 columns[16], left[16], right[16], open[16], full = (1u << n) - 1, count = 0;
    int depth = 1;
    columns[1] = 1u << first; left[1] = columns[1] << 1; right[1] = columns[1] >> 1;
    open[1] = full & ~(columns[1] | left[1] | right[1]);
    while (depth > 0) {
        if (!open[depth]) { depth--; continue; }
        u32 bit = open[depth] & -open[depth];
        open[depth] ^= bit;
        if (depth + 1 == n) { count++; continue; }
        columns[depth + 1] = columns[depth] | bit;
        left[depth + 1] = (left[depth] | bit) << 1;
        right[depth + 1] = (right[depth] | bit) >> 1;
        depth++;
        open[depth] = full & ~(columns[depth] | left[depth] | right[depth]);
    }
    atomicAdd(out, count);
}

extern "C" __global__ void bit_tricks(const u32* in, u32* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32 x = in[i], y = in[(i + 1) % n];
    u32 r = __popc(x) + 100 * __clz(x) + 10000 * __ffs(x);
    r ^= __brev(x) ^ __byte_perm(x, y, 0x3715) ^ __funnelshift_l(x, y, i) ^ __funnelshift_rc(x, y, i % 40);
    r += __sad((int)x, (int)y, 3) + __usad(x, y, 4) + __umul24(x, y) + (u32)__mul24((int)x, (int)y) + __uhadd(x, y) + (u32)__rhadd((int)x, (int)y);
    out[i] = r ^ __vadd4(x, y) ^ __vmaxs2(x, y);
}
