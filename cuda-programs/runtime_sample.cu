// A program of the CUDA runtime API, compiled by nvcc with PTX only and linked to the shared runtime library.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define OK(call)                                                                                      \
    do {                                                                                              \
        cudaError_t error = (call);                                                                   \
        if (error != cudaSuccess) {                                                                   \
            std::printf("%s: %s (%s)\n", #call, cudaGetErrorName(error), cudaGetErrorString(error)); \
            std::exit(1);                                                                             \
        }                                                                                             \
    } while (0)

__constant__ float scale = 1;
__device__ unsigned additions;

template <class T> __global__ void saxpy(T a, const T *x, T *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = a * scale * x[i] + y[i];
        atomicAdd(&additions, 1);
    }
}

__global__ void sum(const float *values, float *total, int n) {
    extern __shared__ float partial[];
    float mine = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) mine += values[i];
    partial[threadIdx.x] = mine;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *total = partial[0];
}

int main() {
    const int n = 1000;
    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    std::vector<float> host(n);
    for (int i = 0; i < n; i++) host[i] = i;
    float *x, *y, *total, factor = 3, got;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&x, n * sizeof *x));
    OK(cudaMallocManaged(&y, n * sizeof *y));
    OK(cudaMallocAsync(&total, sizeof *total, stream));
    OK(cudaMemcpyAsync(x, host.data(), n * sizeof *x, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyToSymbol(scale, &factor, sizeof factor));
    for (int i = 0; i < n; i++) y[i] = 1;
    saxpy<<<(n + 255) / 256, 256, 0, stream>>>(2.0f, x, y, n);
    sum<<<1, 128, 128 * sizeof(float), stream>>>(y, total, n);
    OK(cudaGetLastError());
    OK(cudaMemcpyAsync(&got, total, sizeof got, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    unsigned count;
    OK(cudaMemcpyFromSymbol(&count, additions, sizeof count));
    double wanted = 0;
    for (int i = 0; i < n; i++) wanted += 6.0 * i + 1;
    if (std::fabs(got - wanted) > 1e-6 * wanted || count != n) {
        std::printf("%g instead of %g, %u instead of %d\n", got, wanted, count, n);
        return 1;
    }
    // The same work as a graph, launched three times.
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMemsetAsync(y, 0, n * sizeof *y, stream));
    for (int i = 0; i < 5; i++) saxpy<<<(n + 255) / 256, 256, 0, stream>>>(1.0f, x, y, n);
    sum<<<1, 128, 128 * sizeof(float), stream>>>(y, total, n);
    OK(cudaMemcpyAsync(&got, total, sizeof got, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(executable, stream));
    OK(cudaStreamSynchronize(stream));
    wanted = 15.0 * n * (n - 1) / 2;
    if (std::fabs(got - wanted) > 1e-6 * wanted) {
        std::printf("%g instead of %g by a graph\n", got, wanted);
        return 1;
    }
    OK(cudaGraphExecDestroy(executable));
    OK(cudaGraphDestroy(graph));
    saxpy<<<1, 2048>>>(2.0f, x, y, n);
    if (cudaGetLastError() != cudaErrorInvalidConfiguration) return 1;
    std::printf("%s %d.%d is right\n", properties.name, properties.major, properties.minor);
    return 0;
}
