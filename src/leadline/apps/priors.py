"""`leadline priors` lists what can be the prior; `leadline prior` saves predictions for later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.cli import say
from leadline.apps.network import Network, network_flags
from leadline.base.errors import FileError, InputError, LeadlineError

if TYPE_CHECKING:
    from leadline.batch.frame import Outcome
    from leadline.priors import PriorFacts

FORMS = ("npy", "npz", "exr", "pfm", "tiff")  # those that give the same numbers back


@click.command(
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
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def command(as_json: bool) -> None:
    """List the priors: what each predicts, its size and licence, what to install, and whether its weights are here.

    Quantity: depth grows with distance, disparity shrinks. Gauge: up to what the numbers are known (metric: nothing
    is missing; scale: a factor; affine: a factor and a shift).
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
    for title, width in (("predicts", 10), ("licence", 14), ("extra", 16), ("weights", 7)):  # as the longest words
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
        f"Predictions are kept in {folder['path']} ({folder['files']} files, {folder['megabytes']} MB).",
    )
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _rows() -> list[dict[str, Any]]:
    from leadline.priors import PRIORS
    from leadline.priors.weights import weights_present

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
    """What brings the packages that a prior needs: an extra of leadline, or what its module says."""
    if facts.extra is not None:
        return f"pip install 'leadline[{facts.extra}]'"
    command: str | None = getattr(import_module(facts.factory.partition(":")[0]), "INSTALL", None)
    return command


def _cache_facts() -> dict[str, Any]:
    from leadline.priors.cache import user_cache

    sizes = [path.stat().st_size for path in user_cache().rglob("*.npy")]
    return {"path": str(user_cache()), "files": len(sizes), "megabytes": round(sum(sizes) / 1e6, 1)}


@click.command(
    name="prior",
    epilog="""\b
Examples:
  leadline prior photo.jpg --prior onnx:model.onnx -o priors/
  leadline prior frames/ --prior onnx:model.onnx -o priors/ --form npz
  leadline complete frames/ --sparse depth/ --unit mm --prior priors/ -o out/

\b
For each image STEM it writes STEM.npy and, last, STEM.prior.json, which says
what the numbers are, so that --prior DIR needs no further flag. Images that
are done, by the same network, are skipped.

\b
Exit code: 0 all done; 1 an image of several failed; 2 nothing could be done;
130 stopped by Ctrl-C.
""",
)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--prior", "spec", required=True, metavar="NAME[:MODEL]", help="The network; 'leadline priors' lists them."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for the predictions; made if need be.",
)
@click.option("--form", type=click.Choice(FORMS), default="npy", show_default=True, help="Form of the predictions.")
@network_flags
@click.option("--overwrite", is_flag=True, help="Predict again what is there already.")
@click.option("--quiet", is_flag=True, help="Only notes and errors.")
def predict(images: tuple[Path, ...], spec: str, output: Path, form: str, **flags: Any) -> int:
    """Save what a network says about each IMAGE, a picture or a folder of pictures."""
    from leadline.apps.complete import make_writable
    from leadline.batch.folder import Report, conclude, guarded

    network = Network.from_flags(spec, flags)
    network.source  # noqa: B018  what is wrong with it is better said once than for each image
    pictures = _pictures(images)
    make_writable(output)

    def run(picture: Path) -> Outcome:
        return run_image(picture, network, output, form, overwrite=flags["overwrite"])

    if len(pictures) == 1 and images[0].is_file():
        outcome = run(pictures[0])
        for note in outcome.notes:
            say("note", note)
        if not flags["quiet"]:
            click.echo(f"{outcome.stem}: {outcome.message}")
        return 0
    report = Report(len(pictures), output, flags["quiet"], "predicting")

    def run_all() -> None:
        with report:
            for picture in pictures:
                report.take(guarded(picture.stem, lambda picture=picture: run(picture)))  # type: ignore[misc]

    return conclude(report, run_all)


def run_image(picture: Path, network: Network, output: Path, form: str, *, overwrite: bool) -> Outcome:
    """Predict and save one image's prior; "skipped" if that was done before.

    Raises
    ------
    LeadlineError
        If the image cannot be read, the network fails, or the folder takes no files.
    """
    from leadline.apps.cli import version
    from leadline.batch.frame import Outcome, sha256_of
    from leadline.io.depth.files import read_image
    from leadline.io.priors import read_facts, write_prior

    target = output / f"{picture.stem}.{form}"
    if target.resolve() == picture.resolve():
        raise InputError(f"{target}: would be written over the image; choose another -o or --form.")
    source = {"path": str(picture), "sha256": sha256_of(picture)}
    if not overwrite and target.exists():
        try:
            facts = read_facts(target)
        except LeadlineError:
            facts = {}  # a damaged sidecar is replaced
        before = (facts.get("file"), facts.get("fingerprint"), (facts.get("image") or {}).get("sha256"))
        if before == (target.name, network.fingerprint, source["sha256"]):
            return Outcome(picture.stem, "skipped", "there already, by the same network (see --overwrite)")
    prior, whose = network.predict(read_image(picture), picture.stem)
    notes = (network.note,) if network.note else ()
    facts = {"leadline": version(), "prior": network.spec, "options": network.options, "image": source, "notes": notes}
    write_prior(target, prior, {**whose, **facts})
    return Outcome(picture.stem, "done", f"{prior.kind} by {whose['model']}, wrote {target}", notes, (target,))


def _pictures(given: Sequence[Path]) -> list[Path]:
    """The pictures that are given, and those of the folders that are; refuses two of the same name."""
    from leadline.batch.folder import IMAGE_SUFFIXES, listing

    found: list[Path] = []
    for path in given:
        if not path.exists():
            raise FileError(f"{path}: there is no such picture or folder; check the path.")
        listed = listing(path, IMAGE_SUFFIXES) if path.is_dir() else {path.stem: [path]}
        inside = [file for files in listed.values() for file in files]
        if not inside:
            raise FileError(f"{path}: there is no picture in it; those end in {', '.join(IMAGE_SUFFIXES)}.")
        found += inside
    places: dict[str, Path] = {}
    for picture in found:
        other = places.setdefault(picture.stem, picture)
        if other.resolve() != picture.resolve():
            raise InputError(f"{other} and {picture} would be saved under one name; give them apart, with two -o.")
    return list(places.values())
