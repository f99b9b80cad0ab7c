import struct

import numpy as np
import pytest

from sahasra.burst import spec_of
from sahasra.errors import InvalidArgumentError
from sahasra.kernel import parameters_of, scalar_bytes

PTX = """
.version 7.0
.target sm_70
.address_size 64
// .entry not_this(.param .u64 x)
.visible .entry saxpy(
    .param .u64 saxpy_param_0, /* y */
    .param .u64 .ptr .global .align 4 saxpy_param_1,
    .param .f32 saxpy_param_2,
    .param .align 8 .b8 saxpy_param_3[16]
)
{ ret; }
.visible .entry saxpy_all(){ ret; }
"""
SCORE = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry score(.param .u64 o, .param .f32 rate, .param .u32 size){ ret; }"


def test_parameters_are_read_from_the_text():
    assert parameters_of(PTX, "saxpy") == ["u64", "u64", "f32", "b8[16]"]
    assert parameters_of(PTX, "saxpy_all") == []
    with pytest.raises(InvalidArgumentError, match="it has: saxpy, saxpy_all"):
        parameters_of(PTX, "not_this")


def test_scalars_become_the_parameter_s_bytes():
    assert scalar_bytes(2.0, "f32") == struct.pack("<f", 2.0)
    assert scalar_bytes(2, "f64") == struct.pack("<d", 2.0)
    assert scalar_bytes(-1, "s32") == struct.pack("<i", -1)
    assert scalar_bytes(np.uint64(7), "u64") == struct.pack("<Q", 7)
    assert scalar_bytes(b"12345678", "b8[8]") == b"12345678"


@pytest.mark.parametrize(("value", "kind"), [(1.5, "u32"), (-1, "u32"), (1 << 40, "s32"), ("a", "f32"), (b"1", "b8[8]"), (np.ones(2), "f32")])
def test_scalars_that_do_not_fit_are_refused(value, kind):
    with pytest.raises(InvalidArgumentError):
        scalar_bytes(value, kind)


def test_a_burst_takes_columns_in_the_kernel_s_order():
    spec = spec_of(SCORE, {"rate": np.array([0.5, 1.5]), "size": [3, 4]}, aggregate="argmin", slices=2)
    assert spec["kernel"]["args"] == [{"output": {"type": "f32", "count": 1}}, {"parameter": "rate"}, {"parameter": "size"}]
    assert spec["chunks"] == {"count": 2, "parameters": {"rate": {"type": "f32", "list": [0.5, 1.5]}, "size": {"type": "u32", "list": [3, 4]}}}
    assert spec["aggregate"] == {"argmin": {"output": 0}}
    assert spec["slices"] == {"min": 1, "max": 2}


def test_a_burst_that_does_not_fit_is_refused():
    with pytest.raises(InvalidArgumentError, match="one length"):
        spec_of(SCORE, {"rate": [1.0], "size": [1, 2]})
    with pytest.raises(InvalidArgumentError, match="takes 3 arguments"):
        spec_of(SCORE, {"rate": [1.0]})
    with pytest.raises(InvalidArgumentError, match="4,096"):
        spec_of(SCORE, {"rate": np.ones(5000), "size": np.ones(5000, int)})
    with pytest.raises(InvalidArgumentError, match="2 kernels"):
        spec_of(PTX, {"x": [1]})
    with pytest.raises(InvalidArgumentError, match="no aggregate"):
        spec_of(SCORE, {"rate": [1.0], "size": [1]}, aggregate="median")
