"""Which processes `evenflow up` runs, and what each is told by its environment."""

import sys
from collections.abc import Mapping

from gateway.core.restarts import EX_CONFIG, RestartPolicy
from gateway.up.process import ChildSpec
from shared.settings import Settings
from shared.subjects import Kind

# A child that ends by itself within its own grace is never killed by ours.
_MARGIN_S = 5.0
# Exit status of the command `evenflow` for settings or flags that cannot work.
_EX_SETTINGS = 2


def identities(settings: Settings) -> list[tuple[Kind, str]]:
    """Return who of these processes connects to the bus, and as what."""
    return [("gateway", settings.gateway.name), *(("worker", worker.name) for worker in settings.workers)]


def workers(settings: Settings, environment: Mapping[str, str]) -> list[ChildSpec]:
    """Return one child for every `[[workers]]` entry; each is a command, never an import of `workers`."""
    return [
        ChildSpec(
            name=f"worker-{worker.name}",
            group="workers",
            command=_python("workers.cli", "serve", "--name", worker.name),
            environment=environment,
            grace_s=settings.gateway.shutdown_grace_s + _MARGIN_S,
        )
        for worker in settings.workers
    ]


def gateway(settings: Settings, environment: Mapping[str, str]) -> ChildSpec:
    """Return the gateway, which drains for up to `shutdown_grace_s` after SIGTERM."""
    return ChildSpec(
        name="gateway",
        policy=RestartPolicy(final=frozenset({EX_CONFIG, _EX_SETTINGS})),
        group="gateway",
        command=_python("gateway.cli", "gateway"),
        environment=environment,
        grace_s=settings.gateway.shutdown_grace_s + _MARGIN_S,
    )


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    # -P: a `shared` or `gateway` directory that happens to lie where `up` was started is not ours.
    return (sys.executable, "-P", "-m", module, *arguments)
