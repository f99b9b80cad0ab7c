"""cuda-bindings: a kernel compiled by NVRTC for compute capability 8.0, launched with arguments of several types."""

import ctypes

import numpy as np
from cuda.bindings import driver, nvrtc

import device
from device import check

SOURCE = rb"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaf(a, x[i], y[i]);
}
"""


def main() -> None:
    device.start()
    program = check(nvrtc.nvrtcCreateProgram(SOURCE, b"saxpy.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"]))
    ptx = b" " * check(nvrtc.nvrtcGetPTXSize(program))
    check(nvrtc.nvrtcGetPTX(program, ptx))
    module = check(driver.cuModuleLoadData(np.char.array(ptx).ctypes.data))
    kernel = check(driver.cuModuleGetFunction(module, b"saxpy"))
    n = 100_000
    x = device.Array(np.arange(n, dtype=np.float32))
    y = device.Array(np.ones(n, np.float32))
    stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    values = (2.0, x.data_ptr(), y.data_ptr(), n)
    types = (ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong)
    check(driver.cuLaunchKernel(kernel, -(-n // 256), 1, 1, 256, 1, 1, 0, stream, (values, types), 0))
    check(driver.cuStreamSynchronize(stream))
    np.testing.assert_array_equal(y.get(), 2 * np.arange(n, dtype=np.float32) + 1)
    print("saxpy is right")


if __name__ == "__main__":
    main()
