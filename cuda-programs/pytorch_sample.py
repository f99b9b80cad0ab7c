"""PyTorch: tensors on the device and back. Its own kernels are machine code, and must say so."""

import torch


def main() -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    zeros = torch.zeros(10, 10).to("cuda:0")
    assert zeros.device == torch.device("cuda:0") and torch.equal(zeros.cpu(), torch.zeros(10, 10))
    values = torch.arange(1_000_000, dtype=torch.float64)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        there = values.pin_memory().to("cuda", non_blocking=True)
        copy = there.clone()
    stream.synchronize()
    assert torch.equal(copy.cpu(), values) and torch.cuda.memory_allocated() >= 2 * values.nbytes
    try:
        there + 1
        raise AssertionError("there is no machine code for this device")
    except RuntimeError as error:
        assert "no kernel image is available" in str(error), error
    print(torch.__version__, torch.cuda.get_device_name(), "is right")


if __name__ == "__main__":
    main()
