"""What each child is started as: by command, never by import, and with no secret on its command line."""

import sys

from gateway.core.restarts import GiveUp, Restarts, died
from gateway.up import children
from shared.settings import GatewaySettings, NatsSettings, Settings, WorkerSettings
from shared.settings_load import load, to_environment

SETTINGS = Settings(
    gateway=GatewaySettings(shutdown_grace_s=7.0),
    nats=NatsSettings(url="nats://evenflow:secret@127.0.0.1:4222"),
    workers=(WorkerSettings(name="a"), WorkerSettings(name="b", slots=2)),
)


def specs():
    environment = to_environment(SETTINGS)
    return [*children.workers(SETTINGS, environment), children.gateway(SETTINGS, environment)]


def test_one_worker_process_per_entry_and_one_gateway():
    assert [(spec.name, spec.group) for spec in specs()] == [
        ("worker-a", "workers"),
        ("worker-b", "workers"),
        ("gateway", "gateway"),
    ]
    assert [spec.command[2:] for spec in specs()] == [
        ("-m", "workers.cli", "serve", "--name", "a"),
        ("-m", "workers.cli", "serve", "--name", "b"),
        ("-m", "gateway.cli", "gateway"),
    ]
    assert {spec.command[0] for spec in specs()} == {sys.executable}


def test_children_load_the_very_same_settings_from_their_environment():
    for spec in specs():
        assert load(None, spec.environment).settings == SETTINGS
        assert "secret" not in " ".join(spec.command)


def test_each_may_use_the_whole_shutdown_grace():
    assert all(spec.grace_s > 7.0 for spec in specs())


def test_a_gateway_whose_settings_cannot_work_is_not_tried_again():
    for status in (2, 78):
        assert died(Restarts(), 0.0, status, specs()[-1].policy)[1] == GiveUp(status=status)
