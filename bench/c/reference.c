/* What the kernels of the benchmark cost as plain C on one core: the yardstick for the PTX engine on CPUs.
 *
 * Compiled twice by bench/suites/kernels.py, as `scalar` and as `vector` (the flags stand there and in
 * docs/benchmarks.md). Both do the arithmetic of the CUDA kernels of the same names, fused multiply-adds
 * where NVRTC puts them, sums in an order that a kernel has: the check of a benchmark is the same in both.
 * Neither uses -ffast-math. Loops are laid out so that a compiler can vectorise them; where the plain
 * scalar loop is another one (mandelbrot), each variant has its own.
 *
 *     reference [NAME...]     prints one JSON object a line: name, variant, value (the best, in ms), median,
 *                             worst, runs, check (a number that depends on every result)
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef VARIANT
#error "compile with -DVARIANT=\"scalar\" or \"vector\" and -DLANES=1 or 16"
#endif

/* In the matrix product the scalar code is three times as fast with the inner loops unrolled whole, but
 * unrolling comes before GCC's vectoriser and leaves it nothing to do. */
#if LANES == 1
#define KEEP_LOOP
#else
#define KEEP_LOOP _Pragma("GCC unroll 1")
#endif

enum { MILLION = 1 << 20, EDGE = 256, TILE = 16, IMAGE = 512, ITERATIONS = 256, BODIES = 1024, COLUMNS = 1024, ROWS = 256 };
enum { MINERS = 4096, ROUNDS = 4 };

static float *restrict x, *restrict y, *restrict z;
static uint8_t *restrict bytes;
static int *restrict counts;

/* y = a * x + y over 2^20 elements. */
static void saxpy(void)
{
    for (int i = 0; i < MILLION; i++)
        y[i] = fmaf(0.5f, x[i], y[i]);
}

static double saxpy_check(void) { return y[12345]; }

/* z = x * y, 256 x 256, in tiles of 16 x 16 as the kernel's blocks; each element sums over k upwards. */
static void matmul(void)
{
    float a[TILE][TILE], b[TILE][TILE], sum[TILE][TILE];
    for (int row = 0; row < EDGE; row += TILE)
        for (int column = 0; column < EDGE; column += TILE) {
            memset(sum, 0, sizeof sum);
            for (int k = 0; k < EDGE; k += TILE) {
                for (int i = 0; i < TILE; i++) {
                    memcpy(a[i], x + (row + i) * EDGE + k, sizeof a[i]);
                    memcpy(b[i], y + (k + i) * EDGE + column, sizeof b[i]);
                }
                for (int i = 0; i < TILE; i++)
                    KEEP_LOOP
                    for (int j = 0; j < TILE; j++)
                        KEEP_LOOP
                        for (int c = 0; c < TILE; c++)
                            sum[i][c] = fmaf(a[i][j], b[j][c], sum[i][c]);
            }
            for (int i = 0; i < TILE; i++)
                memcpy(z + (row + i) * EDGE + column, sum[i], sizeof sum[i]);
        }
}

static double matmul_check(void) { return z[EDGE * 100 + 17]; }

/* Escape times over [-2, 1) x [-1.5, 1.5), 512 x 512, at most 256 iterations. */
static void mandelbrot(void)
{
    const float x0 = -2.0f, y0 = -1.5f, dx = 3.0f / IMAGE, dy = 3.0f / IMAGE;
    for (int row = 0; row < IMAGE; row++) {
        float cy = fmaf(row, dy, y0);
#if LANES == 1
        for (int column = 0; column < IMAGE; column++) {
            float cx = fmaf(column, dx, x0), a = 0, b = 0, aa = 0, bb = 0;
            int i = 0;
            while (aa + bb < 4.0f && i < ITERATIONS) {
                float t = aa - bb + cx;
                b = fmaf(2 * a, b, cy);
                a = t;
                aa = a * a;
                bb = b * b;
                i++;
            }
            counts[row * IMAGE + column] = i;
        }
#else
        for (int column = 0; column < IMAGE; column += LANES) {
            float cx[LANES], a[LANES] = {0}, b[LANES] = {0};
            int count[LANES] = {0}, active = 1;
            for (int l = 0; l < LANES; l++)
                cx[l] = fmaf(column + l, dx, x0);
            for (int i = 0; i < ITERATIONS && active; i++) {
                active = 0;
                for (int l = 0; l < LANES; l++) {
                    float aa = a[l] * a[l], bb = b[l] * b[l], t = aa - bb + cx[l];
                    int inside = aa + bb < 4.0f;
                    b[l] = inside ? fmaf(2 * a[l], b[l], cy) : b[l];
                    a[l] = inside ? t : a[l];
                    count[l] += inside;
                    active |= inside;
                }
            }
            memcpy(counts + row * IMAGE + column, count, sizeof count);
        }
#endif
    }
}

static double sum_of_counts(int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static double mandelbrot_check(void) { return sum_of_counts(IMAGE * IMAGE); }

/* The sum of 2^20 floats as a block of 256 threads adds them: 256 strided sums, then a tree. */
static void reduce(void)
{
    float sums[256] = {0};
    for (int i = 0; i < MILLION; i += 256)
        for (int t = 0; t < 256; t++)
            sums[t] += x[i + t];
    for (int half = 128; half > 0; half >>= 1)
        for (int t = 0; t < half; t++)
            sums[t] += sums[t + half];
    z[0] = sums[0];
}

static double reduce_check(void) { return z[0]; }

/* Counts of 2^20 bytes; four tables, so that equal neighbours do not wait for each other. */
static void histogram(void)
{
    int table[4][256] = {{0}};
    for (int i = 0; i < MILLION; i += 4)
        for (int t = 0; t < 4; t++)
            table[t][bytes[i + t]]++;
    for (int i = 0; i < 256; i++)
        counts[i] = table[0][i] + table[1][i] + table[2][i] + table[3][i];
}

static double histogram_check(void)
{
    double sum = 0;
    for (int i = 0; i < 256; i++)
        sum += (double)i * counts[i];
    return sum;
}

/* Accelerations of 1024 bodies, all pairs. x holds the positions and masses as four arrays. */
static void nbody(void)
{
    const float *px = x, *py = x + BODIES, *pz = x + 2 * BODIES, *mass = x + 3 * BODIES;
    for (int i = 0; i < BODIES; i += 16) {
        float ax[16] = {0}, ay[16] = {0}, az[16] = {0};
        for (int j = 0; j < BODIES; j++)
            for (int l = 0; l < 16; l++) {
                float dx = px[j] - px[i + l], dy = py[j] - py[i + l], dz = pz[j] - pz[i + l];
                float k = 1.0f / sqrtf(fmaf(dz, dz, fmaf(dx, dx, dy * dy)) + 0.01f);
                k = mass[j] * k * k * k;
                ax[l] = fmaf(dx, k, ax[l]);
                ay[l] = fmaf(dy, k, ay[l]);
                az[l] = fmaf(dz, k, az[l]);
            }
        memcpy(z + i, ax, sizeof ax);
        memcpy(z + BODIES + i, ay, sizeof ay);
        memcpy(z + 2 * BODIES + i, az, sizeof az);
    }
}

static double nbody_check(void) { return z[777]; }

/* 2^v for v <= 0 by a polynomial (relative error below 3e-7): what ex2.approx is on a GPU, and inline in both variants. */
static inline float exp2_approx(float v)
{
    v = v < -126.0f ? -126.0f : v;
    float whole = floorf(v), f = v - whole;
    float p = 0.00015403530f;
    p = fmaf(p, f, 0.0013333558f);
    p = fmaf(p, f, 0.0096181291f);
    p = fmaf(p, f, 0.055504109f);
    p = fmaf(p, f, 0.24022651f);
    p = fmaf(p, f, 0.69314718f);
    p = fmaf(p, f, 1.0f);
    union { int32_t i; float f; } scale = {.i = ((int32_t)whole + 127) << 23};
    return p * scale.f;
}

/* Softmax of 256 rows of 1024, the maximum and the sum over 32 strided parts as a warp takes them. */
static void softmax(void)
{
    for (int row = 0; row < ROWS; row++) {
        const float *in = x + row * COLUMNS;
        float *out = z + row * COLUMNS, largest[32], sums[32] = {0};
        memcpy(largest, in, sizeof largest);
        for (int i = 32; i < COLUMNS; i += 32)
            for (int l = 0; l < 32; l++)
                largest[l] = in[i + l] > largest[l] ? in[i + l] : largest[l];
        float m = largest[0], sum = 0;
        for (int l = 1; l < 32; l++)
            m = largest[l] > m ? largest[l] : m;
        for (int i = 0; i < COLUMNS; i += 32)
            for (int l = 0; l < 32; l++) {
                float e = exp2_approx((in[i + l] - m) * 1.44269504f);
                out[i + l] = e;
                sums[l] += e;
            }
        for (int l = 0; l < 32; l++)
            sum += sums[l];
        float k = 1.0f / sum;
        for (int i = 0; i < COLUMNS; i++)
            out[i] *= k;
    }
}

static double softmax_check(void) { return z[COLUMNS * 3 + 5]; }

static inline uint32_t rotate(uint32_t v, int n) { return v >> n | v << (32 - n); }

/* One compression of SHA-256's shape a nonce, 16384 nonces; the smallest first word. The constants after the
 * sixteenth are zero, as in the kernel. */
static void sha256(void)
{
    static const uint32_t constants[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
        0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7,
        0xc19bf174};
    enum { AT_ONCE = LANES == 1 ? 1 : 8 };
    uint32_t best = UINT32_MAX;
    for (uint32_t first = 0; first < MINERS * ROUNDS; first += AT_ONCE) {
        uint32_t w[16][AT_ONCE], s[8][AT_ONCE];
        static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
            0x1f83d9ab, 0x5be0cd19};
        for (int l = 0; l < AT_ONCE; l++) {
            for (uint32_t i = 0; i < 15; i++)
                w[i][l] = i;
            w[15][l] = first + (uint32_t)l;
            for (int i = 0; i < 8; i++)
                s[i][l] = start[i];
        }
        for (int i = 0; i < 64; i++)
            for (int l = 0; l < AT_ONCE; l++) {
                uint32_t a = s[0][l], b = s[1][l], c = s[2][l], e = s[4][l], f = s[5][l], g = s[6][l];
                uint32_t t1 = s[7][l] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + constants[i]
                    + w[i & 15][l];
                uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
                s[7][l] = g;
                s[6][l] = f;
                s[5][l] = e;
                s[4][l] = s[3][l] + t1;
                s[3][l] = c;
                s[2][l] = b;
                s[1][l] = a;
                s[0][l] = t1 + t2;
                uint32_t s0 = w[(i + 1) & 15][l], s1 = w[(i + 14) & 15][l];
                w[i & 15][l] += (rotate(s0, 7) ^ rotate(s0, 18) ^ s0 >> 3) + w[(i + 9) & 15][l]
                    + (rotate(s1, 17) ^ rotate(s1, 19) ^ s1 >> 10);
            }
        for (int l = 0; l < AT_ONCE; l++)
            best = s[0][l] < best ? s[0][l] : best;
    }
    counts[0] = (int)best;
}

static double sha256_check(void) { return (double)(uint32_t)counts[0]; }

static const struct benchmark {
    const char *name;
    void (*run)(void);
    double (*check)(void);
} BENCHMARKS[] = {
    {"saxpy_1m", saxpy, saxpy_check},
    {"matmul_256", matmul, matmul_check},
    {"mandelbrot_512", mandelbrot, mandelbrot_check},
    {"reduce_1m", reduce, reduce_check},
    {"histogram_1m", histogram, histogram_check},
    {"nbody_1024", nbody, nbody_check},
    {"softmax_256x1024", softmax, softmax_check},
    {"sha256_16k", sha256, sha256_check},
};

static double milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The same data before each benchmark, whichever ran before. */
static void fill(void)
{
    uint32_t state = 1;
    for (int i = 0; i < MILLION; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / (1 << 24);
        y[i] = (float)(state & 0xffff) / (1 << 16);
        bytes[i] = (uint8_t)(state >> 24);
    }
}

static void measure(const struct benchmark *benchmark)
{
    enum { MOST = 400, FEWEST = 15 };
    double times[MOST], start = milliseconds();
    int runs = 0;
    fill();
    benchmark->run();
    double check = benchmark->check();
    while (milliseconds() - start < 50) /* warm-up */
        benchmark->run();
    start = milliseconds();
    while (runs < MOST && (runs < FEWEST || milliseconds() - start < 400)) {
        double before = milliseconds();
        benchmark->run();
        times[runs++] = milliseconds() - before;
    }
    qsort(times, (size_t)runs, sizeof times[0], by_value);
    printf("{\"name\": \"%s\", \"variant\": \"%s\", \"value\": %.6f, \"unit\": \"ms\", \"median\": %.6f, \"worst\": %.6f, "
           "\"runs\": %d, \"check\": %.17g}\n",
        benchmark->name, VARIANT, times[0], times[runs / 2], times[runs - 1], runs, check);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    x = aligned_alloc(64, MILLION * sizeof *x);
    y = aligned_alloc(64, MILLION * sizeof *y);
    z = aligned_alloc(64, MILLION * sizeof *z);
    counts = aligned_alloc(64, MILLION * sizeof *counts);
    bytes = aligned_alloc(64, MILLION);
    if (!x || !y || !z || !counts || !bytes)
        return 1;
    memset(z, 0, MILLION * sizeof *z);
    memset(counts, 0, MILLION * sizeof *counts);
    for (size_t i = 0; i < sizeof BENCHMARKS / sizeof BENCHMARKS[0]; i++) {
        int wanted = argc == 1;
        for (int a = 1; a < argc; a++)
            wanted |= strcmp(argv[a], BENCHMARKS[i].name) == 0;
        if (wanted)
            measure(&BENCHMARKS[i]);
    }
    return 0;
}
