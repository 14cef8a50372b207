"""Figures of single images: the choice of the image, and what is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")


from leadline.base.errors import InputError
from leadline.bench.protocol import PriorEntry
from leadline.bench.tables import BEST, FIXED, OURS, RESPONSE
from leadline.report.figures import draw, run_source, single_images
from leadline.report.figures.plotting import SMALLEST
from leadline.report.image_results import ImageCase
from support.bench_runs import protocol, run

FLOAT32 = 1e-6  # relative: both scores are sums in float64 of float32 errors, in different orders


def test_rules_choose_the_image(run_folder):
    source = run_source(run_folder)
    first, second = list(dict.fromkeys(record.image for record in source.records))

    def changed(image, method, **scores):
        return tuple(replace(r, **scores) if (r.image, r.method) == (image, method) else r for r in source.records)

    needed = (*FIXED, RESPONSE)
    for image in (first, second):
        better = replace(source, records=changed(image, RESPONSE, mae=1e-6))
        chosen = single_images.choose(better, needed, single_images.mae_ratio)
        assert (chosen.image, chosen.case) == (image, "distributed")
    failed = replace(source, records=changed(first, RESPONSE, status="failed"))
    assert single_images.choose(failed, needed, single_images.mae_ratio).image == second
    asked = replace(source, image=second, case="outer")
    assert single_images.choose(asked, needed, single_images.mae_ratio) == ImageCase("Rooms", second, "outer", "made")
    with pytest.raises(InputError, match="needs an image with scores of all of"):
        single_images.choose(source, ("Poisson",), single_images.mae_ratio)


def test_the_prior_is_the_first_that_has_scores(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    chosen = protocol("glog", "knn", count=1, cases=["outer"])
    missing = PriorEntry(f"files:{tmp_path / 'empty'}", "missing")
    run(replace(chosen, priors=(missing, *chosen.priors)), tmp_path / "RUN")
    source = run_source(tmp_path / "RUN")
    assert source.prior == "made"
    assert set(draw("macro", source).numbers["points"]) == {"GLog", "KNN"}


def test_complete_systems_are_shown_before_baselines_and_ours_last():
    methods = ["Raw", "GDisp", "KNN", "Mine", OURS, "LWLR", RESPONSE]
    assert single_images.compared(methods) == ["Mine", "KNN", "LWLR", OURS]
    assert single_images.compared([BEST, *methods]) == ["Mine", "KNN", "LWLR", OURS, BEST]
    systems = ["PromptDA", "Any2Full", "LDCM", "PriorDA", RESPONSE, OURS]
    assert single_images.compared(systems) == ["PriorDA", "LDCM", "Any2Full", OURS]  # as in the paper


def test_the_error_scale_of_qualitative_ends_as_in_the_paper_or_as_chosen(run_folder):
    for largest, end in ((None, 0.3), (2.0, 2.0)):
        drawing = draw("qualitative", run_source(run_folder, largest_error=largest))
        assert drawing.numbers["error_scale_end"] == end
        bars = [bar for axes in drawing.figure.axes for bar in axes.child_axes]
        assert [label.get_text() for label in bars[0].get_xticklabels()] == ["error 0", f"> {end:g} m"]


def test_near_linear_looks_for_an_image_with_a_high_correlation(run_folder, monkeypatch):
    source = run_source(run_folder)
    first, second = list(dict.fromkeys(record.image for record in source.records))

    def absrel(image, value):
        return [replace(r, absrel=value, mae=1.0) if r.image == image and r.method in FIXED else r for r in records]

    records = list(source.records)
    for image in (first, second):
        records = absrel(image, 0.01)  # both are in the half with the lowest
    source = replace(source, records=tuple(records))
    measured = single_images.all_linearity

    def correlated(results, methods):
        found = measured(results, methods)
        high = second in results.title
        return {name: replace(entry, pearson=0.995 if high else 0.9) for name, entry in found.items()}

    monkeypatch.setattr(single_images, "all_linearity", correlated)
    assert second in draw("near-linear", source).numbers["title"]
    monkeypatch.setattr(single_images, "NEAR_LINEAR", 0.5)  # the first one that is tried is enough
    ratios = {c: single_images.mae_ratio(source.records_of(c)) for c in source.image_cases() if c.case == "distributed"}
    assert max(ratios, key=lambda place: ratios[place]).image in draw("near-linear", source).numbers["title"]


@pytest.mark.parametrize("name", ["regions", "motivation", "near-linear", "qualitative"])
def test_figures_of_one_image_are_drawn_from_the_run(run_folder, name):
    from matplotlib.text import Text

    drawing = draw(name, run_source(run_folder, cases=["outer"]))
    assert drawing.numbers["title"].endswith("outer")
    texts = [text for text in drawing.figure.findobj(Text) if text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) >= SMALLEST
    if name == "qualitative":
        there = run_source(run_folder).records_of(
            ImageCase("Rooms", drawing.numbers["title"].split(": ")[1].split(",")[0], "outer", "made")
        )
        for method, mae in drawing.numbers["held_out_mae"].items():
            assert mae == pytest.approx(there[method].mae, rel=FLOAT32)
            assert any(f"{method}\n{mae:.3f} m" in text.get_text() for text in texts)
