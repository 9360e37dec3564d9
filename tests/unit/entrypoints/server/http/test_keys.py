"""Keys: read from flags and files, compared as digests, shown to nobody; and what each may do per minute."""

from __future__ import annotations

import hashlib
import hmac
import pathlib
from typing import Any

import pytest

from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.entrypoints.compose.config.kinds import Secret
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.http.security import ApiKey, RateLimits, read_keys
from nanoserve.ports.errors import BadValueError

TOML = """
[[key]]
key = "sk-alice"
name = "alice"
request_class = "batch"
priority = 5
rate_limit = 60

[[key]]
sha256 = "{digest}"
"""


def access(*keys: str, **others: Any) -> AccessSettings:
    return AccessSettings(api_key=tuple(map(Secret, keys)), **others)


def write(folder: pathlib.Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def test_keys_come_from_flags_and_files(tmp_path: pathlib.Path) -> None:
    digest = hashlib.sha256(b"sk-bob").hexdigest()
    toml = write(tmp_path, "keys.toml", TOML.format(digest=digest))
    ring = read_keys(access("sk-flag", api_key_file=toml, rate_limit=7.0), ("default", "batch"))
    assert len(ring) == 3
    alice, bob, flag = (ring.find(f"sk-{name}") for name in ("alice", "bob", "flag"))
    assert alice is not None
    assert (alice.client.name, alice.client.request_class, alice.client.priority, alice.rate_limit) == (
        "alice",
        "batch",
        5,
        60,
    )
    assert bob is not None
    assert flag is not None
    assert (bob.client.name, bob.rate_limit, flag.client.name) == ("entry-2", 7.0, "key-1")
    assert ring.find("sk-eve") is None


def test_lines_of_a_file_are_keys(tmp_path: pathlib.Path) -> None:
    ring = read_keys(access(api_key_file=write(tmp_path, "keys", "# ours\nsk-one\n\n  sk-two  \n")))
    found = [ring.find(each) for each in ("sk-one", "sk-two")]
    assert [each.client.name for each in found if each] == ["line-2", "line-4"]


def test_salts_differ_between_keys_survive_a_restart_and_vanish_when_shared() -> None:
    salts = []
    for _ in range(2):
        ring = read_keys(access("sk-one", "sk-two"))
        salts.append([key.client.cache_salt for key in (ring.find("sk-one"), ring.find("sk-two")) if key])
    assert salts[0] == salts[1]
    assert len({*salts[0], ""}) == 3
    shared = read_keys(access("sk-one", share_prefix_cache=True)).find("sk-one")
    assert shared is not None
    assert shared.client.cache_salt == ""


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    true_compare = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return true_compare(one, other)

    ring = read_keys(access("a", "b", "c"))
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for presented in ("a", "c", "x"):
        compared.clear()
        ring.find(presented)
        assert len(compared) == 3


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("keys", "", "holds no key"),
        ("keys", "sk with blanks\n", "line 1"),
        ("keys.toml", "[[key]\n", "not valid TOML"),
        ("keys.toml", "key = 1\n", "[[key]]"),
        ("keys.toml", "[[key]]\nname = 'x'\n", "either key or sha256"),
        ("keys.toml", "[[key]]\nkey = 'sk-secret'\nsha256 = 'x'\n", "either key or sha256"),
        ("keys.toml", "[[key]]\nsha256 = 'abc'\n", "64 hexadecimal"),
        ("keys.toml", "[[key]]\nkey = 'sk-secret'\ncolour = 1\n", "known are key"),
        ("keys.toml", "[[key]]\nkey = 'sk-secret'\nrate_limit = 0\n", "rate_limit must be above 0"),
        ("keys.toml", "[[key]]\nkey = 'sk-secret'\nrequest_class = 'gold'\n", "'gold'"),
    ],
)
def test_a_bad_file_is_one_error_that_shows_no_key(
    tmp_path: pathlib.Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(BadValueError) as raised:
        read_keys(access(api_key_file=write(tmp_path, name, text)))
    assert said in str(raised.value)
    assert "sk-" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadValueError, match="nowhere"):
        read_keys(access(api_key_file=str(tmp_path / "nowhere")))


def test_settings_hide_keys() -> None:
    configuration = read_configuration({}, {"NANOSERVE_API_KEY": '["sk-one", "sk-two"]'})
    assert [each.value for each in configuration.serve.access.api_key] == ["sk-one", "sk-two"]
    assert "sk-" not in repr(configuration)
    with pytest.raises(BadValueError) as raised:
        read_configuration({"api_key": ("sk bad",)}, {})
    assert "sk bad" not in str(raised.value)


def test_a_key_may_make_its_requests_per_minute_and_no_more() -> None:
    now = 100.0
    limits = RateLimits(lambda: now)
    key = ApiKey(digest=b"1", client=Client(), rate_limit=3.0)
    other = ApiKey(digest=b"2", client=Client(), rate_limit=3.0)
    for _ in range(3):
        limits.spend(key)
    with pytest.raises(RequestError) as raised:
        limits.spend(key)
    assert (raised.value.problem.status, raised.value.problem.headers["retry-after"]) == (429, "20")
    limits.spend(other)
    now += 19.9
    with pytest.raises(RequestError, match="1 s"):
        limits.spend(key)
    now += 0.2
    limits.spend(key)
    now += 3600
    for _ in range(3):
        limits.spend(key)
    with pytest.raises(RequestError):
        limits.spend(key)


def test_no_limit_is_no_limit() -> None:
    limits = RateLimits(lambda: 0.0)
    for _ in range(1000):
        limits.spend(ApiKey(digest=b"", client=Client()))
