/* Host check of the hyperparameter search, independent of the kernel and of any GPU.
 *
 *     cc -std=c11 -O2 -ffp-contract=off verify.c -lm -o verify
 *     ./verify results.csv BEST_INDEX      checks what a burst gave
 *     ./verify --expect                    prints the rows that a burst should give
 *
 * It trains all 1000 configurations again, one sample after the other and in double precision, then
 * reads the columns index, learningRate, batchSize, dropout and output0, one row a chunk in any order, and
 * exits with 0 only if every index is there once, its parameters are those of the formulas, its loss is within
 * TOLERANCE, and BEST_INDEX is the smallest loss. Only the data and the definition of the model are
 * shared with the kernel.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA static const
#include "dataset.h"

enum { CHUNKS = 1000, UNITS = 8, EPOCHS = 6 };

/* Single precision strays from double by 4e-7 at most here (measured with and without fused
 * multiply-add); the best configuration leads the next by 0.016. */
static const double TOLERANCE = 1e-5;

struct configuration {
    float learning_rate;
    uint32_t batch_size;
    float dropout;
};

struct network {
    double weight_x[UNITS], weight_y[UNITS], bias[UNITS], weight_out[UNITS], bias_out;
};

/* The formulas of burst.yaml. */
static struct configuration configuration_of(int index)
{
    return (struct configuration){
        .learning_rate = (float)(0.1 * (1.0 + (double)(index % 100) * 0.6)),
        .batch_size = 32u * (1u + (uint32_t)index / 100u),
        .dropout = (float)(0.1 + (double)(index % 10) * 0.05),
    };
}

static double uniform(uint32_t position)
{
    uint32_t x = position;
    x = (x ^ (x >> 16)) * UINT32_C(0x7feb352d);
    x = (x ^ (x >> 15)) * UINT32_C(0x846ca68b);
    x ^= x >> 16;
    return ldexp((double)(x >> 8), -24);
}

static double softsign(double z) { return z / (1 + fabs(z)); }

static void descend(struct network *net, const struct network *sum, double rate)
{
    for (int u = 0; u < UNITS; u++) {
        net->weight_x[u] -= rate * sum->weight_x[u];
        net->weight_y[u] -= rate * sum->weight_y[u];
        net->bias[u] -= rate * sum->bias[u];
        net->weight_out[u] -= rate * sum->weight_out[u];
    }
    net->bias_out -= rate * sum->bias_out;
}

static double validation_loss(struct configuration c)
{
    struct network net = {.bias_out = 0};
    for (uint32_t u = 0; u < UNITS; u++) {
        net.weight_x[u] = 2 * uniform(1 + u) - 1;
        net.weight_y[u] = 2 * uniform(1 + UNITS + u) - 1;
        net.bias[u] = 2 * uniform(1 + 2 * UNITS + u) - 1;
        net.weight_out[u] = 2 * uniform(1 + 3 * UNITS + u) - 1;
    }
    uint32_t stride = 1;
    for (uint32_t epoch = 0; epoch < EPOCHS; epoch++, stride *= 3) {
        struct network sum = {.bias_out = 0};
        uint32_t in_batch = 0;
        for (uint32_t place = 0; place < TRAIN_COUNT; place++) {
            const float *s = TRAIN[place * stride % TRAIN_COUNT];
            double hidden[UNITS], scale[UNITS], logit = net.bias_out;
            for (uint32_t u = 0; u < UNITS; u++) {
                hidden[u] = softsign(net.weight_x[u] * s[0] + net.weight_y[u] * s[1] + net.bias[u]);
                double draw = uniform((1 + epoch * TRAIN_COUNT + place) * 64 + u);
                scale[u] = draw >= c.dropout ? 1 / (1 - (double)c.dropout) : 0;
                logit += net.weight_out[u] * scale[u] * hidden[u];
            }
            double error = 1 / (1 + exp(-logit)) - s[2];
            for (int u = 0; u < UNITS; u++) {
                double slope = error * net.weight_out[u] * scale[u] * pow(1 - fabs(hidden[u]), 2);
                sum.weight_x[u] += slope * s[0];
                sum.weight_y[u] += slope * s[1];
                sum.bias[u] += slope;
                sum.weight_out[u] += error * scale[u] * hidden[u];
            }
            sum.bias_out += error;
            if (++in_batch == c.batch_size || place + 1 == TRAIN_COUNT) {
                descend(&net, &sum, (double)c.learning_rate / in_batch);
                sum = (struct network){.bias_out = 0};
                in_batch = 0;
            }
        }
    }
    double loss = 0;
    for (int i = 0; i < VALIDATION_COUNT; i++) {
        const float *s = VALIDATION[i];
        double logit = net.bias_out;
        for (int u = 0; u < UNITS; u++)
            logit += net.weight_out[u] * softsign(net.weight_x[u] * s[0] + net.weight_y[u] * s[1] + net.bias[u]);
        loss += fmax(logit, 0) - logit * s[2] + log1p(exp(-fabs(logit)));
    }
    return loss / VALIDATION_COUNT;
}

static int failures;

static void fail(const char *what, long line, double got, double want)
{
    if (++failures <= 10)
        fprintf(stderr, "results line %ld: %s is %.9g, expected %.9g\n", line, what, got, want);
}

enum { INDEX, LEARNING_RATE, BATCH_SIZE, DROPOUT, OUTPUT, COLUMNS };
static const char *const NAMES[COLUMNS] = {"index", "learningRate", "batchSize", "dropout", "output0"};

/* Says in `kind` what each column is; the parameters may stand in any order. */
static void read_header(char *text, int kind[COLUMNS])
{
    int count = 0, found = 0;
    for (char *name = strtok(text, ",\r\n"); name; name = strtok(NULL, ",\r\n"), count++)
        for (int k = 0; k < COLUMNS; k++)
            if (strcmp(name, NAMES[k]) == 0 && count < COLUMNS) {
                kind[count] = k;
                found |= 1 << k;
            }
    if (count != COLUMNS || found != (1 << COLUMNS) - 1) {
        fprintf(stderr, "results line 1: the columns are not index, learningRate, batchSize, dropout, output0\n");
        exit(1);
    }
}

/* Reads the rows into `loss` and counts in `seen` how often each index occurs. */
static void read_results(FILE *file, const double *expected, double *loss, int *seen)
{
    char text[256] = "";
    int kind[COLUMNS];
    read_header(fgets(text, sizeof text, file) ? text : (char[]){""}, kind);
    for (long line = 2; fgets(text, sizeof text, file); line++) {
        double cell[COLUMNS], value[COLUMNS];
        int end = 0;
        if (sscanf(text, "%lf,%lf,%lf,%lf,%lf %n", &cell[0], &cell[1], &cell[2], &cell[3], &cell[4], &end) == COLUMNS)
            for (int column = 0; column < COLUMNS; column++)
                value[kind[column]] = cell[column];
        if (end == 0 || text[end] != '\0' || !(value[INDEX] >= 0 && value[INDEX] < CHUNKS) || value[INDEX] != floor(value[INDEX])) {
            fprintf(stderr, "results line %ld: not five numbers with an index below %d: %s", line, CHUNKS, text);
            exit(1);
        }
        int index = (int)value[INDEX];
        struct configuration c = configuration_of(index);
        if (!(fabs(value[LEARNING_RATE] - c.learning_rate) <= 1e-6 * c.learning_rate))
            fail("learningRate", line, value[LEARNING_RATE], c.learning_rate);
        if (value[BATCH_SIZE] != c.batch_size)
            fail("batchSize", line, value[BATCH_SIZE], c.batch_size);
        if (!(fabs(value[DROPOUT] - c.dropout) <= 1e-6 * c.dropout))
            fail("dropout", line, value[DROPOUT], c.dropout);
        if (!(fabs(value[OUTPUT] - expected[index]) <= TOLERANCE)) /* refuses NaN too */
            fail("output0", line, value[OUTPUT], expected[index]);
        loss[index] = value[OUTPUT];
        seen[index]++;
    }
}

static int smallest(const double *loss)
{
    int best = 0;
    for (int i = 1; i < CHUNKS; i++)
        if (loss[i] < loss[best])
            best = i;
    return best;
}

static void print_expected(const double *expected)
{
    printf("index,learningRate,batchSize,dropout,output0\n");
    for (int i = 0; i < CHUNKS; i++) {
        struct configuration c = configuration_of(i);
        printf("%d,%.9g,%" PRIu32 ",%.9g,%.9g\n", i, c.learning_rate, c.batch_size, c.dropout, expected[i]);
    }
}

int main(int argc, char **argv)
{
    static double expected[CHUNKS], loss[CHUNKS];
    static int seen[CHUNKS];
    for (int i = 0; i < CHUNKS; i++)
        expected[i] = validation_loss(configuration_of(i));
    if (argc == 2 && strcmp(argv[1], "--expect") == 0) {
        print_expected(expected);
        return 0;
    }
    char *end = NULL;
    long claimed = argc == 3 ? strtol(argv[2], &end, 10) : -1;
    if (argc != 3 || end == argv[2] || *end != '\0') {
        fprintf(stderr, "usage: verify RESULTS.csv BEST_INDEX | verify --expect\n");
        return 2;
    }
    FILE *file = fopen(argv[1], "r");
    if (!file) {
        perror(argv[1]);
        return 2;
    }
    read_results(file, expected, loss, seen);
    fclose(file);
    double furthest = 0;
    for (int i = 0; i < CHUNKS; i++) {
        if (seen[i] != 1) {
            failures++;
            fprintf(stderr, "index %d occurs %d times, not once\n", i, seen[i]);
        }
        furthest = fmax(furthest, fabs(loss[i] - expected[i]));
    }

    int best = smallest(expected);
    for (int i = 0; i < CHUNKS; i++)
        if (i != best && expected[i] - expected[best] < 4 * TOLERANCE) {
            failures++;
            fprintf(stderr, "configuration %d is too close to the best to tell apart\n", i);
        }
    if (claimed != best) {
        failures++;
        fprintf(stderr, "the best index is claimed to be %ld and is %d\n", claimed, best);
    }
    if (failures) {
        fprintf(stderr, "%d differences\n", failures);
        return 1;
    }
    struct configuration c = configuration_of(best);
    printf("%d losses agree with the host (largest difference %.1e, allowed %.0e)\n", CHUNKS, furthest, TOLERANCE);
    printf("best: index %d, learningRate %g, batchSize %" PRIu32 ", dropout %g: validation loss %.6f\n",
        best, c.learning_rate, c.batch_size, c.dropout, loss[best]);
    return 0;
}
