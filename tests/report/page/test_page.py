"""The HTML report: what is in the file, and what a real browser makes of it."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from leadline.base.errors import FileError, InputError
from leadline.bench.plan import Task, WorkItem
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.protocol_files import read_protocol
from leadline.bench.records import Record, RecordStore, read_records
from leadline.bench.results import read_results
from leadline.bench.tables import tables_of
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera
from leadline.methods import MethodResult
from leadline.report.colour import UNKNOWN
from leadline.report.image_results import ImageCase, ImageResults
from leadline.report.page import thumbnails as page_pictures
from leadline.report.page import write_page
from leadline.report.page.sections import heat_colours, heat_style, protocol_toml
from leadline.report.page.thumbnails import choose_records, error_scales
from support.bench_runs import protocol
from support.bench_runs import run as run_bench
from support.browser import PHONE, chromium, quiet_page  # noqa: F401  (fixtures)
from support.cli_frames import leadline

if TYPE_CHECKING:
    from playwright.sync_api import Page

METHODS = ("gmetric", "knn", "response", "ours")
EVIL = "<script>window.ran = 1</script><img src=x onerror=window.ran=1>\"'&amp;</td></script ><!--<script "
MOST_PICTURES, MOST_NODES = 60, 12_000  # at load, whatever the run's size: a page of rows and the cards near the window
CONTRAST = 4.5  # of small text, WCAG 2 level AA


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("html") / "RUN"
    run_bench(protocol(*METHODS, count=3, cases=("distributed", "outer")), made)
    return made


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    path = folder.parent / "report.html"
    result = leadline(f"bench report {folder} --html {path}")
    assert result.exit_code == 0, result.output
    assert "24 records with pictures" in result.output
    return path


def store(folder: Path, records: list[Record], chosen: Protocol) -> Path:
    """A run of records that nobody computed."""
    items = [WorkItem(r.dataset, r.image, r.prior, (Task(r.key, r.case, r.method, r.options),)) for r in records]
    with RecordStore(folder, create=True) as made:
        made.set_plan(items, chosen)
        made.add(records)
    return folder


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found
    return dict(json.loads(found[1]))


def write(folder: Path, path: Path, **settings: Any) -> Any:
    return write_page(folder, path, tables_of(read_results(folder)), **settings)


# ---- the file


def test_the_file_stands_alone(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"\{[{%#]", re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL))
    addresses = set(re.findall(r"https?://[^\s\"'<)]*", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, which nothing fetches
    assert not re.search(r"<link|@import|<iframe|srcset", text)
    assert "default-src 'none'" in text


def test_scores_are_those_of_the_records(folder: Path, report: Path) -> None:
    records, data = read_records(folder), data_of(report)
    shown = [data["labels"]["method"][place] for place in data["columns"]["method"]]
    assert shown == [record.method for record in records]
    np.testing.assert_allclose(data["columns"]["mae"], [record.mae for record in records], rtol=1e-4)  # 5 digits
    results = read_results(folder)
    for spread in data["spreads"]:
        place = ("made", spread["method"], spread["subset"], spread["metric"])
        assert spread["values"] == list(results.distributions[place].percentiles.values())


def test_pictures_are_drawn_once(folder: Path, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> ImageResults:
        raise AssertionError("it computed maps again")

    monkeypatch.setattr(page_pictures, "recompute_results", never)
    again = write(folder, tmp_path / "again.html")
    assert again.pictures == 24
    first, second = data_of(report), data_of(tmp_path / "again.html")
    assert second == first
    # The image, the measurements, the prior and the reference of a place are in the page once for all methods.
    pictures = [tile["picture"] for tiles in second["cards"].values() for tile in tiles]
    assert len(set(pictures)) < len(pictures) * 0.7


def test_a_damaged_or_foreign_picture_is_drawn_again(folder: Path, report: Path, tmp_path: Path) -> None:
    files = sorted((folder / "cache" / "thumbnails").rglob("*.json"))
    whole = files[0].read_bytes()
    for content in (b"", b"[]", whole.replace(b"data:image/webp;base64,", b"</script><script>alert(1)</script>")):
        files[0].write_bytes(content)
        assert write(folder, tmp_path / "r.html").pictures == 24
        assert files[0].read_bytes() == whole
        assert "alert(1)" not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_without_the_data_there_are_reasons_and_a_page(folder: Path, tmp_path: Path) -> None:
    """The pictures of a run whose data set is elsewhere: one note with the reason, and all else is there."""
    chosen = Protocol(
        (DatasetEntry("scenes", "Rooms", root=str(tmp_path / "gone")),),
        (PriorEntry("rendered", "made"),),
        tuple(MethodEntry(name) for name in METHODS),
        ("distributed", "outer"),
    )
    records = [replace(record, key=f"x{record.key}") for record in read_records(folder)]
    moved = store(tmp_path / "RUN", records, chosen)
    result = leadline(f"bench report {moved} --html {tmp_path / 'r.html'}")
    assert result.exit_code == 0, result.output
    assert "note: 24 records without pictures: " in result.output
    assert str(tmp_path / "gone") in result.output
    assert len(set(data_of(tmp_path / "r.html")["absent"].values())) == 1


def test_the_protocol_reads_back(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ name\x7f\n'
    chosen = Protocol(
        (DatasetEntry("rendered", odd, normals=False, options={"count": 2, "x y": [1.5, True]}),),
        (PriorEntry("rendered", "made"), PriorEntry("none")),
        (MethodEntry("ours", "stiff", {"weight_data": 1e-5}), MethodEntry("knn")),
        ("outer",),
        limit=2,
    )
    path = tmp_path / "p.toml"
    path.write_text(protocol_toml(chosen), encoding="utf-8", newline="\n")
    assert read_protocol(str(path), limit=2) == chosen
    assert "limited to 2 images" in path.read_text(encoding="utf-8")


def test_best_and_worst_images() -> None:
    def made(image: str, case: str, score: float) -> Record:
        labels = {"dataset": "d", "prior": "p", "method": "m", "status": "ok" if score < 9 else "failed"}
        return Record(key=image + case, image=image, case=case, absrel=score, **labels)

    scores = {("a", "x"): 1.0, ("a", "y"): 5.0, ("b", "x"): 2.0, ("b", "y"): 3.0, ("c", "x"): 4.0, ("d", "x"): 9.0}
    records = [made(image, case, score) for (image, case), score in scores.items()]
    (choice,) = choose_records(records, "p", 2)
    assert [record.key for record in choice.best] == ["ax", "bx"]
    assert [record.key for record in choice.worst] == ["ay", "cx"]
    (all_of_them,) = choose_records(records, "p", 9)
    assert [record.key for record in all_of_them.worst] == ["ay", "by"]  # c has one record, which is a best one
    assert choose_records(records, "other", 2) == []
    assert error_scales(records, "p") == {"d": 15.0}  # thrice the median, 3.5, rounded up


def test_the_heat_map_keeps_its_order_and_its_contrast() -> None:
    values = np.array([[0.1, math.nan], [0.15, 2.0], [0.2, 0.0], [0.3, 3.0], [5.0, 4.0]])
    colours, best = heat_colours(values)
    assert np.argwhere(best).tolist() == [[0, 0], [2, 1]]
    assert colours[3, 1].tolist() == colours[4, 0].tolist()  # infinitely and 50 times worse: the end of the ramp
    assert colours[0, 1].tolist() == list(UNKNOWN)
    light = [_luminance(colour) for colour in colours[:, 0]]
    assert light == sorted(light, reverse=True)  # in grey print and for any colour vision: darker is worse
    for colour in heat_colours(np.linspace(1.0, 4.0, 60)[:, None])[0][:, 0]:
        ink = re.search(r";color:(#\w+)", heat_style(colour))
        assert ink
        a, b = sorted((_luminance(colour), 0.0 if ink[1] == "#000" else 1.0))
        assert (b + 0.05) / (a + 0.05) >= CONTRAST


def _luminance(colour: Any) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (int(v) / 255 for v in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_refusals(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    for line, said in (
        (f"bench report {folder} --html {out} --format latex", "leave --format and -o out"),
        (f"bench report {folder} --panels 2", "--panels needs --html FILE"),
        (f"bench report {folder} --html {out} --prior nobody", "'nobody'"),
        (f"bench report {folder} --html {tmp_path / 'no' / 'r.html'}", "a folder that exists"),
        (f"bench report {folder} --html {tmp_path}", "a folder that exists"),
        (f"bench report {tmp_path / 'none'} --html {out}", "there is no such folder"),
    ):
        result = leadline(line)
        assert result.exit_code == 2
        assert said in result.output
    with pytest.raises(InputError, match="panels"):
        write_page(folder, out, [], panels=-1)
    with pytest.raises(InputError, match="no prior 'nobody'"):
        write_page(folder, out, [], prior="nobody")
    with pytest.raises(InputError, match="no records yet"):
        write_page(store(tmp_path / "empty", [], protocol("ours")), out, [])
    with pytest.raises(FileError, match="contains no protocol"):
        write_page(_without_protocol(folder, tmp_path), out, [], panels=0)
    assert not out.exists()


def _without_protocol(folder: Path, tmp_path: Path) -> Path:
    made = store(tmp_path / "bare", read_records(folder), protocol("ours"))
    connection = sqlite3.connect(made / "records.sqlite")
    connection.execute("DELETE FROM facts")
    connection.commit()
    connection.close()
    return made


# ---- in a browser


def opened(page: Page, path: Path) -> list[str]:
    """Open a file; the addresses that the page asks for, now and later, beside the file itself."""
    asked: list[str] = []
    page.on("request", lambda request: None if request.url.startswith("data:") else asked.append(request.url))
    page.goto(path.as_uri())
    asked.remove(path.as_uri())
    return asked


def test_sorting_sorts(page: Page, report: Path) -> None:
    asked = opened(page, report)
    table = page.locator(".map:not([hidden]) table")
    cells = table.locator("tbody td")
    before = cells.all_inner_texts()
    head = table.locator("thead th").nth(1)
    head.get_by_role("button").click()
    assert cells.all_inner_texts() == sorted(before, key=float)
    assert head.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")  # the head has the focus: the keyboard does the same
    assert cells.all_inner_texts() == sorted(before, key=float, reverse=True)
    records = page.locator("table.records")
    records.get_by_role("button", name="MAE (m)").click()
    heads = records.locator("thead th").all_inner_texts()
    place = next(place for place, head in enumerate(heads) if head.startswith("MAE"))
    scores = [float(row.split("\t")[place]) for row in records.locator("tbody tr").all_inner_texts()]
    assert len(scores) == 24
    assert scores == sorted(scores)
    assert asked == []


def test_filters(page: Page, report: Path) -> None:
    opened(page, report)
    page.locator("#record-controls").get_by_label("method").select_option("KNN")
    page.locator("#record-controls").get_by_label("image contains").fill("ROOM-1")
    rows = page.locator("table.records tbody tr").all_inner_texts()
    assert len(rows) == 2
    assert all("KNN" in row and "room-1" in row for row in rows)
    page.locator("#heat-controls select").select_option("mae")
    assert page.locator(".map:visible").get_attribute("data-metric") == "mae"
    page.locator("#spread-controls").get_by_label("metric").select_option("nmed")
    assert page.locator("#spread svg").get_attribute("aria-label") == "NMed (°) on Rooms"
    assert page.locator("#spread .median").count() == len(METHODS)
    page.locator(".map:visible .goto[data-method=KNN]").click()
    assert page.locator("#gallery h3").first.inner_text() == "Worst of KNN on Rooms"


def test_a_picture_zooms(page: Page, report: Path) -> None:
    opened(page, report)
    page.locator("#images").scroll_into_view_if_needed()
    card = page.locator(".card").first
    tile = card.get_by_role("button", name="relative error, enlarge")
    tile.locator("img").wait_for()
    assert tile.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 48
    tile.click()
    dialog = page.get_by_role("dialog")
    large = dialog.locator("#zoom-image")
    assert large.get_attribute("src") == tile.locator("img").get_attribute("src")
    assert large.get_attribute("alt") == "relative error"
    assert "%" in dialog.locator("#zoom-caption").inner_text()
    page.keyboard.press("ArrowLeft")
    assert large.get_attribute("alt") == "depth"
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "relative error, enlarge"


def test_on_a_phone_nothing_sticks_out(page: Page, report: Path) -> None:
    page.set_viewport_size(PHONE)
    opened(page, report)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_texts_of_records_stay_texts(page: Page, tmp_path: Path) -> None:
    """Names and reasons that would be tags, in every place where a record's text is shown."""
    record = read_evil()
    bad = replace(record, key="bad", status="failed", reason=EVIL, absrel=math.nan)
    others = [replace(record, key=f"k{i}", image=f"{EVIL}{i}") for i in range(3)]
    chosen = Protocol(
        (DatasetEntry("rendered", EVIL),), (PriorEntry("rendered", EVIL),), (MethodEntry("knn", EVIL),), ("outer",)
    )
    folder = store(tmp_path / "RUN", [record, bad, *others], chosen)
    write(folder, tmp_path / "r.html")
    opened(page, tmp_path / "r.html")
    page.locator("#gallery .card").first.wait_for()
    page.locator("#failures summary").click()
    assert page.evaluate("window.ran") is None
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("#failures summary").inner_text().startswith(f"1 {EVIL}")
    for place in ("#gallery b", "table.records tbody th", "#gallery h3", "#failures li", "#protocol pre", ".lists"):
        assert "<script>window.ran = 1</script>" in page.locator(place).first.inner_text(), place


def read_evil() -> Record:
    labels = {"dataset": EVIL, "image": EVIL, "case": "outer", "prior": EVIL, "method": EVIL}
    return Record(key="k", status="ok", absrel=0.1, mae=0.2, versions=json.dumps({EVIL: EVIL}), **labels)


def test_a_large_run_opens_with_few_pictures(
    page: Page,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    """1,000 images, 9,000 records: what a browser has to make at once does not grow with the run."""
    monkeypatch.setattr(page_pictures, "recompute_results", _noise(rng))
    methods = tuple(MethodEntry(name) for name in ("gmetric", "knn", "ours"))
    subsets = tuple(DatasetEntry("rendered", f"set {i}") for i in range(5))
    chosen = Protocol(subsets, (PriorEntry("rendered"),), methods)
    records = [
        Record(
            key=f"{subset.label} {i} {case} {entry.label}",
            dataset=subset.label,
            image=f"scene {i:03}",
            case=case,
            prior="rendered",
            method=entry.label,
            status="ok",
            **dict(zip(("absrel", "mae", "nmean", "nmed"), rng.lognormal(-3, 1, 4).tolist(), strict=True)),
        )
        for subset in subsets
        for i in range(200)
        for case in chosen.cases
        for entry in methods
    ]
    folder = store(tmp_path / "RUN", records, chosen)
    made = write(folder, tmp_path / "r.html", panels=4)
    assert made.pictures == 5 * 3 * 8
    opened(page, tmp_path / "r.html")
    page.locator("#gallery .card").first.wait_for()
    assert page.locator("#record-count").inner_text() == "100 of 9000 records shown"
    assert page.evaluate("document.images.length") <= MOST_PICTURES
    drawn = page.evaluate("document.querySelectorAll('*').length - document.querySelectorAll('script').length")
    assert drawn <= MOST_NODES
    page.locator("#record-more").click()
    assert page.locator("table.records tbody tr").count() == 200
    page.locator("#versions").scroll_into_view_if_needed()
    assert page.evaluate("document.images.length") <= 8 * 8 + 1  # the cards of one method on one subset


def _noise(rng: np.random.Generator) -> Any:
    """A stand-in for `recompute_results`: a scene of noise, another one at every call."""

    def recompute_results(folder: Path, place: ImageCase, methods: list[str]) -> ImageResults:
        depth = rng.uniform(1, 2, (24, 32)).astype(np.float32)
        image = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
        camera = Camera(32, 24, 30.0, 30.0, 15.5, 11.5)
        known = np.ones(depth.shape, bool)
        predictions = {method: MethodResult(depth * 1.1) for method in methods}
        return ImageResults(str(place), image, Prior(depth), depth, depth, known, camera, predictions)

    return recompute_results
