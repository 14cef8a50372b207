"""The bytes of a GLB file, binary glTF 2.0: a header, a JSON text and the arrays behind each other."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError, param

FLOAT, UINT16 = 5126, 5123  # glTF's numbers of component types
_UINT32 = 5125
_POINTS, _INDICES = 34962, 34963  # glTF's numbers of buffer targets
_TEXTURE_QUALITY = 92  # of JPEG, at which its blocks are not seen on the surface


def linear_colours(colours: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """sRGB bytes as (N, 4) linear values with alpha, which is what glTF stores for points; 16 bits keep dark tones."""
    steps = np.arange(256) / 255
    linear = np.where(steps <= 0.04045, steps / 12.92, ((steps + 0.055) / 1.055) ** 2.4)
    table = np.rint(linear * 65535).astype("<u2")
    return np.concatenate((table[colours], np.full((len(colours), 1), 65535, "<u2")), axis=1)


def encode_texture(texture: NDArray[np.uint8]) -> bytes:
    """An image, (H, W, 3), as JPEG."""
    from PIL import Image

    if texture.ndim != 3 or texture.shape[2] != 3 or texture.dtype != np.uint8:
        raise InputError(f"{param('texture')} must be an (H, W, 3) uint8 array, got {texture.dtype} {texture.shape}.")
    stream = io.BytesIO()
    Image.fromarray(texture).save(stream, format="JPEG", quality=_TEXTURE_QUALITY, subsampling=0)
    return stream.getvalue()


def glb_bytes(
    attributes: dict[str, tuple[NDArray[Any], int]], corners: NDArray[np.uint32], texture: bytes | None
) -> bytes:
    """The bytes of a GLB file with one mesh: a header, a chunk of JSON and a chunk of arrays."""
    views: list[dict[str, int]] = []
    blocks: list[bytes] = []
    accessors: list[dict[str, Any]] = []

    def add_view(content: bytes, **more: int) -> int:
        start = sum(map(len, blocks))
        views.append({"buffer": 0, "byteOffset": start, "byteLength": len(content), **more})
        blocks.append(_padded(content, b"\0"))  # every array begins at a multiple of four bytes
        return len(views) - 1

    def add_array(values: NDArray[Any], component: int, kind: str, target: int, **more: Any) -> int:
        little_endian = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
        view = add_view(little_endian.tobytes(), target=target)
        accessors.append({"bufferView": view, "componentType": component, "count": len(values), "type": kind, **more})
        return len(accessors) - 1

    primitive: dict[str, Any] = {"attributes": {}, "material": 0}
    for name, (values, component) in attributes.items():
        more: dict[str, Any] = {"normalized": True} if component == UINT16 else {}
        if name == "POSITION":  # the only attribute whose bounds glTF requires
            more |= {"min": values.min(axis=0).tolist(), "max": values.max(axis=0).tolist()}
        kind = f"VEC{values.shape[1]}"
        primitive["attributes"][name] = add_array(values, component, kind, _POINTS, **more)
    primitive["indices"] = add_array(corners.ravel(), _UINT32, "SCALAR", _INDICES)
    surface: dict[str, Any] = {"metallicFactor": 0.0, "roughnessFactor": 1.0}
    content: dict[str, Any] = {
        "asset": {"version": "2.0", "generator": "leadline"},
        "extensionsUsed": ["KHR_materials_unlit"],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "materials": [
            {"pbrMetallicRoughness": surface, "extensions": {"KHR_materials_unlit": {}}, "doubleSided": True}
        ],
    }
    if texture is not None:
        surface["baseColorTexture"] = {"index": 0}
        content["images"] = [{"bufferView": add_view(texture), "mimeType": "image/jpeg"}]
        content["samplers"] = [{"wrapS": 33071, "wrapT": 33071}]  # clamped to the border
        content["textures"] = [{"source": 0, "sampler": 0}]
    binary = b"".join(blocks)
    content |= {"bufferViews": views, "accessors": accessors, "buffers": [{"byteLength": len(binary)}]}
    chunks = _chunk(b"JSON", json.dumps(content, separators=(",", ":")).encode(), b" ") + _chunk(
        b"BIN\0", binary, b"\0"
    )
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks


def _chunk(kind: bytes, content: bytes, filler: bytes) -> bytes:
    padded = _padded(content, filler)
    return struct.pack("<I4s", len(padded), kind) + padded


def _padded(content: bytes, filler: bytes) -> bytes:
    return content + filler * (-len(content) % 4)
