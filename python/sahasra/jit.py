"""Functions that run in a session: a program for each shape, type and static value of their arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from . import _native
from .errors import InvalidArgumentError
from .export import Exported, aval_of, export, host_array, is_key
from .tensor import RemoteTensor, upload

if TYPE_CHECKING:
    from .session import RemoteJaxSession


class _Static:
    """Stands in the place of a static argument; it is no leaf."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        try:
            hash(value)
        except TypeError as error:
            raise InvalidArgumentError(f"a static argument cannot be hashed: {error}") from error
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and type(self.value) is type(other.value) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


jax.tree_util.register_pytree_node(_Static, lambda static: ((), static), lambda static, _: static)


def _numbers(given: int | Iterable[int] | None) -> tuple[int, ...]:
    return () if given is None else (given,) if isinstance(given, int) else tuple(given)


def _names(given: str | Iterable[str] | None) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


class Prepared:
    """A program in a session, and how it is called."""

    __slots__ = ("donated", "exported", "program")

    def __init__(self, exported: Exported, program: _native.Program, donated: Sequence[int]) -> None:
        self.exported = exported
        self.program = program
        places = {leaf: place for place, leaf in enumerate(exported.kept)}
        #: Places among the program's own arguments.
        self.donated = [places[leaf] for leaf in donated if leaf in places]


class Traced:
    """A function, and the programs that were made of it for a session."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: int | Iterable[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
        donate_argnums: int | Iterable[int] | None = None,
        donate_argnames: str | Iterable[str] | None = None,
    ) -> None:
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__).strip("<>") or "function"
        # What a `jax.jit` of the user's own says of static and donated arguments is said of this function too: tracing through
        # it would lose the one and refuse the other.
        own = getattr(function, "_jit_info", None)
        numbers, names = (tuple(getattr(own, f"static_{kind}", ())) for kind in ("argnums", "argnames"))
        self._static_numbers, self._static_names = _both(function, _numbers(static_argnums) + numbers, _names(static_argnames) + names)
        numbers, names = (tuple(getattr(own, f"donate_{kind}", ())) for kind in ("argnums", "argnames"))
        self._donated, self._donated_names = _both(function, _numbers(donate_argnums) + numbers, _names(donate_argnames) + names)
        self._programs: dict[Any, Prepared] = {}

    def flatten(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Any], Any, tuple[int, ...]]:
        """Leaves, how they belong together with the static values in it, and which of them are donated."""
        if self._static_numbers or self._static_names:
            count = len(arguments)
            static = {number % count if number < 0 else number for number in self._static_numbers if -count <= number < count}
            arguments = tuple(_Static(value) if place in static else value for place, value in enumerate(arguments))
            keywords = {name: _Static(value) if name in self._static_names else value for name, value in keywords.items()}
        leaves, tree = jax.tree_util.tree_flatten((arguments, keywords))
        if not self._donated and not self._donated_names:
            return leaves, tree, ()
        donated: list[int] = []
        start = 0
        for place, argument in enumerate(arguments):
            count = len(jax.tree_util.tree_leaves(argument))
            if place in self._donated or place - len(arguments) in self._donated:
                donated.extend(range(start, start + count))
            start += count
        # Arguments by name come after the others, in the order of their names.
        for name in sorted(keywords):
            count = len(jax.tree_util.tree_leaves(keywords[name]))
            if name in self._donated_names:
                donated.extend(range(start, start + count))
            start += count
        return leaves, tree, tuple(donated)

    def export(self, platform: str, tree: Any, avals: Sequence[Any], donated: Sequence[int], *, cost: bool = False) -> Exported:
        """Raises as :func:`export.export` does."""

        def plain(*arguments: Any, **keywords: Any) -> Any:
            opened = [argument.value if isinstance(argument, _Static) else argument for argument in arguments]
            named = {name: value.value if isinstance(value, _Static) else value for name, value in keywords.items()}
            return self._function(*opened, **named)

        return export(plain, self._name, tree, avals, donated, platform, cost=cost)

    def _prepare(self, session: RemoteJaxSession, tree: Any, avals: tuple[Any, ...], donated: tuple[int, ...]) -> Prepared:
        key = (tree, avals, donated)
        found = self._programs.get(key)
        if found is None:
            exported = self.export(session.platform, tree, avals, donated)
            with session._watch.during("compile", exported.name):
                program = session._native.compile(exported.name, "stablehlo", exported.code)
            found = self._programs[key] = Prepared(exported, program, donated)
        return found

    def call(self, session: RemoteJaxSession, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[RemoteTensor], Any]:
        """Its results' leaves, and how they belong together. It is the same session each time."""
        leaves, tree, donated = self.flatten(arguments, keywords)
        avals = tuple([leaf._aval if type(leaf) is RemoteTensor else aval_of(leaf) for leaf in leaves])
        prepared = self._prepare(session, tree, avals, donated)
        passed = []
        for place in prepared.exported.kept:
            leaf = leaves[place]
            if type(leaf) is not RemoteTensor:
                leaf = put_leaf(session, leaf, avals[place])
            elif leaf._session is not session:
                raise InvalidArgumentError(f"{leaf!r} is of session {leaf._session.name}: bring it here with numpy() first")
            passed.append(leaf._handle())
        outputs = prepared.exported.outputs
        results = session._native.execute(prepared.program, passed, len(outputs), prepared.donated)
        for place in donated:
            if type(leaves[place]) is RemoteTensor:
                leaves[place].delete()
        made = [RemoteTensor(session, native, *aval) for native, aval in zip(results, outputs)]
        return made, prepared.exported.tree


class RemoteFunction(Traced):
    """What :meth:`RemoteJaxSession.jit` gives: called like the function, it runs in the session and returns at once."""

    def __init__(self, session: RemoteJaxSession, function: Callable[..., Any], *options: Any) -> None:
        super().__init__(function, *options)
        self._session = session
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function's results as :class:`RemoteTensor`s, put together as the function does.

        Arguments may be arrays, numbers, remote tensors, and pytrees of them. Failures come with the next look at a value.
        """
        made, tree = self.call(self._session, arguments, keywords)
        return jax.tree_util.tree_unflatten(tree, made)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<{self._name} on {self._session.device}>"


def _both(function: Callable[..., Any], numbers: tuple[int, ...], names: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """A parameter that is static or donated by number is so by name, and the other way round, as in ``jax.jit``."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return numbers, names
    plain = [parameter.name for parameter in parameters if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY)]
    by_name = tuple(plain.index(name) for name in names if name in plain)
    by_number = tuple(plain[number] for number in numbers if -len(plain) <= number < len(plain))
    return tuple(dict.fromkeys(numbers + by_name)), tuple(dict.fromkeys(names + by_number))


def put_leaf(session: RemoteJaxSession, leaf: Any, aval: Any) -> RemoteTensor:
    """A leaf of a pytree as a tensor of the session."""
    if isinstance(leaf, RemoteTensor):
        return leaf
    array, immutable = host_array(leaf, aval)
    shape, dtype, weak_type = aval
    if is_key(dtype):
        return upload(session, array, immutable=True, dtype=dtype, shape=shape)
    return upload(session, array, immutable=immutable, weak_type=weak_type)
