"""Client of a gateway, or of ``sahasra up``."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from . import _native
from .caller import warn
from .errors import TokenExposedWarning

if TYPE_CHECKING:
    import pandas


class SahasraClient:
    """Client of the gateway at ``url``.

    Without the argument ``token``, the token is taken from the first of these that exists: ``SAHASRA_TOKEN``, the file named by
    ``SAHASRA_TOKEN_FILE``, the file that ``sahasra up`` wrote for this port, the current user of the kubeconfig, the pod's service account.
    With ``--kubeconfig FILE``, ``sahasra up`` writes its token file beside ``FILE``, where it is not looked for: set ``SAHASRA_TOKEN_FILE`` to it.
    ``authority`` is the PEM certificate of the authority that verifies an ``https`` gateway, if the system does not trust it already.
    ``server_name`` is the name in the gateway's certificate, if it differs from the host of the URL, as through a port-forward.

    Creating a client sends no request. A client can be copied and pickled. The copy has the URL, the namespace, the certificate and the argument
    ``token``, so keep a pickle of a client with that argument secret; without it, the token is looked for again where the client is unpickled.
    Raises :class:`ConfigurationError` when the URL, the certificate or the token cannot be used. Warns (:class:`TokenExposedWarning`) when the token
    would go to another machine without TLS.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        namespace: str = "default",
        authority: str | None = None,
        server_name: str | None = None,
    ) -> None:
        if authority is not None:
            _native.check_authority(authority)
        self._gateway = _native.Gateway(url, token, authority, server_name)
        exposure = self._gateway.exposure
        if exposure is not None:
            warn(exposure, TokenExposedWarning)
        self._token = token
        self._options = {"token": token, "authority": authority, "server_name": server_name}
        #: Default namespace in which objects are created and listed.
        self.namespace = namespace

    @property
    def url(self) -> str:
        """URL of the gateway."""
        return self._gateway.url

    def workers(self) -> Any:
        """The load of every worker, as returned by ``GET /workers``: a list of dicts.

        Raises :class:`AuthenticationError`, :class:`PermissionDeniedError` without permission to ``list`` ``gpuworkers``,
        :class:`ConnectionLostError`.
        """
        return json.loads(self._gateway.workers())

    def sessions(self, namespace: str | None = None) -> list[dict[str, Any]]:
        """The ``GpuSession`` objects of the namespace (by default the client's), as dicts like those of ``kubectl get -o json``.

        Raises :class:`AuthenticationError`, :class:`PermissionDeniedError`, :class:`ConnectionLostError`.
        """
        return list(json.loads(self._gateway.sessions(namespace or self.namespace)).get("items", []))

    def burst(self, *, ptx: str | bytes, parameters: Any, **options: Any) -> pandas.DataFrame:
        """Runs one kernel over many sets of parameters on the whole pool and waits. Returns a DataFrame with one row for each set.

        :func:`sahasra.burst.run` describes the options. Raises :class:`InvalidArgumentError` for arguments that do not fit together,
        :class:`ExecutionError` when the burst fails, :class:`WaitTimeoutError` when it takes longer than ``timeout_seconds``.
        """
        from .burst import run

        return run(self, ptx=ptx, parameters=parameters, **options)

    def __reduce__(self) -> Any:
        return functools.partial(type(self), self.url, namespace=self.namespace, **self._options), ()

    def __repr__(self) -> str:
        return f"SahasraClient({self.url!r}, namespace={self.namespace!r})"
