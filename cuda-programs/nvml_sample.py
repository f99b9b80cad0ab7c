"""pynvml: the device as programs that list GPUs see it, beside what the driver says."""

import pynvml
from cuda.bindings import driver

import device
from device import check


def main() -> None:
    ordinal = device.start()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == check(driver.cuDeviceGetCount()) == 1
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    name = check(driver.cuDeviceGetName(64, ordinal)).split(b"\0")[0].decode()
    assert pynvml.nvmlDeviceGetName(handle) == name
    assert pynvml.nvmlDeviceGetUUID(handle).replace("-", "") == "GPU" + bytes(check(driver.cuDeviceGetUuid(ordinal)).bytes).hex()
    taken = check(driver.cuMemAlloc(1 << 20))
    free, total = check(driver.cuMemGetInfo())
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert (memory.free, memory.total, memory.used) == (free, total, total - free) and memory.used >= 1 << 20
    check(driver.cuMemFree(taken))
    try:
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        raise AssertionError("the device has no sensor")
    except pynvml.NVMLError_NotSupported:
        pass
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    pynvml.nvmlShutdown()
    print(name, "is right")


if __name__ == "__main__":
    main()
