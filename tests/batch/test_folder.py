"""Folders: matching, skipping, worker processes, and continuing after a kill."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.report import tiles
from support.bench_runs import protocol, toml
from support.cli_frames import (
    ALL,
    ONE,
    PATIENCE,
    SHAPE,
    environment,
    leadline,
    make_maps,
    replace_file,
    run,
    write_frame,
)


def modified(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.iterdir())}


# ---- doing it again


def test_a_finished_frame_is_skipped_until_something_changes(here: Path) -> None:
    line = f"{ONE} --unit mm"
    assert leadline(line).exit_code == 0
    before = modified(here / "out")
    assert "complete already" in leadline(line).output
    assert modified(here / "out") == before

    output = leadline(f"{line} --tolerance 1e-7 --fit-max-iterations 50").output
    assert "completed again: the options changed (--fit-max-iterations, --tolerance)." in output
    replace_file("prior.npy", np.load("prior.npy") * np.float32(2))
    assert (
        "the options changed (--fit-max-iterations, --tolerance) and the inputs changed (prior)"
        in leadline(line).output
    )
    Path("out/photo_depth.png").unlink()
    assert "outputs are missing (depth)" in leadline(line).output
    Path("out/photo.json").write_text("{", encoding="utf-8")
    assert "photo.json is not a sidecar that leadline wrote" in leadline(line).output

    before = modified(here / "out")
    assert "completed again" not in leadline(f"{line} --overwrite").output
    assert all(modified(here / "out")[name] > when for name, when in before.items())


def test_a_failed_redo_leaves_no_sidecar_of_the_old_depth(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert leadline(f"{ONE} --unit mm").exit_code == 0

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(tiles, "draw_preview", broken)
    with pytest.raises(ZeroDivisionError):
        leadline(f"{ONE} --unit mm --overwrite")
    assert not Path("out/photo.json").exists()


# ---- folders


def test_folder_writes_what_single_runs_write(here: Path) -> None:
    result = leadline(f"{ALL} --format npy")
    assert result.exit_code == 0, result.output
    assert "4 done, 0 skipped, 0 failed; results in out" in result.output
    for stem in ("f0", "f3"):
        one = f"complete frames/{stem}.png --sparse depth/{stem}.png --prior priors/{stem}.npy"
        assert leadline(f"{one} --unit mm --format npy -o single").exit_code == 0
        np.testing.assert_array_equal(np.load(f"out/{stem}_depth.npy"), np.load(f"single/{stem}_depth.npy"))
    assert "0 done, 4 skipped, 0 failed" in leadline(f"{ALL} --format npy").output


def test_folder_notes_a_guessed_unit_once(here: Path) -> None:
    assert leadline(ALL.replace("--unit mm ", "")).output.count("unit guessed as mm") == 1


def test_folder_reports_leftovers_and_ambiguous_names(here: Path) -> None:
    Path("priors/f1.npy").rename("priors/other.npy")
    np.save("priors/f2.npy", np.load("priors/f2.npy"))
    Image.fromarray(make_maps(2)[1]).save("priors/f2.png")
    Path("frames/readme.txt").write_text("not a frame", encoding="utf-8")
    result = leadline(ALL)
    assert result.exit_code == 1
    assert "note: 1 images without a file in --prior priors: f1." in result.output
    assert "note: 1 files in --prior priors without an image: other." in result.output
    assert "error: f2: several files have this name: --prior has f2.npy and f2.png; keep one of them." in result.output
    assert "2 done, 0 skipped, 1 failed" in result.output


def test_one_bad_frame_does_not_end_the_folder(here: Path) -> None:
    replace_file("depth/f1.png", np.zeros(SHAPE, np.uint16))
    Path("priors/f2.npy").write_bytes(b"no array")
    result = leadline(ALL)
    assert result.exit_code == 1
    assert "3/4 frames: 1 done, 0 skipped, 2 failed" in result.output
    assert "error: f1: depth/f1.png: the sparse map has no measurement" in result.output
    assert "error: f2: priors/f2.npy" in result.output
    assert "2 done, 0 skipped, 2 failed" in result.output
    assert sorted(path.name for path in Path("out").glob("*.json")) == ["f0.json", "f3.json"]


def test_folder_of_masks(here: Path) -> None:
    Path("masks").mkdir()
    for index in range(4):
        Image.fromarray(np.full(SHAPE, index, np.uint8)).save(f"masks/f{index}.png")
    result = leadline(f"{ALL} --valid masks")
    assert "error: f0: --valid masks/f0.png: is 0 everywhere" in result.output
    assert "3 done, 0 skipped, 1 failed" in result.output


# ---- processes, kills and interrupts: real ones


# Runs the command with os.replace, the last step of each atomic write, changed for what goes to out/. Worker
# processes import the main script too, so it changes them as well.
SCRIPT = """
import multiprocessing, os, signal, time
plain, count = os.replace, 0
def replace(source, target):
    global count
    if os.path.basename(os.path.dirname(target)) == "out":
        count += 1
        {action}
    plain(source, target)
os.replace = replace
if __name__ == "__main__":
    from leadline.apps.cli import main
    main()
"""


def write_script(action: str) -> str:
    Path("script.py").write_text(SCRIPT.format(action=action), encoding="utf-8")
    return "script.py"


def wait_for(condition: object, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def finished() -> list[str]:
    return sorted(path.stem for path in Path("out").glob("*.json"))


def check_whole(stems: list[str]) -> None:
    """Each of the frames has all its files, and each file can be read to its end."""
    for stem in stems:
        record = json.loads(Path(f"out/{stem}.json").read_text(encoding="utf-8"))
        assert record["frame"] == stem
        for name in record["outputs"].values():
            with Image.open(Path("out") / name) as picture:
                picture.load()


def test_streams_and_exit_codes_of_the_real_command(here: Path) -> None:
    done = run(ONE)
    assert done.returncode == 0
    assert "note: unit guessed as mm" in done.stderr
    assert "note:" not in done.stdout
    assert "wrote" in done.stdout
    wrong = run(f"{ONE} --unit furlong")
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)


def test_compiling_is_announced_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notice = "compiling kernels"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(here / "cache"))  # empty, so this really compiles
    first = run(f"{ALL} --jobs 2")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count(notice) == 1
    again = run(f"{ALL} --overwrite")
    assert again.returncode == 0, again.stderr
    assert notice not in again.stderr
    Path("p.toml").write_text(toml(protocol("ours", count=1)), encoding="utf-8")
    assert run("bench run p.toml -o RUN").stderr.count(notice) == 1  # the kernels of the paper's preset
    assert run("warm-up").stdout.startswith("compiled")  # the kernels of a stream
    last = run("warm-up")
    assert notice not in last.stderr
    assert last.stdout.startswith("already compiled")


def test_processes_give_the_same_depth(here: Path) -> None:
    replace_file("depth/f1.png", np.zeros(SHAPE, np.uint16))
    done = run(f"{ALL} --format npy --jobs 2")
    assert done.returncode == 1, done.stderr
    assert "3 done, 0 skipped, 1 failed" in done.stdout
    assert "error: f1: " in done.stderr
    assert leadline(f"{ALL} --format npy".replace("-o out", "-o serial")).exit_code == 1
    for stem in ("f0", "f2", "f3"):
        np.testing.assert_array_equal(np.load(f"out/{stem}_depth.npy"), np.load(f"serial/{stem}_depth.npy"))


# Each frame is three files, so these are the depth, the preview and the sidecar of the second frame.
@pytest.mark.parametrize("write", [4, 5, 6])
def test_killed_and_resumed(write: int, here: Path) -> None:
    killed = run(ALL, write_script(f"count == {write} and os.kill(os.getpid(), signal.SIGKILL)"))
    assert killed.returncode == -signal.SIGKILL
    assert finished() == ["f0"]
    check_whole(["f0"])
    before = {name: when for name, when in modified(here / "out").items() if name.startswith("f0")}
    resumed = run(ALL)
    assert resumed.returncode == 0, resumed.stderr
    assert "3 done, 1 skipped, 0 failed" in resumed.stdout
    assert finished() == ["f0", "f1", "f2", "f3"]
    check_whole(finished())
    after = modified(here / "out")
    assert {name: after[name] for name in before} == before


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds worker processes through /proc")
def test_workers_end_with_a_killed_parent_and_the_folder_goes_on(here: Path) -> None:
    script = write_script("time.sleep(0.2)")
    process = subprocess.Popen(
        [sys.executable, script, *shlex.split(f"{ALL} --jobs 2")], env=environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(finished, process)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    process.kill()
    process.wait()
    assert len(workers) >= 2
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{worker}/cmdline").exists() and is_running(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.02)
    done, before = finished(), modified(here / "out")
    assert 0 < len(done) < 4
    check_whole(done)
    resumed = run(f"{ALL} --jobs 2")
    assert f"{4 - len(done)} done, {len(done)} skipped, 0 failed" in resumed.stdout
    check_whole(["f0", "f1", "f2", "f3"])
    after = modified(here / "out")
    assert all(after[f"{stem}.json"] == before[f"{stem}.json"] for stem in done)


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal to a process group")
@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupted_and_resumed(jobs: int, here: Path) -> None:
    for index in range(4, 8):
        write_frame(here, f"f{index}", index)
    script = write_script("time.sleep(0.2)")
    process = subprocess.Popen(
        [sys.executable, script, *shlex.split(f"{ALL} --jobs {jobs}")], env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    wait_for(finished, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "stopped by Ctrl-C; finished frames are complete" in errors
    done = finished()
    assert 0 < len(done) < 8
    counted = re.search(r"^(\d+) done, 0 skipped, 0 failed", output, flags=re.MULTILINE)
    assert counted is not None
    # The signal may come after a frame was written and before it was counted, once in each worker.
    assert len(done) - jobs <= int(counted[1]) <= len(done)
    assert not list(Path("out").glob(".*"))
    check_whole(done)
    assert f"{8 - len(done)} done, {len(done)} skipped, 0 failed" in run(ALL).stdout


def test_a_worker_that_dies_once_costs_no_frame(here: Path) -> None:
    action = "multiprocessing.parent_process() and count == 4 and os.kill(os.getpid(), signal.SIGKILL)"
    result = run(f"{ALL} --jobs 2", write_script(action))
    assert result.returncode == 0, result.stderr
    check_whole(["f0", "f1", "f2", "f3"])


def test_a_frame_at_which_workers_die_fails_alone(here: Path) -> None:
    action = "'f1' in str(target) and os.kill(os.getpid(), signal.SIGKILL)"
    result = run(f"{ALL} --jobs 2", write_script(action))
    assert result.returncode == 1, result.stderr
    assert "error: f1: a worker process died twice at this frame" in result.stderr
    assert "fewer --jobs" in result.stderr
    assert "Traceback" not in result.stderr
    assert finished() == ["f0", "f2", "f3"]
    assert run(ALL).returncode == 0
    check_whole(["f0", "f1", "f2", "f3"])
