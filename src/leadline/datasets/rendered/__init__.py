"""A furnished room, ray-traced in NumPy: images with exact depth and a synthetic prior, with nothing to download."""

from leadline.datasets.rendered.dataset import RenderedDataset
from leadline.datasets.rendered.renderer import render
from leadline.datasets.rendered.synthetic_prior import network_like_prior

__all__ = ["RenderedDataset", "network_like_prior", "render"]
