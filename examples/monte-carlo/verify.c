/* Host check of the estimate of pi, independent of the kernel and of any GPU.
 *
 *     cc -std=c11 -O2 verify.c -lm -o verify
 *     ./verify results.csv MEAN [CONFIDENCE95]     checks what a burst gave
 *     ./verify --expect                            prints the rows that a burst should give
 *
 * Throws the same points again, tests them with 64-bit integers, and reads
 * `index,output0,output1` (the chunk's estimate of pi, its points inside), one row a chunk in any order.
 * Counts and estimates must be exact. The mean, and if given its 95 % confidence interval (the normal
 * deviate 1.96, or Student's t, which is 1.969 at 255 degrees of freedom), must be those of the rows
 * within rounding; and pi must lie within four standard errors of the mean.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS = 256, THREADS = 256, SAMPLES_PER_THREAD = 64 };
static const uint32_t SEED = 20240229;
static const double PI = 3.14159265358979323846;

static uint32_t mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * UINT32_C(0x7feb352d);
    x = (x ^ (x >> 15)) * UINT32_C(0x846ca68b);
    return x ^ (x >> 16);
}

static uint32_t points_inside(uint32_t chunk)
{
    uint32_t points = THREADS * SAMPLES_PER_THREAD, inside = 0;
    for (uint32_t i = 0; i < points; i++) {
        uint32_t bits = mix(SEED + chunk * points + i);
        uint64_t x = 2 * (uint64_t)(bits & 0x7fff) + 1, y = 2 * (uint64_t)(bits >> 17) + 1;
        inside += x * x + y * y < UINT64_C(1) << 32;
    }
    return inside;
}

static double estimate_of(uint32_t inside) { return 4.0 * inside / (THREADS * SAMPLES_PER_THREAD); }

static int check(FILE *file, double claimed_mean, double claimed_interval)
{
    int failures = 0, seen[CHUNKS] = {0};
    char text[256];
    if (!fgets(text, sizeof text, file) || strncmp(text, "index,output0,output1", 21) != 0) {
        fprintf(stderr, "results line 1: not the header index,output0,output1\n");
        return 1;
    }
    for (long line = 2; fgets(text, sizeof text, file); line++) {
        int index, end = 0;
        unsigned inside;
        double estimate;
        if (sscanf(text, "%d,%lf,%u %n", &index, &estimate, &inside, &end) != 3 || text[end] != '\0' || index < 0
            || index >= CHUNKS) {
            fprintf(stderr, "results line %ld: not three numbers with an index below %d: %s", line, CHUNKS, text);
            return 1;
        }
        uint32_t want = points_inside((uint32_t)index);
        if (inside != want) {
            failures++;
            fprintf(stderr, "results line %ld: %u points inside, expected %" PRIu32 "\n", line, inside, want);
        }
        /* A float whose shortest text may be off by half a unit in its last place: read back, it is the same float. */
        if ((float)estimate != (float)estimate_of(want)) {
            failures++;
            fprintf(stderr, "results line %ld: estimate %.9g, expected %.9g\n", line, estimate, estimate_of(want));
        }
        seen[index]++;
    }
    double sum = 0, squares = 0;
    for (int i = 0; i < CHUNKS; i++) {
        if (seen[i] != 1) {
            failures++;
            fprintf(stderr, "index %d occurs %d times, not once\n", i, seen[i]);
        }
        sum += estimate_of(points_inside((uint32_t)i));
    }
    double mean = sum / CHUNKS;
    for (int i = 0; i < CHUNKS; i++)
        squares += pow(estimate_of(points_inside((uint32_t)i)) - mean, 2);
    double standard_error = sqrt(squares / (CHUNKS - 1) / CHUNKS);
    if (!(fabs(claimed_mean - mean) <= 1e-6)) {
        failures++;
        fprintf(stderr, "the mean is claimed to be %.9g and is %.9g\n", claimed_mean, mean);
    }
    if (!isnan(claimed_interval) && !(claimed_interval >= 1.955 * standard_error && claimed_interval <= 1.975 * standard_error)) {
        failures++;
        fprintf(stderr, "the 95 %% interval is claimed to be %.6g and is %.6g\n", claimed_interval, 1.96 * standard_error);
    }
    if (!(fabs(mean - PI) <= 4 * standard_error)) {
        failures++;
        fprintf(stderr, "%.6f is too far from pi for a standard error of %.6f\n", mean, standard_error);
    }
    if (failures) {
        fprintf(stderr, "%d differences\n", failures);
        return 1;
    }
    printf("%d counts agree with the host exactly\npi = %.6f +- %.6f (95 %%), off by %.6f\n", CHUNKS, mean,
        1.96 * standard_error, fabs(mean - PI));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--expect") == 0) {
        printf("index,output0,output1\n");
        for (uint32_t i = 0; i < CHUNKS; i++) {
            uint32_t inside = points_inside(i);
            printf("%" PRIu32 ",%.17g,%" PRIu32 "\n", i, estimate_of(inside), inside);
        }
        return 0;
    }
    double claimed[2] = {NAN, NAN};
    for (int i = 2; i < argc && i < 4; i++) {
        char *end;
        claimed[i - 2] = strtod(argv[i], &end);
        if (end == argv[i] || *end != '\0' || isnan(claimed[i - 2]))
            argc = 0;
    }
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: verify RESULTS.csv MEAN [CONFIDENCE95] | verify --expect\n");
        return 2;
    }
    FILE *file = fopen(argv[1], "r");
    if (!file) {
        perror(argv[1]);
        return 2;
    }
    int result = check(file, claimed[0], claimed[1]);
    fclose(file);
    return result;
}
