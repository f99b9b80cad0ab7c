import json
import pathlib
import struct
import types

import numpy as np
import pytest

import sahasra
from sahasra.burst import _complete, frame_of, spec_of
from sahasra.errors import ExecutionError, InvalidArgumentError, SahasraError, WaitTimeoutError
from sahasra.kernel import RemoteKernel, extent, parameters_of, scalar_bytes
from sahasra.progress import Watch

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
    assert parameters_of(PTX, "saxpy") == [(f"saxpy_param_{place}", kind) for place, kind in enumerate(["u64", "u64", "f32", "b8[16]"])]
    assert parameters_of(PTX, "saxpy_all") == []
    sizes = ".entry k(.param .b8 a[0x10], .param .align 8 .b64 b[ 2 ], .param .b8 c[010])"
    assert parameters_of(sizes, "k") == [("a", "b8[16]"), ("b", "b64[2]"), ("c", "b8[8]")]
    with pytest.raises(InvalidArgumentError, match="it has: saxpy, saxpy_all"):
        parameters_of(PTX, "not_this")


def test_scalars_become_the_parameter_s_bytes():
    assert scalar_bytes(2.0, "f32") == struct.pack("<f", 2.0)
    assert scalar_bytes(2, "f64") == struct.pack("<d", 2.0)
    assert scalar_bytes(-1, "s32") == struct.pack("<i", -1)
    assert scalar_bytes(np.uint64(7), "u64") == struct.pack("<Q", 7)
    assert scalar_bytes(b"12345678", "b8[8]") == b"12345678"
    assert scalar_bytes(bytes(16), "b64[2]") == bytes(16)
    assert scalar_bytes(np.inf, "f32") == struct.pack("<f", np.inf)


@pytest.mark.parametrize(("value", "kind"), [(1.5, "u32"), (-1, "u32"), (1 << 40, "s32"), ("a", "f32"), (b"1", "b8[8]"), (np.ones(2), "f32"), (1e300, "f32")])
def test_scalars_that_do_not_fit_are_rejected(value, kind):
    with pytest.raises(InvalidArgumentError):
        scalar_bytes(value, kind)


@pytest.mark.parametrize(("value", "kind"), [(2**65, "u64"), (-(2**65), "s64"), (2**64, "u64"), (10**400, "f64"), (10**40, "f32")], ids=["u64", "s64", "u64 by one", "f64", "f32"])
def test_integers_of_any_size_are_rejected_if_out_of_range(value, kind):
    with pytest.raises(InvalidArgumentError, match=f"^{value} does not fit a parameter of type {kind}"):
        scalar_bytes(value, kind)
    assert scalar_bytes(2**65, "f32") == struct.pack("<f", 2.0**65)
    assert scalar_bytes(2**64 - 1, "u64") == b"\xff" * 8
    assert scalar_bytes(True, "u8") == b"\x01"


def test_columns_are_bound_in_the_order_of_the_kernels_parameters():
    spec = spec_of(SCORE, {"rate": np.array([0.5, 1.5]), "size": [3, 4]}, aggregate="argmin", slices=2)
    assert spec["kernel"]["args"] == [{"output": {"type": "f32", "count": 1}}, {"parameter": "rate"}, {"parameter": "size"}]
    assert spec["chunks"] == {"count": 2, "parameters": {"rate": {"type": "f32", "list": [0.5, 1.5]}, "size": {"type": "u32", "list": [3, 4]}}}
    assert spec["aggregate"] == {"argmin": {}}
    assert spec["slices"] == {"min": 1, "max": 2}


def arguments(ptx, parameters, **options):
    return [argument.get("parameter", "output") for argument in spec_of(ptx, parameters, **options)["kernel"]["args"]]


def test_columns_with_the_names_of_the_parameters_are_bound_by_name():
    spec = spec_of(SCORE, {"size": [3, 4], "rate": [5, 6]})
    assert [argument.get("parameter") for argument in spec["kernel"]["args"]] == [None, "rate", "size"]
    assert spec["chunks"]["parameters"] == {"size": {"type": "u32", "list": [3, 4]}, "rate": {"type": "f32", "list": [5.0, 6.0]}}
    assert list(spec["chunks"]["parameters"]) == ["size", "rate"]
    assert arguments(SCORE, {"x": [1.0], "n": [1]}) == ["output", "x", "n"]
    compiled = ".entry score(.param .u64 score_param_0, .param .f32 score_param_1, .param .u32 score_param_2){ ret; }"
    assert arguments(compiled, {"size": [3.0], "rate": [4]}) == ["output", "size", "rate"]
    output = {"output": {"type": "f32", "count": 1}}
    assert arguments(SCORE, {"size": [3.0], "n": [4]}, args=[output, "size", "n"]) == ["output", "size", "n"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (("size", "x"), r"score takes 3 arguments: o \(u64\), rate .*the names of size .*those of x are not: rename .* to rate, size, .*args=.*'size', 'x'"),
        (("o", "x"), "the names of o are names of parameters, and those of x are not"),
        (("o", "size"), "o is the name of the first parameter, which is the output: rename the columns to rate, size"),
        (("size",), r"size \(u32\)[.] The first is the output.*parameters has 1: size[.] Column not found: rate[.] .* args"),
        (("rate", "size", "x"), "parameters has 3: rate, size, x[.] No parameter is called x[.]"),
        (("x",), "parameters has 1: x[.] Pass one column for each parameter"),
    ],
)
def test_columns_that_only_partly_match_parameter_names_are_rejected(columns, told):
    with pytest.raises(InvalidArgumentError, match=told):
        spec_of(SCORE, {name: [1] for name in columns})


def test_results_have_the_columns_in_the_order_of_the_parameters():
    pytest.importorskip("pandas")
    spec = spec_of(SCORE, {"size": [3], "rate": [0.5]})
    frame = frame_of("index,rate,size,output0\n0,0.5,3,1.5\n", spec)
    assert list(frame.columns) == ["index", "size", "rate", "output0"]


def test_a_burst_that_does_not_fit_is_rejected():
    with pytest.raises(InvalidArgumentError, match="one length"):
        spec_of(SCORE, {"rate": [1.0], "size": [1, 2]})
    with pytest.raises(InvalidArgumentError, match="takes 3 arguments"):
        spec_of(SCORE, {"rate": [1.0]})
    with pytest.raises(InvalidArgumentError, match="4,096"):
        spec_of(SCORE, {"rate": np.ones(5000), "size": np.ones(5000, int)})
    with pytest.raises(InvalidArgumentError, match="2 kernels"):
        spec_of(PTX, {"x": [1]})


def test_grids_are_whole_numbers_of_python_s_or_numpy_s():
    assert extent("grid", np.int64(3)) == [3]
    assert extent("block", (np.uint32(2), 4)) == [2, 4]
    for wrong in (1.7, (1.7,), (), (1, 2, 3, 4), 0, (1 << 32,), "3", np.float64(2)):
        with pytest.raises(InvalidArgumentError, match="grid="):
            extent("grid", wrong)
    spec = spec_of(SCORE, {"rate": [1.0], "size": [1]}, grid=np.int64(2), block=(np.int32(64), 1), slices=np.int64(3), output=("f32", np.int64(2)))
    assert (spec["kernel"]["grid"], spec["kernel"]["block"], spec["slices"]) == ([2], [64, 1], {"min": 1, "max": 3})
    json.dumps(spec)
    for options in ({"grid": (1.7,)}, {"slices": 1.5}, {"output": ("f16", 1)}, {"output": ("f32", 0)}, {"max_retries": -1}):
        with pytest.raises(InvalidArgumentError, match=next(iter(options))):
            spec_of(SCORE, {"rate": [1.0], "size": [1]}, **options)


@pytest.mark.parametrize(
    ("rate", "size", "told"),
    [
        ([1.0, np.nan], [1, 2], "column rate, row 1: .*nan"),
        ([1.0, -np.inf], [1, 2], "column rate, row 1: .*inf"),
        ([1e300, 1.0], [1, 2], "column rate, row 0: 1e[+]300 does not fit f32"),
        ([1.0, 2.0], [1.5, 2.9], "column size of float64 .*type u32.*astype"),
        ([1.0, 2.0], [1, -1], "column size, row 1: -1 does not fit u32"),
        ([1.0, 2.0], [1, 2**53 + 1], "column size, row 1: 9007199254740993 does not fit u32"),
        ([1.0, 2.0], np.array([1, None]), "column size, row 1: None is not a number"),
        ([1.0, 2.0], np.ma.array([1, 2], mask=[0, 1]), "column size is masked.*filled"),
        ([1.0, 2.0], ["a", "b"], "column size"),
    ],
)
def test_a_column_that_the_kernel_cannot_take_is_named(rate, size, told):
    with pytest.raises(InvalidArgumentError, match=told):
        spec_of(SCORE, {"rate": rate, "size": size})


@pytest.mark.parametrize("name", ["index", "output0", "output12"])
def test_a_column_that_has_the_name_of_a_result_is_rejected(name):
    with pytest.raises(InvalidArgumentError, match=f"parameters has a column {name}, .*rename it"):
        spec_of(SCORE, {name: [1.0], "size": [1]})
    for free in ("Index", "output", "output_0", "indices"):
        assert free in spec_of(SCORE, {free: [1.0], "n": [1]})["chunks"]["parameters"]


def test_missing_values_in_a_data_frame_are_reported():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidArgumentError, match="column size, row 1: a kernel cannot take missing values: fill or drop them"):
        spec_of(SCORE, pandas.DataFrame({"rate": [1.0, 2.0], "size": pandas.array([1, None], "Int64")}))
    spec = spec_of(SCORE, pandas.DataFrame({"rate": [1.0], "size": pandas.array([7], "Int64")}))
    assert spec["chunks"]["parameters"]["size"]["list"] == [7]


def test_bytes_are_parameters_and_outputs_of_a_burst():
    pytest.importorskip("pandas")
    text = ".entry k(.param .u64 o, .param .u8 a, .param .b8 b){ ret; }"
    spec = spec_of(text, {"a": np.array([0, 255], np.uint8), "b": [True, 7]}, output=("u8", 2))
    assert spec["chunks"]["parameters"] == {"a": {"type": "u8", "list": [0, 255]}, "b": {"type": "u8", "list": [1, 7]}}
    frame = frame_of("index,a,b,output0[0],output0[1]\n0,0,1,1,2\n1,255,7,3,255\n", spec)
    assert [str(dtype) for dtype in frame.dtypes] == ["int64"] + ["uint8"] * 4
    spare = spec_of(SCORE, {"rate": [1.0], "size": [1], "spare": np.array([3], np.uint8)}, args=[{"output": {"type": "f32"}}, "rate", "size"])
    assert spare["chunks"]["parameters"]["spare"] == {"type": "u8", "list": [3]}
    for wrong, told in ((256, "column a, row 1: 256 does not fit u8: 0 to 255 do"), (-1, "column a, row 1: -1 does not fit u8")):
        with pytest.raises(InvalidArgumentError, match=told):
            spec_of(text, {"a": [0, wrong], "b": [1, 2]})


@pytest.mark.parametrize("kind", ["f16", "u16", "s8", "b16"])
def test_a_kernel_parameter_type_that_bursts_lack_is_rejected_by_name(kind):
    text = f".entry k(.param .u64 o, .param .{kind} a){{ ret; }}"
    for values in ([0.5], [1]):
        with pytest.raises(InvalidArgumentError, match=f"column a: k takes it as {kind}, .* one of f32, f64, s32, s64, u8, u32, u64"):
            spec_of(text, {"a": values})


HASH = ".entry hash(.param .u64 o, .param .u64 a, .param .f64 b, .param .u64 p){ ret; }"


def test_results_have_the_declared_types_regardless_of_their_text():
    pytest.importorskip("pandas")
    output = {"output": {"type": "f32", "count": 2}}
    spec = spec_of(HASH, {"a": [0, 2**64 - 1], "b": [1.0, 0.9127555772777217]}, args=[{"output": {"type": "u64"}}, "a", "b", output])
    text = "index,a,b,output0,output1[0],output1[1]\n0,0,1,1,-0,0\n1,18446744073709551615,0.9127555772777217,9223372036854775808,100000000000000000000,NaN\n"
    frame = frame_of(text, spec)
    assert [str(dtype) for dtype in frame.dtypes] == ["int64", "uint64", "float64", "uint64", "float32", "float32"]
    assert frame["a"].tolist() == [0, 2**64 - 1]
    assert frame["output0"].tolist() == [1, 2**63]
    assert frame["b"].tolist() == [1.0, 0.9127555772777217]
    assert np.signbit(frame["output1[0]"][0]) and frame["output1[0]"][1] == np.float32(1e20)
    assert np.isnan(frame["output1[1]"][1])


def test_a_waiting_job_reports_the_reason():
    def told(*conditions):
        with pytest.raises(SahasraError) as raised:
            _complete({"status": {"conditions": list(conditions)}}, "default/mine", 12)
        return raised.value

    refused = {"type": "Accepted", "status": "False", "reason": "InvalidParameters", "message": "a: 5 is too much"}
    assert isinstance(told(refused), ExecutionError) and "InvalidParameters: a: 5 is too much" in str(told(refused))
    accepted = {"type": "Accepted", "status": "True", "reason": "Valid", "message": ""}
    waits = {"type": "Admitted", "status": "False", "reason": "WaitingForSlices", "message": "node-0/cpu-0: 100 GiB are more than 8"}
    assert isinstance(told(accepted, waits), WaitTimeoutError)
    assert "12 s: WaitingForSlices: node-0/cpu-0: 100 GiB" in str(told(accepted, waits))
    assert "operator" in str(told())


class Native:
    """The native part of a session, which these tests never call."""

    def compile(self, name, kind, code):
        assert isinstance(code, bytes)
        return object()


def kernel_of(ptx, entry):
    session = types.SimpleNamespace(_native=Native(), _watch=Watch(Native(), "here/ptx-0", None), device="here/ptx-0")
    return RemoteKernel(session, ptx, entry)


def test_ptx_is_text_or_bytes_of_text():
    assert arguments(SCORE.encode(), {"rate": [1.0], "size": [1]}) == ["output", "rate", "size"]
    assert spec_of(SCORE.encode(), {"rate": [1.0], "size": [1]})["kernel"]["ptx"] == {"inline": SCORE}
    assert kernel_of(SCORE.encode(), "score").parameters == ["u64", "f32", "u32"]


@pytest.mark.parametrize(
    ("ptx", "told"),
    [
        (b"\x7fELF\xff", "argument `ptx` is bytes that are not UTF-8: pass PTX text, not a compiled binary"),
        (5, "argument `ptx` must be PTX text, not int: pass the contents of a .ptx file"),
        (None, "argument `ptx` must be PTX text, not NoneType"),
        (pathlib.Path("score.ptx"), r"argument `ptx` must be PTX text, not PosixPath: pass its contents, path.read_text\(\)"),
        ("score.ptx", r"argument `ptx` has no .entry: .* A path is not read: pass the contents of the file"),
    ],
    ids=["binary", "number", "None", "Path", "path"],
)
def test_text_that_is_not_ptx_is_rejected(ptx, told):
    with pytest.raises(InvalidArgumentError, match=told):
        spec_of(ptx, {"rate": [1.0]})
    with pytest.raises(InvalidArgumentError, match=told):
        kernel_of(ptx, "score")


def test_an_entry_is_a_name():
    with pytest.raises(InvalidArgumentError, match="argument `entry` must be the name of a kernel as text, not 5: the PTX has score"):
        kernel_of(SCORE, 5)
    with pytest.raises(InvalidArgumentError, match="argument `entry` must be"):
        spec_of(SCORE, {"rate": [1.0], "size": [1]}, entry=5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"parameters": None}, "argument `parameters` must be a DataFrame or a dict of one-dimensional arrays, .*not NoneType"),
        ({"parameters": 5}, "argument `parameters` must be .*not int"),
        ({"parameters": [1, 2]}, "argument `parameters` must be .*not list"),
        ({"parameters": {}}, "one length.*no columns"),
        ({"parameters": {"rate": 1.0, "size": 2}}, r"one length.*rate has the shape \(\)"),
        ({"parameters": {"rate": [[1], [1, 2]], "size": [1, 2]}}, "column rate must be a one-dimensional array of numbers"),
        ({"parameters": {"rate": np.ones((2, 2)), "size": [1, 2]}}, "column rate has 2 dimensions"),
        ({"aggregate": 5}, "argument `aggregate` must be the name of an aggregate, .*not 5"),
        ({"output": "f32"}, r"argument `output` must be .*such as \(\"f32\", 1\), not 'f32'"),
        ({"output": None}, "argument `output` must be"),
        ({"output": (["f32"], 1)}, "output="),
        ({"args": "rate"}, "argument `args` must be a list"),
        ({"args": 5}, "argument `args` must be a list"),
        ({"args": [{"output": {"type": "f32"}}, "rate", 5]}, "argument `args` must be a list"),
        ({"args": [{"output": {"type": "f32"}}, "rate", "n"]}, "args name n, and parameters has no such column: it has rate, size"),
        ({"args": [{"output": {"type": "f32"}}, "rate"]}, "score takes 3 arguments: o .*, and args has 2"),
        ({"grid": None}, "grid=None"),
        ({"slices": "a"}, "slices='a'"),
    ],
)
def test_arguments_of_a_burst_that_are_something_else_are_named(options, told):
    pytest.importorskip("pandas")
    given = {"parameters": {"rate": [1.0], "size": [1]}, **options}
    with pytest.raises(InvalidArgumentError, match=told):
        sahasra.SahasraClient("http://127.0.0.1:1", token="t").burst(ptx=SCORE, **given)


def test_an_unknown_keyword_of_burst_is_reported_by_name():
    pytest.importorskip("pandas")
    client = sahasra.SahasraClient("http://127.0.0.1:1", token="t")
    with pytest.raises(TypeError, match=r"^burst\(\) got an unexpected keyword argument 'agregate': did you mean aggregate\?"):
        client.burst(ptx=SCORE, parameters={"rate": [1.0], "size": [1]}, agregate="sum")
    with pytest.raises(TypeError, match=r"^burst\(\) got an unexpected keyword argument 'qqq': it takes ptx, parameters, name, .* max_retries$"):
        client.burst(ptx=SCORE, parameters={"rate": [1.0], "size": [1]}, qqq="sum")


def test_columns_of_one_name_in_a_data_frame_are_rejected():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidArgumentError, match="column rate has 2 dimensions.*several columns of this name"):
        spec_of(SCORE, pandas.DataFrame([[1.0, 2.0, 3]], columns=["rate", "rate", "size"]))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((0, "a", 1), r"^parameter 2 of score, rate \(f32\): 'a' is not a value for a parameter of type f32: pass a number"),
        ((0, None, 1), r"^parameter 2 of score, rate \(f32\): None is not a value"),
        ((0, np.ones(3), 1), r"^parameter 2 of score, rate \(f32\): .*takes one number, and this is a NumPy array"),
        ((0, 1.0, -1), r"^parameter 3 of score, size \(u32\): -1 does not fit"),
        ((np.ones(3), 1.0, 1), r"^parameter 1 of score, o \(u64\): a NumPy array of this machine has no address there: session.put it first"),
        ((0.5, 1.0, 1), r"^parameter 1 of score, o \(u64\): 0.5 is not a value .*pass a whole number, or a tensor of the session"),
        ((0, 1.0), r"score takes 3 arguments after grid and block, not 2: o \(u64\), rate \(f32\), size \(u32\)"),
    ],
)
def test_an_argument_that_a_kernel_cannot_take_is_named(given, told):
    with pytest.raises(InvalidArgumentError, match=told):
        kernel_of(SCORE, "score")(1, 1, *given)
