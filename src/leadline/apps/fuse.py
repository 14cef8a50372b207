"""`leadline fuse`: one mesh from the depth maps of many posed pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from leadline.apps.terminal.commands import PATH, grouped_command, input_option, option, output_option, run_option
from leadline.apps.terminal.flags import take_fields
from leadline.base.errors import FileError, InputError, param

EXAMPLES = """\b
Examples:
  leadline fuse out/
  leadline fuse out/ -o mesh.glb --points cloud.ply --voxel 0.01
  leadline fuse out/ --report page.html

\b
VIEWS is the output of 'leadline colmap --consistent', or its views.json; or
posed depth of others: nerfstudio's transforms.json, a sequence of 7-Scenes.
Lengths are in the unit of the depth: metres, or the model's.

\b
Exit code: 0 done; 2 nothing could be done.
"""


@grouped_command(epilog=EXAMPLES)
@click.argument("views", type=PATH)
@input_option("--alone", is_flag=True, help="Fuse the depth that each picture has by itself, to compare.")
@output_option("-o", "--output", type=PATH, help="Mesh: .ply, .glb, .obj or .stl.  [default: mesh.ply in VIEWS]")
@output_option("--points", type=PATH, metavar="FILE", help="Also write the fused point cloud, as .ply.")
@output_option("--report", type=PATH, metavar="FILE", help="Also write a page with a turntable and slices, as .html.")
@option("--voxel", group="Fusion", type=float, help="Edge of a voxel.  [default: three pixels at the median depth]")
@option("--truncation", group="Fusion", type=float, default=5.0, help="Voxels around the surface that a map fills.")
@option("--max-depth", group="Fusion", type=float, help="Leave out pixels farther away.")
@option(
    "--max-sigma",
    group="Fusion",
    type=float,
    default=0.1,
    help="Leave out pixels whose standard deviation is larger, relative to their depth.",
)
@option(
    "--min-views", group="Fusion", type=click.IntRange(1), default=2, help="Pictures that must see a piece of surface."
)
@run_option("--quiet", is_flag=True, help="Print only notes and errors.")
def command(
    views: Path,
    alone: bool,
    output: Path | None,
    points: Path | None,
    report: Path | None,
    quiet: bool,
    **values: Any,
) -> int:
    """Fuse the depth maps of VIEWS into one mesh with colours, by a truncated signed distance function."""
    from leadline.batch.fusion import MESH_SUFFIXES, FusionOptions, StoredViews, fuse, write_report
    from leadline.io.views.posed import read_views

    options = take_fields(FusionOptions, values)
    folder = views if views.is_dir() else views.parent
    output = output or folder / "mesh.ply"
    if output.suffix.lower() not in MESH_SUFFIXES:
        raise InputError(f"{param('output')} {output}: a mesh is written as {', '.join(MESH_SUFFIXES)}.")
    for path, suffix in ((points, ".ply"), (report, ".html")):
        if path is not None and path.suffix.lower() != suffix:
            raise InputError(f"{path}: must end in {suffix}.")
    for path in (output, points, report):
        if path is not None and not path.resolve().parent.is_dir():
            raise FileError(f"{path}: the folder {path.parent} does not exist; make it first.")
    listed = read_views(views)
    surface = fuse(StoredViews(listed, alone=alone), options)
    surface.write_mesh(output)
    written = [output]
    if points is not None:
        surface.write_points(points)
        written.append(points)
    if report is not None:
        write_report(report, views, listed, surface, options)
        written.append(report)
    if not quiet:
        click.echo(
            f"{surface.views} pictures: {len(surface.triangles)} triangles, {len(surface.points)} points, voxels of "
            f"{surface.voxel:.3g}"
        )
        for path in written:
            click.echo(f"wrote {path}")
    return 0
