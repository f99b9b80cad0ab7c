// Texts and tables.
typedef unsigned char u8; typedef unsigned int u32; typedef unsigned long long u64;

// One row a step; each thread owns a column.
extern "C" __global__ void smith_waterman(const u8* a, const u8* b, int length, int* best) {
    __shared__ int rows[3][130];
    __shared__ int most;
    int j = threadIdx.x + 1;
    if (threadIdx.x == 0) most = 0;
    for (int k = threadIdx.x; k < 390; k += blockDim.x) (&rows[0][0])[k] = 0;
    __syncthreads();
    const u8* x = a + blockIdx.x * length; const u8* y = b + blockIdx.x * length;
    // Along diagonals: cell (i, j) lies on diagonal i + j.
    for (int d = 2; d <= 2 * length; d++) {
        int i = d - j;
        int* now = rows[d % 3]; int* before = rows[(d + 2) % 3]; int* two = rows[(d + 1) % 3];
        int h = 0;
        if (i >= 1 && i <= length && j <= length) {
            h = max(0, two[j - 1] + (x[i - 1] == y[j - 1] ? 3 : -2));
            h = max(h, max(before[j] - 1, before[j - 1] - 1));
            atomicMax(&most, h);
        }
        __syncthreads();
        if (j <= length) now[j] = i >= 1 && i <= length ? h : 0;
        __syncthreads();
    }
    if (threadIdx.x == 0) best[blockIdx.x] = most;
}

extern "C" __global__ void levenshtein(const u8* a, const u8* b, int length, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u8 row[33];
    for (int k = 0; k <= length; k++) row[k] = k;
    for (int x = 1; x <= length; x++) {
        u8 diagonal = row[0];
        row[0] = x;
        for (int y = 1; y <= length; y++) {
            u8 up = row[y];
            u8 replaced = diagonal + (a[i * length + x - 1] != b[i * length + y - 1]);
            u8 least = min(row[y - 1], up) + 1;
            row[y] = replaced < least ? replaced : least;
            diagonal = up;
        }
    }
    out[i] = row[length];
}

extern "C" __global__ void string_search(const char* text, int n, const char* pattern, int m, int* count, int* first) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i + m <= n; i += gridDim.x * blockDim.x) {
        int k = 0;
        while (k < m && (pattern[k] == '?' || text[i + k] == pattern[k])) k++;
        if (k == m) { atomicAdd(count, 1); atomicMin(first, i); }
    }
}

__device__ u32 mixed(u32 x) { x ^= x >> 16; x *= 0x7feb352du; x ^= x >> 15; x *= 0x846ca68bu; return x ^ x >> 16; }

extern "C" __global__ void bloom_insert(const u32* keys, u32* bits, u32 mask, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32 h = mixed(keys[i]), step = mixed(h) | 1;
    for (int k = 0; k < 4; k++, h += step) atomicOr(&bits[(h & mask) >> 5], 1u << (h & 31));
}

extern "C" __global__ void bloom_query(const u32* keys, const u32* bits, u32 mask, u8* found, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32 h = mixed(keys[i]), step = mixed(h) | 1;
    bool all = true;
    for (int k = 0; k < 4 && all; k++, h += step) all = bits[(h & mask) >> 5] >> (h & 31) & 1;
    found[i] = all;
}

// Open addressing; equal keys add their values.
extern "C" __global__ void hash_insert(const u32* keys, const u32* values, u64* table, u32 mask, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32 key = keys[i], slot = mixed(key) & mask;
    while (true) {
        u64 seen = table[slot];
        if (seen == 0) { u64 mine = (u64)key << 32 | values[i]; seen = atomicCAS(&table[slot], 0ull, mine); if (seen == 0) return; }
        if (seen >> 32 == key) { atomicAdd(&table[slot], (u64)values[i]); return; }
        slot = (slot + 1) & mask;
    }
}

extern "C" __global__ void hash_lookup(const u32* keys, const u64* table, u32 mask, u32* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32 key = keys[i], slot = mixed(key) & mask;
    u64 seen;
    while ((seen = table[slot]) != 0 && seen >> 32 != key) slot = (slot + 1) & mask;
    out[i] = (u32)seen;
}

extern "C" __global__ void base64(const u8* in, u8* out, int groups) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= groups) return;
    u32 bits = in[3 * i] << 16 | in[3 * i + 1] << 8 | in[3 * i + 2];
    for (int k = 0; k < 4; k++) {
        u32 v = bits >> (18 - 6 * k) & 63;
        out[4 * i + k] = v < 26 ? 'A' + v : v < 52 ? 'a' + v - 26 : v < 62 ? '0' + v - 52 : v == 62 ? '+' : '/';
    }
}

extern "C" __global__ void count_words(const char* text, int n, u32* counts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool letter = i < n && text[i] > ' ', start = letter && (i == 0 || text[i - 1] <= ' ');
    int words = __syncthreads_count(start);
    bool any_line = __syncthreads_or(i < n && text[i] == '\n'), all = __syncthreads_and(letter);
    if (threadIdx.x == 0) { counts[blockIdx.x * 3] = words; counts[blockIdx.x * 3 + 1] = any_line; counts[blockIdx.x * 3 + 2] = all; }
}
