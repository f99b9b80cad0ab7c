// Ciphers, hashes and checks.
typedef unsigned char u8; typedef unsigned int u32; typedef unsigned long long u64;

extern "C" __global__ void crc32(const u8* data, int length, u32* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32 crc = 0xffffffffu;
    for (int k = 0; k < length; k++) {
        crc ^= data[i * length + k];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    out[i] = ~crc;
}

__constant__ u64 round_constants[24] = {
    0x0000000000000001ull, 0x0000000000008082ull, 0x800000000000808aull, 0x8000000080008000ull, 0x000000000000808bull, 0x0000000080000001ull,
    0x8000000080008081ull, 0x8000000000008009ull, 0x000000000000008aull, 0x0000000000000088ull, 0x0000000080008009ull, 0x000000008000000aull,
    0x000000008000808bull, 0x800000000000008bull, 0x8000000000008089ull, 0x8000000000008003ull, 0x8000000000008002ull, 0x8000000000000080ull,
    0x000000000000800aull, 0x800000008000000aull, 0x8000000080008081ull, 0x8000000000008080ull, 0x0000000080000001ull, 0x8000000080008008ull};
__constant__ int rotations[24] = {1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 2, 14, 27, 41, 56, 8, 25, 43, 62, 18, 39, 61, 20, 44};
__constant__ int lanes[24] = {10, 7, 11, 17, 18, 3, 5, 16, 8, 21, 24, 4, 15, 23, 19, 13, 12, 2, 20, 14, 22, 9, 6, 1};

extern "C" __global__ void keccak_f1600(u64* states, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 s[25];
    for (int k = 0; k < 25; k++) s[k] = states[i * 25 + k];
    for (int round = 0; round < 24; round++) {
        u64 c[5];
        for (int x = 0; x < 5; x++) c[x] = s[x] ^ s[x + 5] ^ s[x + 10] ^ s[x + 15] ^ s[x + 20];
        for (int x = 0; x < 5; x++) {
            u64 r = c[(x + 1) % 5];
            u64 d = c[(x + 4) % 5] ^ (r << 1 | r >> 63);
            for (int y = 0; y < 25; y += 5) s[y + x] ^= d;
        }
        u64 t = s[1];
        for (int k = 0; k < 24; k++) {
            int lane = lanes[k];
            u64 kept = s[lane];
            s[lane] = t << rotations[k] | t >> (64 - rotations[k]);
            t = kept;
        }
        for (int y = 0; y < 25; y += 5) {
            u64 row[5];
            for (int x = 0; x < 5; x++) row[x] = s[y + x];
            for (int x = 0; x < 5; x++) s[y + x] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5]);
        }
        s[0] ^= round_constants[round];
    }
    for (int k = 0; k < 25; k++) states[i * 25 + k] = s[k];
}

__device__ __forceinline__ u32 rotated(u32 x, int n) { return x << n | x >> (32 - n); }
#define QUARTER(a, b, c, d) a += b; d = rotated(d ^ a, 16); c += d; b = rotated(b ^ c, 12); a += b; d = rotated(d ^ a, 8); c += d; b = rotated(b ^ c, 7)

extern "C" __global__ void chacha20(const u32* key, u32 nonce, u32* out, int blocks) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= blocks) return;
    u32 start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, s[16];
    for (int k = 0; k < 8; k++) start[4 + k] = key[k];
    start[12] = i; start[13] = nonce; start[14] = nonce * 3; start[15] = ~nonce;
#pragma unroll
    for (int k = 0; k < 16; k++) s[k] = start[k];
    for (int round = 0; round < 10; round++) {
        QUARTER(s[0], s[4], s[8], s[12]); QUARTER(s[1], s[5], s[9], s[13]); QUARTER(s[2], s[6], s[10], s[14]); QUARTER(s[3], s[7], s[11], s[15]);
        QUARTER(s[0], s[5], s[10], s[15]); QUARTER(s[1], s[6], s[11], s[12]); QUARTER(s[2], s[7], s[8], s[13]); QUARTER(s[3], s[4], s[9], s[14]);
    }
#pragma unroll
    for (int k = 0; k < 16; k++) out[i * 16 + k] = s[k] + start[k];
}

// The substitution box is computed once a block, from inverses in the field of 256 elements.
__device__ u8 doubled(u8 x) { return (u8)(x << 1 ^ (x >> 7) * 0x1b); }
__device__ u8 product(u8 a, u8 b) { u8 p = 0; for (int k = 0; k < 8; k++) { if (b & 1) p ^= a; a = doubled(a); b >>= 1; } return p; }

extern "C" __global__ void aes128(const u8* key, const u8* in, u8* out, int n) {
    __shared__ u8 box[256];
    __shared__ u8 round_keys[176];
    for (int x = threadIdx.x; x < 256; x += blockDim.x) {
        u8 inverse = 1;
        for (int k = 0; k < 254; k++) inverse = product(inverse, (u8)x);
        u8 b = x ? inverse : 0, r = b;
        for (int k = 0; k < 4; k++) { b = (u8)(b << 1 | b >> 7); r ^= b; }
        box[x] = r ^ 0x63;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u8 factor = 1;
        for (int k = 0; k < 16; k++) round_keys[k] = key[k];
        for (int k = 16; k < 176; k += 4) {
            u8 t[4];
            for (int j = 0; j < 4; j++) t[j] = round_keys[k - 4 + j];
            if (k % 16 == 0) {
                u8 first = t[0];
                t[0] = box[t[1]] ^ factor; t[1] = box[t[2]]; t[2] = box[t[3]]; t[3] = box[first];
                factor = doubled(factor);
            }
            for (int j = 0; j < 4; j++) round_keys[k + j] = round_keys[k - 16 + j] ^ t[j];
        }
    }
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u8 s[16], t[16];
    for (int k = 0; k < 16; k++) s[k] = in[i * 16 + k] ^ round_keys[k];
    for (int round = 1; round <= 10; round++) {
        for (int k = 0; k < 16; k++) t[k] = box[s[(k + 4 * (k % 4)) % 16]];
        for (int c = 0; c < 16; c += 4) {
            u8 all = t[c] ^ t[c + 1] ^ t[c + 2] ^ t[c + 3];
            for (int k = 0; k < 4; k++) {
                u8 mixed = round < 10 ? (u8)(t[c + k] ^ all ^ doubled(t[c + k] ^ t[c + (k + 1) % 4])) : t[c + k];
                s[c + k] = mixed ^ round_keys[round * 16 + c + k];
            }
        }
    }
    for (int k = 0; k < 16; k++) out[i * 16 + k] = s[k];
}

extern "C" __global__ void xxhash64_short(const u64* words, u64 seed, u64* out, int n) {
    const u64 P1 = 0x9E3779B185EBCA87ull, P2 = 0xC2B2AE3D27D4EB4Full, P3 = 0x165667B19E3779F9ull, P4 = 0x85EBCA77C2B2AE63ull, P5 = 0x27D4EB2F165667C5ull;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 h = seed + P5 + 16;
    for (int k = 0; k < 2; k++) {
        u64 w = words[i * 2 + k] * P2;
        w = (w << 31 | w >> 33) * P1;
        h ^= w;
        h = (h << 27 | h >> 37) * P1 + P4;
    }
    h ^= h >> 33; h *= P2; h ^= h >> 29; h *= P3; h ^= h >> 32;
    out[i] = h;
}
