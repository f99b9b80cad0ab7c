"""Arguments of `create` and of clients, and errors about tokens, without a pool."""

import contextlib
import copy
import http.server
import json
import pickle
import threading
import warnings

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
        ({"client": "http://127.0.0.1:8000"}, r'argument `client` must be a SahasraClient, such as SahasraClient\("http://127.0.0.1:8000"\), not'),
        ({"vram": 512}, 'argument `vram` must be text such as "512Mi", not 512: write a whole number with the unit Ki, Mi, Gi or Ti'),
        ({"vram": "1GB"}, "argument `vram` must be a whole number with the unit Ki, Mi, Gi or Ti, such as \"512Mi\", not '1GB'"),
        ({"vram": "1.5Gi"}, "argument `vram` must be a whole number with the unit"),
        ({"vram": None}, "argument `vram` must be text"),
        ({"gpu_class": 5}, 'argument `gpu_class` must be the name of a class, such as "g5", or None for any, not 5'),
        ({"grace_seconds": -1}, "argument `grace_seconds` must be a number of seconds from 0, such as 60, not -1"),
        ({"grace_seconds": "60"}, "argument `grace_seconds` must be .*not '60'"),
        ({"grace_seconds": float("nan")}, "argument `grace_seconds` must be .*not nan"),
        ({"wait_seconds": None}, "argument `wait_seconds` must be"),
        ({"progress": 5}, "argument `progress` must be True, False, None or a function, such as print, not 5"),
        ({"compression": "zip"}, "argument `compression` must be .*not 'zip'"),
        ({"server_name": "sahasra-worker"}, "argument `server_name` is for the certificate of a worker: pass direct=True, or .* SahasraClient"),
        ({"authority": "a certificate"}, "argument `authority` is for the certificate of a worker: pass direct=True, or .* SahasraClient"),
    ],
)
def test_arguments_of_create_are_checked_before_anything_is_sent(options, told):
    with pytest.raises(sahasra.InvalidArgumentError, match=told):
        create(**options)


@pytest.mark.parametrize("authority", ["", "ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_an_invalid_authority_is_rejected_without_tls_too(authority):
    told = "argument `authority`: .*pass the text of a PEM file, not its path"
    with pytest.raises(sahasra.ConfigurationError, match=told):
        sahasra.SahasraClient(NOWHERE, token="t", authority=authority)
    with pytest.raises(sahasra.ConfigurationError, match=told):
        create(direct=True, authority=authority)


def test_a_token_that_leaves_this_machine_without_tls_is_warned_of(no_token):
    with pytest.warns(sahasra.TokenExposedWarning, match="token for gateway.example is sent unencrypted.* use https://gateway.example") as warned:
        sahasra.SahasraClient("http://gateway.example", token="secret")
    assert len(warned) == 1 and warned[0].filename == __file__ and "secret" not in str(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for url, token in [("http://gateway.example", None), ("http://127.0.0.1:8000", "t"), ("http://localhost", "t"), ("http://[::1]:8000", "t")]:
            sahasra.SahasraClient(url, token=token)


class Waiting:
    """A gateway on which a session waits until a signal arrives."""

    def __init__(self):
        self.deleted = []

    def create_session(self, namespace, name, text):
        return json.dumps({"metadata": {"name": "waits", "uid": "1"}})

    def session_placed(self, namespace, name, seconds):
        raise KeyboardInterrupt

    def delete_session(self, namespace, name):
        self.deleted.append(f"{namespace}/{name}")


def test_a_session_that_waits_is_deleted_when_the_wait_is_interrupted():
    client = sahasra.SahasraClient(NOWHERE, token="t")
    client._gateway = Waiting()
    with pytest.raises(KeyboardInterrupt):
        create(client)
    assert client._gateway.deleted == ["default/waits"]


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


@contextlib.contextmanager
def gateway():
    """A server that answers every request as a gateway does a request without a token, or one with a token that is not known."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            why = "the token is unknown" if "Authorization" in self.headers else "no token: send it as `Authorization: Bearer TOKEN`"
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "message": why, "code": 401}
            body = json.dumps(status).encode()
            self.send_response(401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def no_token(monkeypatch, tmp_path):
    """No token can be found in this process."""
    for name in ("SAHASRA_TOKEN", "SAHASRA_TOKEN_FILE", "KUBECONFIG", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_an_error_without_a_token_names_the_places_where_one_is_looked_for(no_token):
    with gateway() as url:
        with pytest.raises(sahasra.AuthenticationError) as raised:
            sahasra.SahasraClient(url).workers()
        with pytest.raises(sahasra.AuthenticationError) as unknown:
            sahasra.SahasraClient(url, token="t").workers()
    told = "No token was found: pass token=, set SAHASRA_TOKEN_FILE, or set KUBECONFIG. `sahasra up --kubeconfig FILE` writes the token beside FILE"
    assert told in str(raised.value)
    assert str(copy.copy(raised.value)) == str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert "the token is unknown" in str(unknown.value) and "No token was found" not in str(unknown.value)


class Subclass(sahasra.SahasraClient):
    """A client of its own class, to be found by pickle."""


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda client: pickle.loads(pickle.dumps(client))], ids=["copy", "deepcopy", "pickle"])
def test_a_client_is_copied_and_pickled_with_its_arguments(no_token, monkeypatch, again):
    client = Subclass("http://127.0.0.1:1", token="given", namespace="mine", server_name="gateway.example")
    client.namespace = "later"
    copied = again(client)
    assert type(copied) is Subclass and copied is not client
    assert (copied.url, copied.namespace, copied._token, copied._options) == (client.url, "later", "given", client._options)
    found = sahasra.SahasraClient(NOWHERE)
    monkeypatch.setenv("SAHASRA_TOKEN", "of-this-process")
    assert b"of-this-process" not in pickle.dumps(sahasra.SahasraClient(NOWHERE))
    assert again(found)._token is None
