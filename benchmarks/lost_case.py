"""A case in which a rival is better than `best`: the measurements, and the error of both, as one picture.

    python benchmarks/lost_case.py SCENES MODEL.onnx SCENE PATTERN METHOD [KEY=VALUE ...] -o FILE.jpg

SCENE is the name of a scene folder below SCENES, MODEL the network of its prior, PATTERN the measurements, as in a
protocol, and METHOD the rival with its options. What distance from the measurements the errors have is printed.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.ndimage import distance_transform_edt

from leadline.bench.metrics import relative_error
from leadline.bench.observations import simulate
from leadline.datasets import dataset
from leadline.methods import method, run_method
from leadline.priors import prior_source
from leadline.report.colour import colour_range, colourise, draw_measurements
from leadline.report.tiles import ColourBar, Tile, draw_panel

DISTANCES = (0, 5, 10, 25, 50, 100, 10_000)  # pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("scene")
    parser.add_argument("pattern")
    parser.add_argument("method")
    parser.add_argument("options", nargs="*")
    parser.add_argument("-o", "--output", type=Path, required=True)
    chosen = parser.parse_args()
    data = dataset("scenes", chosen.scenes)
    scene = data.load(chosen.scene)
    assert scene.reference is not None
    observed = simulate(scene, chosen.pattern, dataset=data.name)
    prior = prior_source(f"onnx:{chosen.model}")(scene.image, dataset=data, name=chosen.scene)
    rival = partial(method(chosen.method), **dict(option.split("=", 1) for option in chosen.options))
    depths = [run_method(run, prior, observed.sparse, image=scene.image).depth for run in (method("best"), rival)]
    errors = [np.where(observed.scored, relative_error(depth, scene.reference), np.nan) for depth in depths]
    distance = distance_transform_edt(~np.isfinite(observed.sparse))
    for low, high in pairwise(DISTANCES):
        ring = observed.scored & (distance > low) & (distance <= high)
        means = ", ".join(f"{100 * float(np.nanmean(error[ring])):.2f} %" for error in errors if ring.any())
        print(f"{low} to {high} pixels from a measurement, {ring.sum()} pixels: {means}")
    near, far = colour_range(scene.reference)
    top = float(np.nanpercentile(errors[0], 95))
    names = "best", " ".join((chosen.method, *chosen.options))
    tiles = [Tile(draw_measurements(observed.sparse, scene.image, low=near, high=far), chosen.pattern, chosen.scene)]
    for name, error in zip(names, errors, strict=True):
        picture = colourise(error, low=0.0, high=top, scheme="error")
        caption = f"mean error {100 * float(np.nanmean(error)):.2f} %"
        tiles.append(Tile(picture, name, caption, ColourBar("error", "0", f"{100 * top:.1f} %")))
    draw_panel([tiles], tile_width=360).save(chosen.output, quality=85)


if __name__ == "__main__":
    main()
