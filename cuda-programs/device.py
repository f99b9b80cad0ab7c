"""NumPy arrays in the memory of the CUDA device, by the driver API of cuda-bindings."""

import numpy as np
from cuda.bindings import driver


def check(result):
    """Returns what a call returned behind its result code, which must be success."""
    code, *values = result
    if code:
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


def start() -> int:
    """Initialises the driver and makes the primary context of the first device current. Returns the device."""
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
    return device


class Array:
    """A copy of an array in device memory, with what Triton asks of a tensor."""

    def __init__(self, values: np.ndarray):
        self.shape, self.dtype, self._type = values.shape, str(values.dtype), values.dtype
        values = np.ascontiguousarray(values)
        self.address = check(driver.cuMemAlloc(values.nbytes))
        check(driver.cuMemcpyHtoD(self.address, values.ctypes.data, values.nbytes))

    def data_ptr(self) -> int:
        return int(self.address)

    def get(self) -> np.ndarray:
        """The values, after all work before."""
        values = np.empty(self.shape, self._type)
        check(driver.cuMemcpyDtoH(values.ctypes.data, self.address, values.nbytes))
        return values
