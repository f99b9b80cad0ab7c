"""cuda-core: a C++ template compiled by NVRTC to PTX, launched on a stream on memory of the device."""

import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

from device import check
from cuda.bindings import driver

SOURCE = """
template <typename T> __global__ void add(const T *x, const T *y, T *out, size_t n) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = x[i] + y[i];
}
"""


def main() -> None:
    device = Device()
    device.set_current()
    stream = device.create_stream()
    print(device.name, device.compute_capability)
    options = ProgramOptions(std="c++17", arch="sm_80")
    module = Program(SOURCE, code_type="c++", options=options).compile("ptx", name_expressions=("add<float>", "add<double>"))
    for name, kind in (("add<float>", np.float32), ("add<double>", np.float64)):
        kernel = module.get_kernel(name)
        x = np.arange(50_000, dtype=kind)
        buffers = [device.allocate(x.nbytes, stream=stream) for _ in range(3)]
        for buffer in buffers[:2]:
            check(driver.cuMemcpyHtoD(int(buffer.handle), x.ctypes.data, x.nbytes))
        launch(stream, LaunchConfig(grid=64, block=256), kernel, *buffers, np.uint64(x.size))
        stream.sync()
        out = np.empty_like(x)
        check(driver.cuMemcpyDtoH(out.ctypes.data, int(buffers[2].handle), out.nbytes))
        np.testing.assert_array_equal(out, 2 * x)
        print(name, "is right")


if __name__ == "__main__":
    main()
