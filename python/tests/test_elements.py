import ml_dtypes
import numpy as np
import pytest

from sahasra.elements import dense, dtype_of, element_type, native
from sahasra.errors import InvalidArgumentError

NAMES = ["bool", "int8", "uint64", "float16", "bfloat16", "float64", "complex64", "complex128", "float8_e4m3fn"]


@pytest.mark.parametrize("name", NAMES)
def test_types_are_converted_in_both_directions(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    assert dtype_of(element_type(dtype)) == dtype


def test_masked_arrays_are_rejected_and_the_byte_order_is_this_machine_s():
    assert native(np.array([1], ">i4")) == np.dtype(np.int32)
    assert native(np.array([1], "<i4")) == np.dtype("<i4")
    with pytest.raises(InvalidArgumentError, match="filled"):
        native(np.ma.array([1, 2], mask=[0, 1]))


def test_types_that_no_session_holds_are_named():
    with pytest.raises(InvalidArgumentError, match="datetime64"):
        element_type(np.dtype("datetime64[s]"))


def test_dense_arrays_are_not_copied_and_others_are_made_so():
    array = np.arange(6).reshape(2, 3)
    assert dense(array) is array
    assert dense(array.T).flags.c_contiguous
    np.testing.assert_array_equal(dense(array.T), array.T)
    scalar = np.array(3.0)
    assert dense(scalar).shape == ()
    swapped = dense(np.array([1, 2], ">i4"))
    assert swapped.dtype.isnative
    assert swapped.tolist() == [1, 2]
