"""`leadline priors` lists the priors; `leadline prior` saves predictions."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.terminal.commands import PATH, grouped_command, option, output_option, run_option
from leadline.apps.terminal.flags import PriorFlags, prior_flags, quiet_flag

if TYPE_CHECKING:
    from leadline.priors import PriorFacts

FORMATS = ("npy", "npz", "exr", "pfm", "tiff")  # formats that preserve the numbers exactly


@grouped_command(
    epilog="""\b
Examples:
  leadline priors
  leadline priors --json

\b
A name goes after --prior, with the path or hub id of another model of its
kind after a colon:
  --prior moge-2
  --prior moge-2:weights/model.pt
  --prior transformers:Intel/dpt-large
"""
)
@option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(as_json: bool) -> None:
    """List the priors: what each predicts, its size and licence, what to install, and whether its weights are here.

    Depth grows with distance, disparity shrinks. A metric prediction is in metres, one of gauge "scale" is known up to
    a factor, and one of gauge "affine" up to a factor and a shift.
    """
    rows = _rows()
    folder = _cache_facts()
    if as_json:
        click.echo(json.dumps({"priors": rows, "cache": folder}, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("name")
    for title, width in (("predicts", 10), ("licence", 14), ("extra", 16), ("weights", 7)):  # the longest entries
        table.add_column(title, width=width)
    for row in rows:
        licence = Text(row["licence"])
        if not row["commercial"]:
            licence.append("\nnon-commercial", style="bold red")
        weights = {True: "here", False: "no", None: "-" if row["name"] == "none" else "yours"}[row["weights"]]
        predicts = f"{row['quantity']}, {row['gauge']}" if row["gauge"] != "unknown" else row["quantity"]
        summary = ", ".join(filter(None, (row["summary"], row["size"])))
        name = Text.assemble((row["name"], "bold"), "\n", (summary, "dim"))
        extra = row["extra"] or ("*" if row["install"] else "-")
        table.add_row(name, Text(predicts), licence, Text(extra), Text(weights))
    console = Console()
    console.print(table)
    foreign = dict.fromkeys(row["install"] for row in rows if row["install"] and not row["extra"])
    lines = (
        "An extra is installed by pip install 'leadline[EXTRA]'.",
        *(f"* {install}" for install in foreign),
        f"Predictions are cached in {folder['path']} ({folder['files']} files, {folder['megabytes']} MB).",
    )
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _rows() -> list[dict[str, Any]]:
    from leadline.priors import PRIORS
    from leadline.priors.model_files import weights_present

    return [
        {
            "name": name,
            "summary": facts.summary,
            "quantity": facts.quantity,
            "gauge": facts.gauge,
            "model": facts.model,
            "size": facts.size,
            "licence": facts.licence,
            "commercial": facts.commercial,
            "extra": facts.extra,
            "install": _install(facts),
            "weights": None if facts.model is None else weights_present(name),
        }
        for name, facts in PRIORS.items()
    ]


def _install(facts: PriorFacts) -> str | None:
    """The command that installs the packages that a prior needs."""
    if facts.extra is not None:
        return f"pip install 'leadline[{facts.extra}]'"
    return facts.install


def _cache_facts() -> dict[str, Any]:
    from leadline.priors.predictor import default_cache_folder

    sizes = [path.stat().st_size for path in default_cache_folder().rglob("*.npy")]
    return {"path": str(default_cache_folder()), "files": len(sizes), "megabytes": round(sum(sizes) / 1e6, 1)}


@grouped_command(
    name="prior",
    epilog="""\b
Examples:
  leadline prior photo.jpg --prior onnx:model.onnx -o priors/
  leadline prior frames/ --prior onnx:model.onnx -o priors/ --format npz
  leadline complete frames/ --sparse depth/ --unit mm --prior priors/ -o out/

\b
For each image STEM it writes STEM.npy and, last, STEM.prior.json, which records
what the numbers are, so that --prior DIR needs no further flag. Images that the
same network has predicted already are skipped.

\b
Exit code: 0 all done; 1 an image of several failed; 2 nothing could be done;
130 stopped by Ctrl-C.
""",
)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=PATH)
@prior_flags(
    text="The network; 'leadline priors' lists them.",
    metavar="NAME[:MODEL]",
    file=False,
)
@output_option("-o", "--output", type=PATH, required=True, help="Folder for the predictions; made if not there.")
@output_option(
    "--format", "file_format", type=click.Choice(FORMATS), default="npy", help="File format of the predictions."
)
@run_option("--overwrite", is_flag=True, help="Predict images again that are predicted already.")
@quiet_flag
def predict(
    images: tuple[Path, ...], prior: PriorFlags, output: Path, file_format: str, overwrite: bool, quiet: bool
) -> int:
    """Save the prediction of a network for each IMAGE, an image or a folder of images."""
    from leadline.apps.terminal.progress import FolderReport, make_output_folder, print_outcome
    from leadline.batch.folder import list_images, save_prediction
    from leadline.batch.outcome import Outcome, outcome_of

    found = list_images(images)
    predictor = prior.predictor()
    predictor.open()  # an error of the network is reported once, not for each image
    make_output_folder(output)

    def save(image: Path) -> Outcome:
        return save_prediction(image, predictor, output, file_format=file_format, overwrite=overwrite)

    if len(found) == 1 and images[0].is_file():
        print_outcome(save(found[0]), quiet=quiet)
        return 0
    with FolderReport(len(found), output, quiet=quiet, doing="predicting") as report:
        for image in found:
            report.add(outcome_of(image.stem, partial(save, image)))
    return report.finish("the same command continues from here.")
