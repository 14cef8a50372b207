"""The thin-plate V-cycle is symmetric and positive definite, and works without memory of earlier calls."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.core.solve.thin_plate import build_thin_plate
from leadline.core.solve.thin_plate_cycle import ThinPlateCycle
from support.operators import code_of, edge_planes, edge_weights, free_pixels, generator, pad, pattern

SYMMETRY = 3e-6  # float32 arithmetic on vectors of order one


def thin_plate_cycle(role, edges, bending, rng):
    mass = pad(np.where(rng.random(role.size) < 0.1, 10.0 ** rng.uniform(-2, 3, role.size), 1e-3), role.shape)
    mass *= code_of(role) > 0
    return ThinPlateCycle(
        build_thin_plate(code_of(role), edge_planes(role, edge_weights(edges, role.shape)), mass, bending)
    )


@pytest.mark.parametrize("bending", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("name", ["open", "anchors", "holes"])
@pytest.mark.parametrize("shape", [(13, 18), (35, 5), (1, 60)], ids=str)
def test_cycle_is_symmetric_and_positive_definite(shape, name, bending):
    role = pattern(name, shape)
    free = free_pixels(role)
    cycle = thin_plate_cycle(role, "mild", bending, generator("cycle", shape, name, bending))
    cycle.damping_factor = 0.5  # some of these systems need damping, which the solver finds out by itself
    columns = []
    for pixel in np.flatnonzero(free):
        unit = np.zeros(role.size)
        unit[pixel] = 1.0
        z, dot = cycle(pad(unit, shape))
        assert dot == pytest.approx(float(z[1:-1, 1:-1].ravel()[pixel]), rel=1e-12)
        assert not z[1:-1, 1:-1].ravel()[~free].any(), "a pixel without an equation was moved"
        columns.append(z[1:-1, 1:-1].ravel()[free])
    B = np.array(columns, float)
    np.testing.assert_allclose(B, B.T, rtol=0, atol=SYMMETRY * np.abs(B).max())
    assert np.linalg.eigvalsh((B + B.T) / 2).min() > 0


def test_cycle_does_not_depend_on_earlier_calls():
    role = pattern("holes", (67, 45))
    rng = generator("memory")
    cycle = thin_plate_cycle(role, "mild", 10.0, rng)
    r, other = (pad(rng.normal(size=role.size) * free_pixels(role), role.shape) for _ in range(2))
    first = cycle(r)[0].copy()
    cycle(1e6 * other)
    cycle.solution[1:-1, 1:-1] = 3.0
    np.testing.assert_array_equal(cycle(r)[0], first)
