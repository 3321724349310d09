"""Settings that are each right and do not fit together: one case for each rule, and its counterpart that passes."""

import pytest

from shared.errors import SettingsError
from shared.settings_load import load

PROD = {"profile": "prod", "nats.url": "nats://bus:4222", "tls.certificate": "c", "tls.key": "k"}
RULES = [
    ({"gateway.port": 9, "admin.port": 9}, "admin.port", {"admin.port": 10}),
    ({"gateway.port": 8081}, "admin.port", {"admin.port": 0}),
    ({"nats.port": 8080}, "nats.port", {"nats.url": "nats://bus:4222"}),
    ({"gateway.ready_path": "/health"}, "gateway.ready_path", {"gateway.health_path": "/alive"}),
    ({"gateway.health_path": "/v1/health"}, "gateway.health_path", {"gateway.health_path": "/v1health"}),
    (
        {"gateway.trusted_proxies": "10.0.0.1/8"},
        "gateway.trusted_proxies",
        {"gateway.trusted_proxies": "10.0.0.0/8, ::1"},
    ),
    ({"gateway.trusted_proxies": "fe80::%1/64"}, "gateway.trusted_proxies", {"gateway.trusted_proxies": "fe80::/64"}),
    ({"gateway.trusted_proxies": "::1, here"}, "gateway.trusted_proxies", {"gateway.trusted_proxies": ""}),
    ({"tls.certificate": "c"}, "tls.key", {"tls.key": "k"}),
    ({"tls.key": "k"}, "tls.certificate", {"tls.certificate": "c"}),
    ({"tls.client_ca": "a"}, "tls.client_ca", {"tls.certificate": "c", "tls.key": "k"}),
    ({**PROD, "nats.url": ""}, "nats.url", {"nats.url": "nats://bus:4222"}),
    ({**PROD, "tls.certificate": "", "tls.key": ""}, "tls.certificate", {"gateway.host": "::1"}),
    ({**PROD, "tls.certificate": "", "tls.key": ""}, "tls.certificate", {"tls.offloaded": True}),
    ({**PROD, "workers.0.engine": "null"}, "workers.0.engine", {"profile": "test"}),
    ({"store.url": "sqlite:///x"}, "store.url", {"store.url": "sqlite+aiosqlite:///x"}),
    ({"store.url": "sqlite+aiosqlite:///:memory:"}, "store.url", {"store.url": "sqlite+aiosqlite:////x/y"}),
    ({"store.url": "sqlite+aiosqlite:///"}, "store.url", {"store.url": "postgresql+asyncpg://u:p@h/d"}),
    ({"store.pepper_file": ""}, "store.pepper_file", {"store.pepper_file": "p"}),
    ({"workers": [{"name": "a"}, {"name": "a"}]}, "workers.1.name", {"workers.1.name": "b"}),
    ({"workers.0.engine": "exllamav2"}, "workers.0.path", {"workers.0.path": "dir"}),
    ({"workers.0.draft.kind": "model"}, "workers.0.draft.path", {"workers.0.draft.path": "d.gguf"}),
    ({"workers.0.max_output": 4096}, "workers.0.max_output", {"workers.0.context": 4096}),
    ({"models": [{"name": "m"}, {"name": "m"}]}, "models.1.name", {"models.1.name": "n"}),
    ({"limits.queue_per_tenant": 2000}, "limits.queue_per_tenant", {"limits.queue_total": 2000}),
    ({"limits.all_buffers_bytes": 9}, "limits.stream_buffer_bytes", {"limits.stream_buffer_bytes": 9}),
]


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("given", "path", "remedy"), RULES)
def test_rule(given, path, remedy):
    with pytest.raises(SettingsError) as caught:
        load(None, {}, given)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}: ")
    load(None, {}, {**given, **remedy})


def test_a_wrong_value_does_not_also_break_the_rules_that_rest_on_it():
    with pytest.raises(SettingsError) as caught:
        load(None, {}, {"gateway.port": "x", "admin.port": 8080})
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["gateway.port"]


def test_prod_may_be_right():
    assert load(None, {}, PROD).settings.gateway.host == "0.0.0.0"
