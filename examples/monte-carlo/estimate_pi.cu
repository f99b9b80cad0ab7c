// One chunk of the estimate: throw points into the unit square, count those inside the quarter circle.
//
// Points are hashes of (seed, chunk, thread, sample) on a grid of 2^15 x 2^15 cell centres, and all
// arithmetic is on integers, so that a count is the same on every device. A count times 4 over the
// number of points is the chunk's own estimate of pi: exact in float when that number is a power of two.

#define THREADS 256

__device__ __forceinline__ unsigned mix(unsigned x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

extern "C" __global__ void estimate_pi(float *estimate, unsigned *inside, unsigned chunk, unsigned samplesPerThread,
    unsigned seed)
{
    __shared__ unsigned counts[THREADS];
    unsigned thread = threadIdx.x;
    unsigned first = seed + (chunk * THREADS + thread) * samplesPerThread;

    unsigned count = 0;
    for (unsigned i = 0; i < samplesPerThread; i++) {
        unsigned bits = mix(first + i);
        // Twice the coordinates of a cell's centre: odd numbers below 2^16; the circle's radius is then 2^16.
        unsigned x = 2 * (bits & 0x7fff) + 1, y = 2 * (bits >> 17) + 1;
        // x * x + y * y < 2^32, without leaving 32 bits
        if (x * x < 0u - y * y)
            count++;
    }

    counts[thread] = count;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half >>= 1) {
        if (thread < half)
            counts[thread] += counts[thread + half];
        __syncthreads();
    }
    if (thread == 0) {
        *inside = counts[0];
        *estimate = 4.0f * (float)counts[0] / (float)(THREADS * samplesPerThread);
    }
}
