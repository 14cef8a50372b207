"""Posed depth maps fused into one surface: a truncated signed distance function (TSDF), computed by Open3D.

Every depth map votes for the signed distance of the voxels around it, and the surface is where the mean distance is 0
(Curless and Levoy 1996). Open3D stores blocks of voxels near the surface only, so memory grows with the surface and
not with the number of pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, is_measured
from leadline.base.errors import InputError, param
from leadline.geometry.cameras import Camera, CameraModel, ColmapCamera
from leadline.geometry.poses import Transform, invert_transform
from leadline.geometry.surface import surface_from_depth
from leadline.io.files import atomic_write, read_json
from leadline.io.mesh import write_mesh
from leadline.io.views.posed import VIEW_LIST, PosedView
from leadline.report.turntable import import_open3d

PURPOSE = "Fusing depth maps into a mesh"
BLOCK = 16  # voxels per side of a block
PIXELS_PER_VOXEL = 3.0
"""Default voxel in pixels at the median depth. Completed depth is less sharp than the picture, and smaller voxels keep
its noise."""
MESH_SUFFIXES = (".ply", ".glb", ".obj", ".stl")


@dataclass(frozen=True, kw_only=True)
class FusionOptions:
    """How depth maps are fused.

    Parameters
    ----------
    voxel : float, optional
        Edge of a voxel in the unit of the depth. Default: three pixels at the median depth.
    truncation : float
        Distance from the surface, in voxels, up to which a depth map counts.
    max_depth : float, optional
        Pixels farther away are left out.
    max_sigma : float
        Pixels whose standard deviation exceeds this fraction of their depth are left out, if it is known.
    min_views : int
        Number of pictures that must have seen a piece of the surface.
    edge_filter : bool
        Whether pixels that lie between two objects are left out; see `leadline.geometry.surface`.
    """

    voxel: float | None = None
    truncation: float = 5.0
    max_depth: float | None = None
    max_sigma: float = 0.1
    min_views: int = 2
    edge_filter: bool = True

    def __post_init__(self) -> None:
        for name in ("voxel", "max_depth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise InputError(f"{param(name)} must be a positive number, got {value!r}.")
        if not self.truncation >= 1:
            raise InputError(f"{param('truncation')} must be at least one voxel, got {self.truncation!r}.")
        if not self.max_sigma > 0:
            raise InputError(f"{param('max_sigma')} must be positive, got {self.max_sigma!r}.")
        if self.min_views < 1:
            raise InputError(f"{param('min_views')} must be at least 1, got {self.min_views!r}.")


@dataclass(frozen=True, eq=False)
class DepthView:
    """A depth map with its picture, camera and pose."""

    depth: FloatArray  # (H, W), NaN or 0 where unknown
    image: NDArray[np.uint8]  # (H, W, 3)
    camera: CameraModel
    camera_to_world: Transform
    sigma: FloatArray | None = None  # (H, W); 0 where the depth is exact, NaN where it is not known
    name: str = "a view"  # for messages


@dataclass(frozen=True, eq=False)
class FusedSurface:
    """A mesh with colours, in the world's frame and the unit of the depth; its vertices are the fused point cloud."""

    points: NDArray[np.float32]  # (N, 3)
    normals: NDArray[np.float32]  # (N, 3)
    colours: NDArray[np.uint8]  # (N, 3)
    triangles: NDArray[np.int32]  # (T, 3)
    voxel: float
    views: int  # number of pictures that were fused

    def write_mesh(self, path: Path) -> None:
        """Write the mesh; the suffix is one of ``.ply``, ``.glb``, ``.obj`` and ``.stl``.

        A GLB has glTF's axes, y up and z to the viewer; the other files have those of the world.
        """
        suffix = path.suffix.lower()
        if suffix not in MESH_SUFFIXES:
            raise InputError(f"{path}: a mesh is written as {', '.join(MESH_SUFFIXES)}; change the suffix.")
        if suffix in (".ply", ".glb"):
            write_mesh(path, self.points, self.triangles, normals=self.normals, colours=self.colours)
            return
        o3d = import_open3d(PURPOSE)
        mesh = o3d.geometry.TriangleMesh(
            o3d.utility.Vector3dVector(self.points.astype(np.float64)), o3d.utility.Vector3iVector(self.triangles)
        )
        mesh.vertex_colors = o3d.utility.Vector3dVector(self.colours / 255.0)
        mesh.vertex_normals = o3d.utility.Vector3dVector(self.normals.astype(np.float64))

        def write(part: Path) -> None:
            named = part.with_name(part.name + suffix)  # Open3D chooses the format by the suffix
            try:
                if not o3d.io.write_triangle_mesh(str(named), mesh):
                    raise OSError("Open3D could not write it")
                named.replace(part)
            finally:
                named.unlink(missing_ok=True)

        atomic_write(path, write)

    def write_points(self, path: Path) -> None:
        """Write the vertices as a point cloud with colours and normals in PLY."""
        from leadline.io.ply import write_ply

        write_ply(path, self.points, self.colours, normals=self.normals)


def fuse(
    views: Sequence[DepthView],
    options: FusionOptions | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> FusedSurface:
    """The surface that depth maps have in common.

    Parameters
    ----------
    views : sequence of DepthView
        Each is read once, or twice without ``options.voxel``, and not kept; a sequence that loads its items when they
        are accessed needs the memory of one.
    options : FusionOptions, optional
    on_progress : callable, optional
        Called after each view with the number of views that were read so far, and of all.

    Raises
    ------
    MissingExtra
        Open3D is not installed.
    InputError
        No pixel has a usable depth, or the views do not meet anywhere.
    """
    options = options or FusionOptions()
    o3d = import_open3d(PURPOSE)
    if not len(views):
        raise InputError(f"{param('views')} is empty; give at least one depth map.")
    voxel = options.voxel or typical_voxel(views)
    core = o3d.core
    grid = o3d.t.geometry.VoxelBlockGrid(
        ("tsdf", "weight", "color"), (core.float32,) * 3, ((1,), (1,), (3,)), voxel, BLOCK, 4096, core.Device("CPU:0")
    )
    fused = 0
    for done, view in enumerate(views):
        if on_progress is not None and done:
            on_progress(done, len(views))
        depth, image, camera = _prepare(view, options)
        if not depth.any():
            continue
        # Open3D truncates projected coordinates to pixels, so half a pixel is added for the nearest centre. Without it
        # surfaces seen at an angle are off by a quarter of a voxel.
        matrix = core.Tensor(np.array([[camera.fx, 0, camera.cx + 0.5], [0, camera.fy, camera.cy + 0.5], [0, 0, 1.0]]))
        pose = core.Tensor(np.ascontiguousarray(invert_transform(view.camera_to_world)))
        maps = (o3d.t.geometry.Image(depth), o3d.t.geometry.Image(image))
        limits = (1.0, float(depth.max()) + voxel, options.truncation)
        blocks = grid.compute_unique_block_coordinates(maps[0], matrix, pose, *limits)
        grid.integrate(blocks, *maps, matrix, pose, *limits)
        fused += 1
    if on_progress is not None:
        on_progress(len(views), len(views))
    if not fused:
        raise InputError(
            f"no pixel of {len(views)} depth maps can be used; raise {param('max_sigma')} or {param('max_depth')}."
        )
    # A voxel's weight is the number of pictures that saw it; one half less, because the sum is rounded.
    mesh = grid.extract_triangle_mesh(min(options.min_views, fused) - 0.5)
    if not len(mesh.vertex.positions) or not len(mesh.triangle.indices):
        raise InputError(
            f"{fused} depth maps have no surface that {min(options.min_views, fused)} of them see, with voxels of "
            f"{voxel:.3g}; check the poses, or lower {param('min_views')}."
        )
    points, triangles = mesh.vertex.positions.numpy(), mesh.triangle.indices.numpy()
    order, triangles = _sorted(points, triangles)
    return FusedSurface(
        points[order],  # a copy, because the arrays of Open3D belong to its tensors
        mesh.vertex.normals.numpy()[order],
        np.rint(np.clip(mesh.vertex.colors.numpy()[order], 0, 1) * 255).astype(np.uint8),
        triangles,
        voxel,
        fused,
    )


def _sorted(points: NDArray[np.float32], triangles: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """Order of the vertices by their coordinates, and the triangles between them, each from its first vertex on.

    The threads of Open3D write both in the order in which they happen to finish; sorted, the same depth gives the same
    file.
    """
    order = np.lexsort(points.T)
    number = np.empty(len(points), np.int32)
    number[order] = np.arange(len(points), dtype=np.int32)
    renumbered = number[triangles]
    start = renumbered.argmin(axis=1)[:, None]
    turned = np.take_along_axis(renumbered, (start + np.arange(3)) % 3, axis=1)
    return order, turned[np.lexsort(turned.T)]


def typical_voxel(views: Sequence[DepthView], samples: int = 8) -> float:
    """Three pixels at the median depth of a few evenly spaced views."""
    chosen = [views[index] for index in np.unique(np.linspace(0, len(views) - 1, samples).astype(int))]
    sizes = [_pixel_size(view) for view in chosen]
    if not np.isfinite(sizes).any():
        raise InputError(f"no pixel of {len(chosen)} depth maps has a depth.")
    return float(PIXELS_PER_VOXEL * np.nanmedian(sizes))


def _pixel_size(view: DepthView) -> float:
    known = is_measured(view.depth)
    return float(np.median(view.depth[known]) / _pinhole_of(view.camera).fx) if known.any() else float("nan")


def _prepare(view: DepthView, options: FusionOptions) -> tuple[NDArray[np.float32], NDArray[np.float32], Camera]:
    """Usable depth, 0 elsewhere, and colours from 0 to 1, as a pinhole camera sees them."""
    image, camera, shape = view.image, _pinhole_of(view.camera), view.depth.shape
    if image.shape[:2] != shape or (camera.height, camera.width) != shape:
        raise InputError(
            f"{view.name}: depth of {shape[1]}x{shape[0]}, picture of {image.shape[1]}x{image.shape[0]} and camera of "
            f"{camera.width}x{camera.height} pixels must have one size."
        )
    usable = is_measured(view.depth)
    with np.errstate(invalid="ignore"):
        if view.sigma is not None:
            usable &= view.sigma <= options.max_sigma * view.depth
        if options.max_depth is not None:
            usable &= view.depth <= options.max_depth
    if options.edge_filter and usable.any():
        usable &= surface_from_depth(view.depth, view.camera).mask()
    depth = np.where(usable, view.depth, 0).astype(np.float32)
    if isinstance(view.camera, ColmapCamera) and view.camera.pinhole() is None:
        # Depth along the axis is the same for both cameras; only its pixel moves.
        rays = camera.points(np.ones(depth.shape)).reshape(-1, 3)
        columns, rows = np.rint(view.camera.project(rays)).T
        with np.errstate(invalid="ignore"):
            inside = (columns >= 0) & (columns < camera.width) & (rows >= 0) & (rows < camera.height)
        where = (rows[inside].astype(int), columns[inside].astype(int))
        straight, picture = np.zeros(depth.size, np.float32), np.zeros((depth.size, 3), np.uint8)
        straight[inside], picture[inside] = depth[where], image[where]
        depth, image = straight.reshape(depth.shape), picture.reshape(image.shape)
    colours: NDArray[np.float32] = image.astype(np.float32) / np.float32(255)
    return np.ascontiguousarray(depth), np.ascontiguousarray(colours), camera


def _pinhole_of(camera: CameraModel) -> Camera:
    """The camera without the distortion of its lens."""
    if isinstance(camera, Camera):
        return camera
    if not isinstance(camera, ColmapCamera):
        raise InputError(f"{param('camera')} must be a Camera or a ColmapCamera, got {type(camera).__name__}.")
    fx, fy, cx, cy, *_ = camera.with_two_focal_lengths().params
    return Camera(camera.width, camera.height, fx, fy, cx - 0.5, cy - 0.5)


class StoredViews(Sequence[DepthView]):
    """The depth maps of a list of views, each read from disk when it is accessed."""

    def __init__(self, views: Sequence[PosedView], *, alone: bool = False) -> None:
        """With `alone`, the depth that each picture has by itself."""
        missing = [view.name for view in views if (view.alone if alone else view.depth) is None]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(views)} views have no depth, {missing[0]!r} for one; complete them first."
            )
        self._views, self._alone = views, alone

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[DepthView]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:  # an index; slices are not needed
        from leadline.io.depth import read_depth, read_image, read_values

        view = self._views[index]
        path, unit = (view.alone, "m") if self._alone else (view.depth, view.unit)
        assert path is not None  # checked above
        # The pixels of both depths are chosen by the same standard deviation, so that the two can be compared.
        sigma = None if view.sigma is None else read_values(view.sigma)
        image = read_image(view.image)
        return DepthView(read_depth(path, unit).values, image, view.camera, view.camera_to_world, sigma, view.name)


class _ComparedViews(Sequence[Any]):
    """The pictures of a page, each read when it is accessed."""

    def __init__(self, views: Sequence[PosedView]) -> None:
        self._views = views
        self._together = StoredViews(views)
        self._alone = StoredViews(views, alone=True) if all(view.alone is not None for view in views) else None

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, index: Any) -> Any:
        from leadline.report.page.views import ComparedView

        view, together = self._views[index], self._together[index]
        alone = together.depth if self._alone is None else self._alone[index].depth
        maps = (alone, together.depth, together.sigma)
        return ComparedView(view.name, together.image, view.camera, view.camera_to_world, *maps)


def write_report(
    path: Path,
    source: Path,
    views: Sequence[PosedView],
    surface: FusedSurface,
    options: FusionOptions,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the page of a fused scene: a turntable, slices and pictures, with the depth of each picture alone beside.

    `source` is the list of views or its folder, which states how far the views disagreed in each round. `on_progress`
    is that of `fuse` for the depth of each picture alone.
    """
    from leadline.report.page.views import FusedScene, write_views_page
    from leadline.report.turntable import Mesh

    def as_mesh(fused: FusedSurface) -> Mesh:
        return Mesh(fused.points, fused.colours, fused.triangles)

    alone = None
    if all(view.alone is not None for view in views):
        fused = fuse(StoredViews(views, alone=True), replace(options, voxel=surface.voxel), on_progress)
        alone = as_mesh(fused)
    file = source / VIEW_LIST if source.is_dir() else source
    rounds = read_json(file, "a list of views").get("rounds", []) if file.is_file() else []
    title = (source if source.is_dir() else source.parent).resolve().name
    scene = FusedScene(title, "", alone, as_mesh(surface), surface.voxel, _ComparedViews(views), rounds)
    write_views_page(path, scene)
