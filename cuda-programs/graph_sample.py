"""cuda-core: streams captured by its graph builder, forked and joined, with children, callbacks and updates."""

import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

from device import check
from cuda.bindings import driver

SOURCE = """
extern "C" __global__ void add(int *out, int value) { atomicAdd(out, value); }
extern "C" __global__ void scale(int *out, int factor) { *out *= factor; }
"""
ONE = LaunchConfig(grid=1, block=1)


class Word:
    """An integer on the device."""

    def __init__(self, device, stream):
        self.buffer = device.allocate(4, stream=stream)
        self.address = int(self.buffer.handle)
        self.value = 0

    @property
    def value(self) -> int:
        found = np.zeros(1, np.int32)
        check(driver.cuMemcpyDtoH(found.ctypes.data, self.address, 4))
        return int(found[0])

    @value.setter
    def value(self, value: int) -> None:
        check(driver.cuMemsetD32(self.address, value, 1))


def forks_and_children(device, stream, add, scale) -> None:
    first, second = Word(device, stream), Word(device, stream)
    stream.sync()
    child = device.create_graph_builder().begin_building()
    launch(child, ONE, scale, second.buffer, np.int32(10))
    child.end_building()
    builder = device.create_graph_builder().begin_building()
    launch(builder, ONE, add, first.buffer, np.int32(1))
    left, right = builder.split(2)
    launch(left, ONE, add, first.buffer, np.int32(2))
    launch(right, ONE, add, second.buffer, np.int32(3))
    right.embed(child)
    builder = type(builder).join(left, right)
    launch(builder, ONE, add, second.buffer, np.int32(1))
    graph = builder.end_building().complete()
    assert (first.value, second.value) == (0, 0)
    graph.upload(stream)
    for _ in range(3):
        graph.launch(stream)
    stream.sync()
    expected = 0
    for _ in range(3):
        expected = (expected + 3) * 10 + 1
    assert (first.value, second.value) == (9, expected), (first.value, second.value)


def callbacks_and_updates(device, stream, add) -> None:
    word, calls = Word(device, stream), []
    stream.sync()

    def build(value: int, callback):
        builder = device.create_graph_builder().begin_building()
        launch(builder, ONE, add, word.buffer, np.int32(value))
        builder.callback(callback)
        launch(builder, ONE, add, word.buffer, np.int32(value))
        return builder.end_building()

    builder = build(1, lambda: calls.append("first"))
    graph = builder.complete()
    graph.launch(stream)
    stream.sync()
    assert (word.value, calls) == (2, ["first"]), (word.value, calls)
    other = build(50, lambda: calls.append("second"))
    graph.update(other)
    for _ in range(2):
        graph.launch(stream)
    stream.sync()
    assert (word.value, calls) == (202, ["first", "second", "second"]), (word.value, calls)


def main() -> None:
    device = Device()
    device.set_current()
    stream = device.create_stream()
    module = Program(SOURCE, code_type="c++", options=ProgramOptions(std="c++17", arch="sm_80")).compile("ptx")
    add, scale = module.get_kernel("add"), module.get_kernel("scale")
    forks_and_children(device, stream, add, scale)
    print("forks and children are right")
    callbacks_and_updates(device, stream, add)
    print("callbacks and updates are right")


if __name__ == "__main__":
    main()
