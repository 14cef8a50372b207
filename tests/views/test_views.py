"""Laws of `leadline.Views` on a rendered room: what agrees with `complete`, what spreads and what must not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import leadline
from leadline.geometry.cameras import Camera
from leadline.views import store as store_module
from leadline.views import views as views_module
from leadline.views.evidence import measured_points
from support.posed_room import CAMERA, Room

ROOM = Room(count=7)


def add_all(views: leadline.Views, room: Room = ROOM, without: tuple[str, ...] = ()) -> leadline.Views:
    for view in room.views:
        if view.name not in without:
            views.add(view.name, view.prior, view.sparse, CAMERA, view.pose, view.noise)
    return views


def depths(views: leadline.Views, rounds: int | None = None) -> dict[str, np.ndarray]:
    return {name: completion.depth for name, completion in views.complete(rounds)}


def error(room: Room, found: dict[str, np.ndarray]) -> float:
    return float(np.mean([np.mean(np.abs(found[v.name] / v.depth - 1)) for v in room.views if v.name in found]))


def test_one_view_equals_complete() -> None:
    view, views = ROOM.views[0], leadline.Views()
    views.add(view.name, view.prior, view.sparse, CAMERA, view.pose, view.noise)
    ((name, completion),) = views.complete()
    expected = leadline.complete(view.prior, view.sparse, noise=view.noise)
    assert name == view.name
    np.testing.assert_array_equal(completion.depth, expected.depth)
    assert views.neighbours(view.name) == ()


def test_rounds_lower_error_and_disagreement() -> None:
    views = add_all(leadline.Views())
    alone, together = depths(views, 0), depths(views)
    assert error(ROOM, together) < 0.8 * error(ROOM, alone)
    assert views.rounds[-1].disagreement < 0.5 * views.rounds[0].disagreement
    assert views.rounds[-1].moved < views.rounds[1].moved


def test_a_view_that_is_added_later_counts_for_all() -> None:
    """As if all views had been there from the start."""
    last = ROOM.views[-1]
    views = add_all(leadline.Views(), without=(last.name,))
    before = depths(views, 2)
    views.add(last.name, last.prior, last.sparse, CAMERA, last.pose, last.noise)
    after, expected = depths(views, 2), depths(add_all(leadline.Views()), 2)
    assert not np.array_equal(before["view-4"], after["view-4"])
    for name, depth in expected.items():
        np.testing.assert_array_equal(after[name], depth)


def test_what_a_view_leaves_out_is_no_evidence() -> None:
    """A measurement at half its depth, which contradicts all its neighbours, does not reach the other views."""
    found = []
    for factor in (1.0, 0.5):
        views = leadline.Views(leadline.CompletionOptions(outliers="single"))
        for view in ROOM.views[:3]:
            sparse = np.zeros_like(view.sparse)
            sparse[4::6, 4::6] = view.depth[4::6, 4::6]
            if view is ROOM.views[1]:
                sparse[34, 46] *= factor
            views.add(view.name, view.prior, sparse, CAMERA, view.pose, 0.01)
        found.append(depths(views, 1)[ROOM.views[0].name])
    np.testing.assert_allclose(*found, rtol=0.02)


def test_dense_measurements_are_thinned_before_they_are_carried() -> None:
    view = ROOM.views[0]
    many = Camera.from_view_angle(320, 240, 60.0)
    points = measured_points(np.full((240, 320), 2.0), np.zeros((240, 320)), many, np.eye(4))
    assert len(points.points) == 240 * 320 // 4
    few = measured_points(view.sparse, view.noise, CAMERA, view.pose)
    assert len(few.points) == np.count_nonzero(view.sparse)


def test_views_of_one_pose_share_their_measurements() -> None:
    """Two halves of the measurements from one place: each view becomes as good as one that has them all."""
    view, views = ROOM.views[3], leadline.Views()
    where = np.flatnonzero(view.sparse)
    for k, name in enumerate("ab"):
        half = np.zeros_like(view.sparse)
        half.flat[where[k::2]] = view.sparse.flat[where[k::2]]
        views.add(name, view.prior, half, CAMERA, np.eye(4), view.noise)
    both = leadline.complete(view.prior, view.sparse, noise=view.noise).depth
    alone, together = depths(views, 0), depths(views)
    for name in "ab":
        before, after = (np.median(np.abs(np.log(found[name] / both))) for found in (alone, together))
        assert after < 0.7 * before


def test_exact_measurements_stay_exact() -> None:
    views = leadline.Views()
    for view in ROOM.views[:3]:
        views.add(view.name, view.prior, view.sparse, CAMERA, view.pose)
    for view, depth in zip(ROOM.views, depths(views, 2).values(), strict=False):
        measured = view.sparse > 0
        np.testing.assert_array_equal(depth[measured], view.sparse[measured])


def test_wrong_pose_does_not_spread() -> None:
    """A view with a wrong pose is completed alone, and the others as if it were not there, bit for bit."""
    room = Room(count=7, wrong=3)
    wrong = room.views[3]
    views = add_all(leadline.Views(), room)
    assert views.neighbours(wrong.name) == ()
    assert not any(wrong.name in views.neighbours(view.name) for view in room.views)
    found, without = depths(views, 2), depths(add_all(leadline.Views(), room, (wrong.name,)), 2)
    alone = leadline.complete(wrong.prior, wrong.sparse, noise=wrong.noise)
    np.testing.assert_array_equal(found.pop(wrong.name), alone.depth)
    assert found.keys() == without.keys()
    for name, depth in without.items():
        np.testing.assert_array_equal(found[name], depth)


def test_moved_object_does_not_spread() -> None:
    """A box that the first three views see and the others do not."""
    room = Room(count=7, box_until=3)
    views = add_all(leadline.Views(), room)
    assert error(room, depths(views)) < 1.03 * error(room, depths(views, 0))


def test_error_of_a_view_does_not_come_back() -> None:
    """The prior of one view is bent; its depth is the same whether its neighbours have seen that view or not."""
    rounds, bent = 3, Room(count=7, bent=3)
    name = bent.views[3].name
    clean, disturbed = add_all(leadline.Views()), add_all(leadline.Views(), bent)
    depth, moved = depths(clean, rounds)[name], depths(disturbed, rounds)[name]
    clean._views[name] = disturbed._views[name]
    first_hand = clean._complete(name, rounds)[0].depth
    own, with_returned = (np.mean(np.abs(np.log(found / depth))) for found in (first_hand, moved))
    assert with_returned < 1.3 * own


def test_view_without_measurements_gets_depth_of_its_neighbours() -> None:
    views, last = add_all(leadline.Views(), without=(ROOM.views[3].name,)), ROOM.views[3]
    views.add("empty", last.prior, np.zeros_like(last.sparse), CAMERA, last.pose)
    found = depths(views)["empty"]
    assert np.mean(np.abs(found / last.depth - 1)) < 1.5 * error(ROOM, depths(views, 0) | {last.name: last.depth})


def test_views_that_see_nothing_in_common_are_completed_alone() -> None:
    views = leadline.Views()
    turned = np.diag([-1.0, 1.0, -1.0, 1.0])
    for name, pose in (("front", np.eye(4)), ("back", turned)):
        views.add(name, ROOM.views[3].prior, ROOM.views[3].sparse, CAMERA, pose, ROOM.views[3].noise)
    found = depths(views)
    assert views.neighbours("front") == views.neighbours("back") == ()
    np.testing.assert_array_equal(found["front"], found["back"])


def test_only_some_views_are_returned() -> None:
    views = add_all(leadline.Views())
    wanted = [view.name for view in ROOM.views[2:4]]
    every = depths(views, 1)
    for name, completion in views.complete(1, only=wanted, uncertainty=True):
        np.testing.assert_array_equal(completion.depth, every[name])
        assert completion.sigma is not None
        wanted.remove(name)
    assert wanted == []


def test_killed_run_continues(tmp_path: Path) -> None:
    """A process that kills itself in the middle of a round; the next one loads what is there and gets the same."""
    script = (
        "import sys, os, signal; import leadline; from support.posed_room import CAMERA, Room\n"
        "loads = 0\n"
        "def loading(view):\n"
        "    def load():\n"
        "        global loads; loads += 1\n"
        "        if loads > 24: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return view.prior\n"
        "    return load\n"
        "views = leadline.Views(store=sys.argv[1])\n"
        "for view in Room(count=7).views:\n"
        "    views.add(view.name, loading(view), view.sparse, CAMERA, view.pose, view.noise)\n"
        "list(views.complete(3))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    killed = subprocess.run([sys.executable, "-c", script, tmp_path], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    present = {path.relative_to(tmp_path) for path in tmp_path.glob("round-*/*.npz")}
    assert Path("round-0/view-6.npz") in present
    assert Path("round-2/view-6.npz") not in present
    loads = []

    def loading(view: object) -> object:
        return lambda: loads.append(view.name) or view.prior  # type: ignore[attr-defined]

    views = leadline.Views(store=tmp_path)
    for view in ROOM.views:
        views.add(view.name, loading(view), view.sparse, CAMERA, view.pose, view.noise)
    found = depths(views, 3)
    missing = 2 * 7 - sum(path.parts[0] != "round-0" for path in present)
    assert len(loads) == missing + 7  # what was not stored, and the last round
    for name, depth in depths(add_all(leadline.Views()), 3).items():
        np.testing.assert_array_equal(found[name], depth)


def test_parts_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    expected = depths(add_all(leadline.Views(store=tmp_path)), 0)
    left, foreign = tmp_path / "round-0" / ".view-1.npz.0123abcd.part", tmp_path / ".download.part"
    left.write_bytes(b"half")
    foreign.write_bytes(b"mine")
    found = depths(add_all(leadline.Views(store=tmp_path)), 0)
    np.testing.assert_array_equal(found["view-1"], expected["view-1"])
    assert not left.exists()
    assert foreign.exists()


def test_a_view_that_fails_is_computed_once() -> None:
    loads = []
    views = add_all(leadline.Views(), without=("view-1",))
    views.add("view-1", lambda: loads.append(1) or np.ones((3, 5)), ROOM.views[1].sparse, CAMERA, np.eye(4))
    with pytest.raises(leadline.InputError, match="view-1: "):
        depths(views, 0)
    assert len(loads) == 1


def test_steps_are_reported_by_name() -> None:
    steps = []
    views = leadline.Views(
        leadline.CompletionOptions(outliers="single"), on_progress=lambda step, done, total: steps.append(step)
    )
    depths(add_all(views), 2)
    assert [*dict.fromkeys(steps)] == ["each picture alone", "halves of the points", "check of the points", "round 1"]


def test_store_of_other_views_is_refused(tmp_path: Path) -> None:
    depths(add_all(leadline.Views(store=tmp_path / "a")), 0)
    with pytest.raises(leadline.InputError, match="holds the maps of other views"):
        depths(add_all(leadline.Views(store=tmp_path / "a"), Room(count=7, wrong=3)), 0)
    with pytest.raises(leadline.InputError, match="holds the maps of other views"):
        depths(add_all(leadline.Views("paper", store=tmp_path / "a")), 0)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(leadline.InputError, match="not empty"):
        depths(add_all(leadline.Views(store=tmp_path / "b")), 0)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RECENT_BYTES", 200_000)
    monkeypatch.setattr(views_module, "POINT_NEIGHBOURS", 6)  # fewer than there are views, as in large sets
    peaks = []
    for count in (8, 16):
        room = Room(count=count, step=0.6 / count)
        views = leadline.Views(store=tmp_path / str(count))
        for view in room.views:
            for array in ("prior", "sparse", "noise"):
                np.save(tmp_path / f"{count}-{view.name}-{array}.npy", getattr(view, array))
            files = [tmp_path / f"{count}-{view.name}-{array}.npy" for array in ("prior", "sparse")]
            views.add(view.name, *files, CAMERA, view.pose, tmp_path / f"{count}-{view.name}-noise.npy")
        del room, view
        tracemalloc.start()
        for _ in views.complete(1):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.25 * peaks[0]


@pytest.mark.slow
def test_workers_compute_the_same(tmp_path: Path) -> None:
    found = dict(add_all(leadline.Views(store=tmp_path)).complete(2, workers=2))
    for name, depth in depths(add_all(leadline.Views()), 2).items():
        np.testing.assert_array_equal(found[name].depth, depth)


def test_integers_are_measurements() -> None:
    view = ROOM.views[0]
    views = leadline.Views()
    views.add("a", view.prior, np.rint(view.sparse).astype(np.uint16), CAMERA, view.pose)
    views.add("b", view.prior, view.sparse, CAMERA, view.pose)
    assert all(np.isfinite(depth).all() for depth in depths(views, 1).values())


def test_bad_inputs_are_refused() -> None:
    view, views = ROOM.views[0], leadline.Views()
    with pytest.raises(leadline.InputError, match="mirrors"):
        views.add("a", view.prior, view.sparse, CAMERA, np.diag([-1.0, 1.0, 1.0, 1.0]))
    with pytest.raises(leadline.InputError, match="finite numbers") as caught:
        views.add("a", view.prior, view.sparse, CAMERA, np.full((4, 4), np.nan))
    assert "\n" not in str(caught.value)
    with pytest.raises(leadline.InputError, match="must be a Camera"):
        views.add("a", view.prior, view.sparse, None, np.eye(4))  # type: ignore[arg-type]
    with pytest.raises(leadline.InputError, match="a path without"):
        views.add("../a", view.prior, view.sparse, CAMERA, np.eye(4))
    views.add("a", view.prior, view.sparse, CAMERA.scaled(48, 36), np.eye(4))
    with pytest.raises(leadline.InputError, match="added before"):
        views.add("a", view.prior, view.sparse, CAMERA, np.eye(4))
    with pytest.raises(leadline.InputError, match=r"^a: .*shape"):
        list(views.complete())
    with pytest.raises(leadline.InputError, match="got 'c' as well"):
        list(views.complete(only=["c"]))
    with pytest.raises(leadline.InputError, match="must be a collection of names, got the string"):
        list(views.complete(only="ab"))
    with pytest.raises(leadline.InputError, match="at least 0"):
        list(views.complete(-1))
    with pytest.raises(leadline.InputError, match="needs a"):
        list(views.complete(workers=2))
    with pytest.raises(leadline.InputError, match="was added"):
        views.neighbours("b")
