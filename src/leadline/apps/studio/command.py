"""The command `leadline studio`: start the server and open the page."""

from __future__ import annotations

import errno
import signal
import webbrowser
from importlib.util import find_spec
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING

import click

from leadline.apps.terminal.commands import say
from leadline.base.errors import InputError, param

if TYPE_CHECKING:
    from leadline.apps.studio.server import Limits, Studio
    from leadline.priors.predictor import Predictor

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
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port; 0 takes any free one."
)
@click.option("--no-browser", is_flag=True, help="Print the address of the page without opening it.")
@click.option(
    "--prior",
    "priors",
    multiple=True,
    metavar="NAME[:MODEL]",
    help="Offer this network and select it, e.g. onnx:model.onnx. Networks with installed weights are offered anyway.",
)
@click.option(
    "--download", is_flag=True, help="Download the weights of --prior without asking, if they are not on this machine."
)
@click.option("--device", help="Device of the networks: auto, cpu, cuda, cuda:1, mps.  [default: auto]")
@click.option(
    "--upload-limit", type=click.FloatRange(min=0.01), default=256.0, show_default=True, help="Largest file in MB."
)
@click.option(
    "--idle",
    type=click.FloatRange(min=0.01),
    default=60.0,
    show_default=True,
    help="Minutes until unused files are removed.",
)
def command(
    host: str,
    port: int,
    no_browser: bool,
    priors: tuple[str, ...],
    download: bool,
    device: str | None,
    upload_limit: float,
    idle: float,
) -> int:
    """Complete a scene on a page in the browser: drop files, inspect the result, compare methods, download.

    Only this machine can reach the page unless --host says otherwise, and no data leaves it. Uploaded files are kept
    in a temporary folder and removed when the command ends.
    """
    from leadline.apps.studio.server import LOCAL_HOSTS, Limits
    from leadline.apps.terminal.weights import ensure_weights

    limits = Limits(int(upload_limit * 2**20), idle * 60)
    default_prior = predictor_name(priors[0]) if priors else None
    predictors = find_predictors(priors, device, offer=host in LOCAL_HOSTS)  # visitors start no downloads
    for spec in priors:
        ensure_weights(predictors[predictor_name(spec)], approved=download)
    studio = open_studio(host, port, predictors, limits, default_prior)
    # A supervisor's signal must clean up just as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not studio.local:
        say("note", f"other machines can reach {host}, and everybody who does can use this computer.")
    click.echo(f"leadline studio: {studio.url}  (stop it with Ctrl-C)")
    try:
        if not no_browser:
            webbrowser.open(studio.url)
        studio.serve()
    except KeyboardInterrupt:
        click.echo("\nstopped; the uploaded files are removed.")
    finally:
        studio.close()
    return 0


def open_studio(
    host: str, port: int, predictors: dict[str, Predictor], limits: Limits, default_prior: str | None = None
) -> Studio:
    """The server, listening; on any free port if the requested one is in use."""
    from leadline.apps.studio.server import Studio

    try:
        return Studio(host, port, predictors, limits, default_prior)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or port == 0:
            reason = error.strerror or error
            raise InputError(
                f"{param('host')} {host}, {param('port')} {port}: cannot listen there ({reason})."
            ) from error
    say("note", f"port {port} is in use; another one is taken.")
    return open_studio(host, 0, predictors, limits, default_prior)


def find_predictors(specs: tuple[str, ...], device: str | None, *, offer: bool = False) -> dict[str, Predictor]:
    """Networks that the page offers, by name: those of `specs`, those whose weights are on this machine, and none.

    With `offer`, the recommended network is among them also without its weights, if its packages are installed.
    """
    from leadline.priors import PRIORS, RECOMMENDED, prior_options
    from leadline.priors.model_files import weights_present
    from leadline.priors.predictor import Predictor

    offer = offer and find_spec("torch") is not None and find_spec("transformers") is not None
    recommended = [RECOMMENDED] if offer else []
    available = [*specs, *(name for name in PRIORS if weights_present(name)), *recommended, "none"]
    found = {}
    for spec in dict.fromkeys(available):
        name, _, _ = spec.partition(":")
        options = {"device": device} if device and "device" in prior_options(name) else {}
        found[predictor_name(spec)] = Predictor(spec, options)
    return found


def predictor_name(spec: str) -> str:
    """The name of a prior on the page: that of its model without the folder.

    Examples
    --------
    >>> predictor_name("onnx:models/small.onnx"), predictor_name("moge-2")
    ('onnx: small.onnx', 'moge-2')
    """
    name, _, model = spec.partition(":")  # a Windows path splits at both kinds of slashes
    return f"{name}: {PureWindowsPath(model).name}" if model else name
