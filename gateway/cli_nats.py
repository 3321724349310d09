"""`evenflow nats`: the identities of a bus, for a NATS server of one's own and for the embedded one."""

from pathlib import Path

import click

from gateway.cli_common import config_option, load_settings

dir_option = click.option(
    "--dir", "directory", metavar="DIR", help="Where the bus keeps its identities [default: nats.directory]."
)


@click.group()
def nats() -> None:
    """Identities on the bus: who may connect to NATS, and as what."""


@nats.command()
@config_option
@click.option("--dir", "directory", metavar="DIR", required=True, help="Where to put everything.")
@click.option("--host", "hosts", metavar="NAME", multiple=True, required=True, help="A name or address of the server.")
@click.option("--port", type=click.IntRange(1, 65535), default=4222, show_default=True, help="Where it is to listen.")
def init(config: str | None, directory: str, hosts: tuple[str, ...], port: int) -> None:
    """Make authority, server configuration and identities for a NATS server of your own. Repeating it is safe.

    The identities are `provision`, and the gateway and workers of the settings.
    """
    from gateway.up import children, identities  # noqa: PLC0415
    from shared.identity import folder_name  # noqa: PLC0415

    wanted = children.identities(load_settings(config).settings)
    home = Path(directory)
    folders = identities.init(home, wanted, hosts, port)
    click.echo(f"Start the server in {home}: nats-server -c server.conf; then: evenflow nats streams")
    click.echo(f"Hand out, by a way that nobody reads along, from {folders}:")
    for known in identities.listed(home):
        click.echo(f"  {folder_name(known.kind, known.name)}")
    _reloaded(home)


@nats.command()
@config_option
def streams(config: str | None) -> None:
    """Make the streams on the running server of the settings, as `provision`. Repeating it changes nothing."""
    import asyncio  # noqa: PLC0415

    from gateway.up.provision import STREAM, make_streams  # noqa: PLC0415

    asyncio.run(make_streams(load_settings(config).settings.nats))
    click.echo(f"{STREAM['name']} is there")


@nats.command("add-worker")
@config_option
@dir_option
@click.argument("name")
def add_worker(config: str | None, directory: str | None, name: str) -> None:
    """Let one more worker in; a running server learns of it at once."""
    from gateway.up import identities  # noqa: PLC0415

    home = _home(config, directory)
    _handed_out(home, identities.add(home, "worker", name))


@nats.command("add-gateway")
@config_option
@dir_option
@click.argument("name")
def add_gateway(config: str | None, directory: str | None, name: str) -> None:
    """Let one more gateway in; a running server learns of it at once."""
    from gateway.up import identities  # noqa: PLC0415

    home = _home(config, directory)
    _handed_out(home, identities.add(home, "gateway", name))


@nats.command()
@config_option
@dir_option
@click.argument("name")
def remove(config: str | None, directory: str | None, name: str) -> None:
    """Shut a gateway or worker out, and forget its keys; a running server cuts it off at once."""
    from gateway.up import identities  # noqa: PLC0415

    home = _home(config, directory)
    identities.remove(home, name)
    click.echo(f"{name} is removed")
    _reloaded(home)


@nats.command("list")
@config_option
@dir_option
def list_(config: str | None, directory: str | None) -> None:
    """List all identities with their public keys."""
    from gateway.up import identities  # noqa: PLC0415

    for known in identities.listed(_home(config, directory)):
        click.echo(f"{known.kind:<9}  {known.name:<20}  {known.public}")


def _home(config: str | None, directory: str | None) -> Path:
    if directory is not None:
        return Path(directory)

    return Path(load_settings(config).settings.nats.directory)


def _handed_out(home: Path, folder: Path) -> None:
    click.echo(f"{folder} is the new identity; its process finds it with EVENFLOW_NATS__IDENTITIES={folder.parent}")
    _reloaded(home)


def _reloaded(home: Path) -> None:
    from gateway.up import identities  # noqa: PLC0415

    if identities.reload(home):
        click.echo("The running server has been told")
    else:
        click.echo("No server runs here: one that runs elsewhere needs the new identities.conf and a SIGHUP")
