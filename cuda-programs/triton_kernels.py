"""Triton kernels, as its tutorials have them, against NumPy. Each argument names one; without any, all run."""

import sys

import numpy as np
import triton
import triton.language as tl

import device


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    tl.store(out + place, tl.load(x + place, mask=inside) + tl.load(y + place, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + place, mask=place < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + place, powers / tl.sum(powers, axis=0), mask=place < columns)


@triton.jit
def matmul_kernel(a, b, out, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + inner
        left = tl.load(a + rows[:, None] * K + k[None, :], mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + columns[None, :], mask=(k[:, None] < K) & (columns[None, :] < N), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(out + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def layer_norm_kernel(x, out, weight, bias, columns, epsilon, BLOCK: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    inside = place < columns
    values = tl.load(x + row * columns + place, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    result = centred * scale * tl.load(weight + place, mask=inside) + tl.load(bias + place, mask=inside)
    tl.store(out + row * columns + place, result, mask=inside)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape, dtype=np.float32)


def vector_add() -> None:
    n = 98_432
    x, y, out = device.Array(random(n)), device.Array(random(n) * 2), device.Array(np.zeros(n, np.float32))
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    np.testing.assert_array_equal(out.get(), x.get() + y.get())


def softmax() -> None:
    x = random(181, 781)
    out = device.Array(np.zeros_like(x))
    softmax_kernel[(x.shape[0],)](device.Array(x), out, x.shape[1], BLOCK=1024)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out.get(), powers / powers.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7)


def matmul(kind: type, precision: str, tolerance: float) -> None:
    m, n, k = 96, 80, 72
    a, b = random(m, k).astype(kind), random(k, n).astype(kind)
    out = device.Array(np.zeros((m, n), np.float32))
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}
    matmul_kernel[grid](device.Array(a), device.Array(b), out, m, n, k, **blocks, PRECISION=precision)
    np.testing.assert_allclose(out.get(), a.astype(np.float32) @ b.astype(np.float32), rtol=tolerance, atol=tolerance)


def layer_norm() -> None:
    x, weight, bias = random(64, 700), random(700), random(700)
    out = device.Array(np.zeros_like(x))
    layer_norm_kernel[(64,)](device.Array(x), out, device.Array(weight), device.Array(bias), 700, 1e-5, BLOCK=1024)
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(out.get(), wanted, rtol=1e-4, atol=1e-5)


PROGRAMS = {
    "vector-add": vector_add,
    "softmax": softmax,
    "matmul-f32": lambda: matmul(np.float32, "ieee", 1e-4),
    "matmul-tf32": lambda: matmul(np.float32, "tf32", 2e-2),
    "matmul-f16": lambda: matmul(np.float16, "ieee", 1e-3),
    "layer-norm": layer_norm,
}

if __name__ == "__main__":
    device.start()
    for name in sys.argv[1:] or PROGRAMS:
        PROGRAMS[name]()
        print(name, "is right")
