"""Bit-for-bit equality of arrays that are compressed in transit."""

import pathlib
import tomllib

import numpy as np
import pytest

import sahasra

SIZE = 3 << 20


def arrays():
    random = np.random.default_rng(0)
    return {
        "zeros": np.zeros(SIZE, np.float32),
        "one-hot": np.eye(1000, dtype=np.float32),
        "tokens": random.integers(0, 50257, SIZE, np.int32),
        "indices": np.arange(SIZE // 2, dtype=np.uint32),
        "mask": random.random(SIZE) < 0.01,
        "image": np.repeat(random.integers(0, 256, SIZE // 16, np.uint8), 16),
        "halves": random.standard_normal(SIZE, np.float32).astype(np.float16),
        "weights": random.standard_normal(SIZE // 2, np.float32),
        "complex": random.integers(0, 5, SIZE // 4).astype(np.complex64),
        "noise": random.integers(0, 256, SIZE, np.uint8),
        "odd": np.arange(1_234_567, dtype=np.int16) // 7,
        "scalar": np.float32(3),
        "none": np.zeros((0, 4), np.float32),
    }


@pytest.mark.parametrize("compression", ["adaptive", "always", "never"])
def test_arrays_are_downloaded_bit_for_bit(client, pool, compression):
    with sahasra.RemoteJaxSession.create(client, gpu_class=pool.gpu_class, vram="512Mi", compression=compression) as session:
        for name, array in arrays().items():
            before = session.traffic
            tensor = session.put(array)
            back = tensor.numpy()
            assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes()), name
            after = session.traffic
            sent, received = after.sent_bytes - before.sent_bytes, after.received_bytes - before.received_bytes
            if compression == "never":
                assert min(sent, received) >= array.nbytes, name
            if compression == "always" and name in ("zeros", "one-hot", "tokens", "indices", "mask", "image", "complex", "odd"):
                assert max(sent, received) < 0.8 * array.nbytes, f"{name}: {sent} there, {received} back, of {array.nbytes}"
            del tensor


def test_compressed_transfers_survive_broken_connections(worker):
    with worker.connect(compression="always") as session:
        array = np.arange(8 << 20, dtype=np.int32) // 3
        for _ in range(6):
            tensor = session.put(array)
            worker.cut()
            assert tensor.numpy().tobytes() == array.tobytes()
            del tensor
        assert session._native.resumed() >= 1
        assert session.traffic.sent_bytes < 0.8 * 6 * array.nbytes


def test_an_unknown_compression_mode_is_rejected(client):
    with pytest.raises(sahasra.InvalidArgumentError, match="compression"):
        sahasra.RemoteJaxSession.create(client, compression="zip")  # type: ignore[arg-type]


@pytest.mark.parametrize("package", ["lz4_flex", "sahasra-wire"])
def test_the_package_of_the_development_environment_compresses_with_optimised_code(package):
    workspace = tomllib.loads((pathlib.Path(__file__).parents[2] / "Cargo.toml").read_text())
    assert workspace["profile"]["dev"]["package"][package]["opt-level"] == 3
