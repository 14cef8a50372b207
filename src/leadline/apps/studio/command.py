"""`leadline studio`: start the server and open the page."""

from __future__ import annotations

import errno
import signal
import webbrowser
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.cli import say
from leadline.base.errors import InputError

if TYPE_CHECKING:
    from leadline.apps.network import Network
    from leadline.apps.studio.server import Limits, Studio

PORT = 8421


@click.command(
    epilog="""\b
Examples:
  leadline studio
  leadline studio --prior onnx:model.onnx
  leadline studio --no-browser --port 0
"""
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0, or if it is taken: any free one."
)
@click.option("--no-browser", is_flag=True, help="Do not open the page, only say where it is.")
@click.option(
    "--prior",
    "priors",
    multiple=True,
    metavar="NAME[:MODEL]",
    help="Offer this network too, e.g. onnx:model.onnx; those whose weights are here are offered anyway.",
)
@click.option("--device", help="Where networks run: auto, cpu, cuda, cuda:1, mps.  [default: auto]")
@click.option(
    "--upload-limit", type=click.FloatRange(min=0.01), default=256.0, show_default=True, help="MB of one file."
)
@click.option(
    "--idle", type=click.FloatRange(min=0.01), default=60.0, show_default=True, help="Minutes until files are removed."
)
def command(
    host: str,
    port: int,
    no_browser: bool,
    priors: tuple[str, ...],
    device: str | None,
    upload_limit: float,
    idle: float,
) -> int:
    """Complete a scene on a page in the browser: drop files, look at the result from all sides, download it.

    The page is served by this command to this machine alone; nothing leaves it. What is uploaded is kept in a
    temporary folder and removed when the command ends.
    """
    from leadline.apps.studio.server import Limits

    studio = open_studio(host, port, offered(priors, device), Limits(int(upload_limit * 2**20), idle * 60))
    # Ended by a supervisor is as good as by Ctrl-C: both must come by the cleaning up.
    signal.signal(signal.SIGTERM, _interrupt)
    if not studio.local:
        say("note", f"{host} can be reached from other machines, and whoever reaches it can use this computer's time.")
    click.echo(f"leadline studio: {studio.url}  (Ctrl-C ends it)")
    try:
        if not no_browser:
            webbrowser.open(studio.url)
        studio.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        click.echo("\nended; uploaded files are removed.")
    finally:
        studio.close()
    return 0


def open_studio(host: str, port: int, networks: dict[str, Network], limits: Limits) -> Studio:
    """The server, bound; on any free port if the one asked for is taken.

    Raises
    ------
    InputError
        It cannot listen on that address.
    """
    from leadline.apps.studio.server import Studio

    try:
        return Studio(host, port, networks, limits)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or port == 0:
            raise InputError(
                f"--host {host} --port {port}: cannot listen there ({error.strerror or error})."
            ) from error
    say("note", f"port {port} is taken; another one is used.")
    return open_studio(host, 0, networks, limits)


def offered(priors: tuple[str, ...], device: str | None) -> dict[str, Network]:
    """Networks for the page by name: those asked for, those whose weights are on this machine, and none at all.

    Raises
    ------
    InputError
        A name is not a prior's.
    """
    from leadline.apps.network import Network
    from leadline.priors import PRIORS, prior_options
    from leadline.priors.weights import weights_present

    specs = [*priors, *(name for name in PRIORS if weights_present(name)), "none"]
    found: dict[str, Network] = {}
    for spec in dict.fromkeys(specs):
        name, _, model = spec.partition(":")
        options = {"device": device} if device and "device" in prior_options(name) else {}
        label = f"{name}: {model.replace(chr(92), '/').rsplit('/', 1)[-1]}" if model else name
        found[label] = Network(spec, options, None)
    return found


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
