"""Hooks of the docs' build: the notebook of `examples/` is a page of the docs."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

TOUR = Path(__file__).resolve().parents[1] / "examples" / "tour.ipynb"


@event_priority(100)  # before the plugin that renders notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebook as ``tour.ipynb``."""
    files.append(File(TOUR.name, str(TOUR.parent), config.site_dir, config.use_directory_urls))
    return files
