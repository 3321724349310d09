"""`evenflow-worker serve`: one engine on the bus."""

import asyncio
import os
import signal
import sys

import click

from shared.errors import EvenflowError, SettingsError
from shared.settings import Settings, WorkerSettings

EXIT_FAILED = 1
EXIT_CONFIGURATION = 78  # sysexits.h: a restart cannot help


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Evenflow's worker: quantised models behind NATS."""


@main.command()
@click.option("--name", default=None, help="Which [[workers]] entry to run (default: the first).")
@click.option("--config", default=None, help="Settings file (default: evenflow.toml here, if it exists).")
def serve(name: str | None, config: str | None) -> None:
    """Load the model and serve until SIGTERM."""
    from shared.settings_load import load  # noqa: PLC0415 -- keeps --help quick

    try:
        settings = load(config, os.environ).settings
        worker = _entry(settings, name)
    except SettingsError as error:
        click.echo(f"evenflow-worker: {error}", err=True)
        sys.exit(EXIT_CONFIGURATION)
    try:
        _run(settings, worker)
    except* EvenflowError as group:
        for leaf in _leaves(group):
            click.echo(f"evenflow-worker: {worker.name}: {leaf}", err=True)
        sys.exit(EXIT_CONFIGURATION if _final(group) else EXIT_FAILED)


def _entry(settings: Settings, name: str | None) -> WorkerSettings:
    for worker in settings.workers:
        if name is None or worker.name == name:
            return worker
    raise SettingsError(f"workers: there is no entry named {name!r}")


def _run(settings: Settings, worker: WorkerSettings) -> None:
    import uvloop  # noqa: PLC0415

    from shared.telemetry import configure_logs  # noqa: PLC0415

    configure_logs(worker.name, settings.telemetry.log_level, settings.telemetry.log_directory)
    uvloop.run(_serve(settings, worker))


async def _serve(settings: Settings, worker: WorkerSettings) -> None:
    from shared import heap  # noqa: PLC0415
    from shared.bus import Bus  # noqa: PLC0415
    from shared.identity import find_identity  # noqa: PLC0415
    from shared.tracing import Tracing  # noqa: PLC0415
    from workers.compose import make_engine, spec_for  # noqa: PLC0415
    from workers.node import Node  # noqa: PLC0415

    heap.settle()
    node_bus = Bus(worker.name, os.urandom(8).hex())
    tracing = Tracing.configured("evenflow-worker", worker.name, settings.telemetry)
    node = Node(worker, spec_for(worker), make_engine(worker), node_bus, tracing=tracing, end_within=_end_within)
    identity = find_identity(settings.nats.identities, "worker", worker.name)
    await node_bus.connect(settings.nats.url, identity=identity, credentials=settings.nats.credentials)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stopping.set)
    try:
        await node.run()
    finally:
        await node_bus.close()
        await tracing.close()


def _end_within(seconds: float) -> None:
    """The kernel's alarm: it ends the process even where a library holds the interpreter and never lets go."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _leaves(group: BaseException) -> list[BaseException]:
    if isinstance(group, BaseExceptionGroup):
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [group]


def _final(group: BaseException) -> bool:
    from shared.errors import ModelError  # noqa: PLC0415

    return any(isinstance(leaf, ModelError | SettingsError) for leaf in _leaves(group))


if __name__ == "__main__":
    main()
