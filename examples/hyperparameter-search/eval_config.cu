// One chunk of the search: train a small classifier with one configuration, give its validation loss.
//
// The model has 2 inputs, 8 hidden units (softsign) and 1 output (sigmoid), and learns to tell two
// half moons apart by mini-batch gradient descent with dropout on the hidden units. A block has 256
// threads: thread = unit * 32 + lane, so a pass takes 32 samples through all 8 units at once.
//
// Nothing is left to chance: initial weights and dropout masks are hashes of their position, and every
// sum has a fixed order (no float atomics), so a configuration always gives the same loss.

#define DATA __constant__
#include "dataset.h"

#define UNITS 8
#define LANES 32
#define THREADS (UNITS * LANES)
#define EPOCHS 6
// Trained values: two input weights, a bias and an output weight for each unit, then the output's bias.
#define VALUES (4 * UNITS + 1)

__device__ __forceinline__ unsigned mix(unsigned x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

// In [0, 1), a multiple of 2^-24: exact in float.
__device__ __forceinline__ float uniform(unsigned position)
{
    return (float)(mix(position) >> 8) * 5.9604645e-8f;
}

__device__ __forceinline__ float softsign(float z)
{
    return z / (1.0f + fabsf(z));
}

extern "C" __global__ void eval_config(float *output, float learningRate, unsigned batchSize, float dropout)
{
    __shared__ float value[VALUES];
    __shared__ float contribution[UNITS][LANES];
    __shared__ float delta[LANES];
    // One more column than lanes: the threads that add up rows then use different banks.
    __shared__ float gradient[VALUES][LANES + 1];
    __shared__ float loss[THREADS];

    unsigned thread = threadIdx.x;
    unsigned unit = thread / LANES, lane = thread % LANES;
    float keptScale = 1.0f / (1.0f - dropout);
    if (batchSize == 0)
        batchSize = 1;
    if (batchSize > TRAIN_COUNT)
        batchSize = TRAIN_COUNT;

    if (thread < VALUES)
        value[thread] = thread < VALUES - 1 ? 2.0f * uniform(thread + 1) - 1.0f : 0.0f;
    __syncthreads();

    unsigned stride = 1; // 3^epoch: prime to TRAIN_COUNT, so each epoch visits every sample once
    for (unsigned epoch = 0; epoch < EPOCHS; epoch++) {
        for (unsigned begin = 0; begin < TRAIN_COUNT; begin += batchSize) {
            unsigned size = min(batchSize, TRAIN_COUNT - begin);
            float weightX = value[unit], weightY = value[UNITS + unit];
            float bias = value[2 * UNITS + unit], weightOut = value[3 * UNITS + unit];
            float sumX = 0, sumY = 0, sumBias = 0, sumOut = 0, sumOutBias = 0;

            for (unsigned done = 0; done < size; done += LANES) {
                unsigned place = begin + done + lane;
                bool active = done + lane < size;
                const float *sample = TRAIN[place * stride % TRAIN_COUNT];
                float x = sample[0], y = sample[1];

                float hidden = softsign(weightX * x + weightY * y + bias);
                bool kept = uniform((1 + epoch * TRAIN_COUNT + place) * 64 + unit) >= dropout;
                float scale = kept ? keptScale : 0.0f;
                contribution[unit][lane] = weightOut * scale * hidden;
                __syncthreads();

                if (unit == 0) {
                    float logit = value[VALUES - 1];
                    for (unsigned u = 0; u < UNITS; u++)
                        logit += contribution[u][lane];
                    float probability = 1.0f / (1.0f + expf(-logit));
                    delta[lane] = active ? probability - sample[2] : 0.0f;
                }
                __syncthreads();

                float error = delta[lane];
                float flatness = 1.0f - fabsf(hidden);
                float slope = error * weightOut * scale * flatness * flatness;
                sumX += slope * x;
                sumY += slope * y;
                sumBias += slope;
                sumOut += error * scale * hidden;
                sumOutBias += error;
            }

            gradient[unit][lane] = sumX;
            gradient[UNITS + unit][lane] = sumY;
            gradient[2 * UNITS + unit][lane] = sumBias;
            gradient[3 * UNITS + unit][lane] = sumOut;
            if (unit == 0)
                gradient[VALUES - 1][lane] = sumOutBias;
            __syncthreads();
            if (thread < VALUES) {
                float sum = 0;
                for (unsigned l = 0; l < LANES; l++)
                    sum += gradient[thread][l];
                value[thread] -= learningRate * sum / (float)size;
            }
            __syncthreads();
        }
        stride *= 3;
    }

    // Validation: one sample a thread, no dropout, cross-entropy from the logit.
    const float *sample = VALIDATION[thread];
    float logit = value[VALUES - 1];
    for (unsigned u = 0; u < UNITS; u++)
        logit += value[3 * UNITS + u]
            * softsign(value[u] * sample[0] + value[UNITS + u] * sample[1] + value[2 * UNITS + u]);
    loss[thread] = fmaxf(logit, 0.0f) - logit * sample[2] + logf(1.0f + expf(-fabsf(logit)));
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half >>= 1) {
        if (thread < half)
            loss[thread] += loss[thread + half];
        __syncthreads();
    }
    if (thread == 0)
        *output = loss[0] / VALIDATION_COUNT;
}
