"""Documentation of the public API, and execution of the snippets in the documentation."""

import contextlib
import dataclasses
import inspect
import io
import re

import pytest
from conftest import ROOT
from test_programs import TOLERANCE
from test_training import STEPS, TRAINED

import sahasra
from sahasra.jit import RemoteFunction
from sahasra.kernel import RemoteKernel

#: Classes of objects that functions return, besides the exported names.
CALLED = [RemoteFunction, RemoteKernel]


def members():
    """Yields every public class and every public function of one."""
    for name in sahasra.__all__:
        thing = getattr(sahasra, name)
        if not inspect.isclass(thing):
            continue
        yield name, thing
        for member, value in vars(thing).items():
            if isinstance(value, (classmethod, staticmethod)):
                value = value.__func__
            if isinstance(value, property):
                value = value.fget
            if inspect.isfunction(value) and (not member.startswith("_") or member == "__call__"):
                yield f"{name}.{member}", value
    for thing in CALLED:
        yield thing.__name__, thing
        yield f"{thing.__name__}.__call__", thing.__call__


MEMBERS = dict(members())


@pytest.mark.parametrize("name", MEMBERS)
def test_every_public_name_has_a_docstring(name):
    thing = MEMBERS[name]
    # A dataclass without a docstring gets its signature as one.
    own = inspect.getdoc(thing) if inspect.isfunction(thing) else thing.__doc__
    assert own and not own.startswith(f"{name}("), f"{name} has no docstring"
    assert own.rstrip().endswith((".", ")", ":")), own
    if inspect.isfunction(thing):
        hints = inspect.signature(thing)
        annotated = [parameter.annotation is not inspect.Parameter.empty for place, parameter in enumerate(hints.parameters.values()) if place or "." not in name]
        assert all(annotated) and hints.return_annotation is not inspect.Signature.empty, f"{name} has no types"


#: Members that can fail, whose docstrings must say what they raise.
SAY_WHAT_THEY_RAISE = [
    "RemoteJaxSession.create", "RemoteJaxSession.close", "RemoteJaxSession.synchronise", "RemoteJaxSession.put", "RemoteJaxSession.get",
    "RemoteJaxSession.zeros", "RemoteJaxSession.jit", "RemoteJaxSession.estimate_jitted", "RemoteJaxSession.execute_jitted",
    "RemoteJaxSession.kernel", "RemoteJaxSession.load", "RemoteTensor.numpy", "RemoteTensor.jax", "RemoteTensor.item", "RemoteTensor.tolist",
    "RemoteTensor.block_until_ready", "RemoteKernel.__call__", "SahasraClient", "SahasraClient.workers", "SahasraClient.sessions",
    "SahasraClient.burst",
]  # fmt: skip


@pytest.mark.parametrize("name", SAY_WHAT_THEY_RAISE)
def test_docstrings_name_the_exceptions(name):
    assert re.search(r"[Rr]aises", inspect.getdoc(MEMBERS[name])), name


def test_fields_are_documented():
    for thing in (sahasra.Estimate, sahasra.Execution, sahasra.Progress):
        source = inspect.getsource(thing)
        for field in dataclasses.fields(thing):
            before = source[: source.index(f"    {field.name}:")]
            # One comment may describe several fields.
            assert "#:" in before, f"{thing.__name__}.{field.name}"


def test_every_exception_is_in_the_guide():
    guide = (ROOT / "docs/guide/python.md").read_text()
    for name in sahasra.__all__:
        thing = getattr(sahasra, name)
        if inspect.isclass(thing) and issubclass(thing, Exception):
            assert f"`{name}`" in guide or f"`{name}`s" in guide, name


def test_the_guides_tolerances_are_those_of_the_tests():
    guide = (ROOT / "docs/guide/python.md").read_text()
    table = re.findall(r"^\| (`.*`) \| (\S+) \|$", guide, flags=re.M)
    said = {kind: float(tolerance) for kinds, tolerance in table for kind in re.findall(r"`(\w+)`", kinds) if tolerance[0].isdigit()}
    assert said == TOLERANCE
    sentence = r"after (\d+) steps of the training loops above are within (\S+), of `float32`"
    (steps, trained) = re.search(sentence, " ".join(guide.split())).groups()
    assert (int(steps), float(trained)) == (STEPS, TRAINED)


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / path).read_text(), flags=re.M | re.S)


def test_the_first_session_of_the_readme_is_the_example():
    assert blocks("README.md")[0] == (ROOT / "examples/jax-session/session.py").read_text()


SNIPPETS = [(path, number) for path in ("README.md", "docs/guide/python.md") for number in range(len(blocks(path)))]


@pytest.mark.parametrize(("path", "number"), SNIPPETS)
def test_the_snippets_run(pool, path, number):
    text = blocks(path)[number].replace("http://127.0.0.1:8000", pool.url).replace('"g5"', f'"{pool.gpu_class}"')
    scope = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, f"{path}:{number}", "exec"), scope)
    if "session" in scope:
        scope["session"].close()
    # A comment after each `print` in a snippet states its output.
    expected = re.findall(r"print\(.*\) +# (.*)$", text, flags=re.M)
    assert not expected or printed.getvalue().splitlines() == expected
