"""Arguments of `create` and of clients, and errors about tokens, without a pool."""

import numpy as np
import pytest

import sahasra
from sahasra.arguments import seconds_of, vram_of

#: Nothing listens there: whatever is sent raises `ConnectionLostError`.
NOWHERE = "http://127.0.0.1:1"


def create(client=None, **options):
    sahasra.RemoteJaxSession.create(sahasra.SahasraClient(NOWHERE, token="t") if client is None else client, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"client": "http://127.0.0.1:8000"}, r'argument `client` must be a SahasraClient, such as SahasraClient\("http://127.0.0.1:8000"\), not \'http'),
        ({"vram": 512}, 'argument `vram` must be text such as "512Mi", not 512: write a whole number with the unit Ki, Mi, Gi or Ti'),
        ({"vram": "1GB"}, "argument `vram` must be a whole number with the unit Ki, Mi, Gi or Ti, such as \"512Mi\", not '1GB'"),
        ({"vram": "1.5Gi"}, "argument `vram` must be a whole number with the unit"),
        ({"vram": None}, "argument `vram` must be text"),
        ({"gpu_class": 5}, 'argument `gpu_class` must be the name of a class of devices, such as "g5", or None for any, not 5'),
        ({"grace_seconds": -1}, "argument `grace_seconds` must be a number of seconds from 0, such as 60, not -1"),
        ({"grace_seconds": "60"}, "argument `grace_seconds` must be .*not '60'"),
        ({"grace_seconds": float("nan")}, "argument `grace_seconds` must be .*not nan"),
        ({"wait_seconds": None}, "argument `wait_seconds` must be"),
        ({"progress": 5}, "argument `progress` must be True, False, None, or a function of one argument, such as print, not 5"),
        ({"compression": "zip"}, "argument `compression` must be .*not 'zip'"),
    ],
)
def test_arguments_of_create_are_checked_before_anything_is_sent(options, told):
    with pytest.raises(sahasra.InvalidArgumentError, match=told):
        create(**options)


def test_arguments_of_create_that_fit_are_sent():
    for options in ({}, {"gpu_class": "g5", "vram": "1Gi", "progress": print}, {"grace_seconds": np.float32(1), "progress": np.True_}):
        with pytest.raises(sahasra.ConnectionLostError):
            create(**options, wait_seconds=0.1)
    assert [vram_of(f"1{unit}") for unit in ("Ki", "Mi", "Gi", "Ti")] == ["1Ki", "1Mi", "1Gi", "1Ti"]
    assert (seconds_of("x", 0), seconds_of("x", np.int64(3)), seconds_of("x", 1.5)) == (0.0, 3.0, 1.5)


def test_a_burst_checks_vram_and_timeout():
    pytest.importorskip("pandas")
    client = sahasra.SahasraClient(NOWHERE, token="t")
    text = ".entry k(.param .u64 o, .param .f32 a){ ret; }"
    for options in ({"vram": "1GB"}, {"vram": 5}, {"timeout_seconds": None}, {"timeout_seconds": -1}):
        with pytest.raises(sahasra.InvalidArgumentError, match=f"argument `{next(iter(options))}` must be"):
            client.burst(ptx=text, parameters={"a": [1.0]}, **options)
