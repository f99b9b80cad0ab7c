// One chunk of out = a * x + y over vectors that are cut into equal parts, one part a chunk.
//
// x is the whole vector, shared by all chunks; y holds only this chunk's part; out is this chunk's result.

extern "C" __global__ void saxpy(float *out, const float *x, const float *y, float a, unsigned chunk)
{
    unsigned i = threadIdx.x;
    out[i] = a * x[chunk * blockDim.x + i] + y[i];
}
