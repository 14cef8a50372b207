"""Complete depth with a network that predicts disparity up to an unknown scale and shift.

Run it with `python examples/disparity_prior.py`; the disparity is made from a rendered room.
"""

import numpy as np

from leadline import CompletionOptions, Prior, ReconstructionOptions, complete
from leadline.datasets.rendered import render

scene = render(width=320, height=240)
disparity = 0.7 / scene.reference - 0.05  # the scale and the shift of 1/z are unknown to the method
sparse = np.zeros_like(scene.reference)
rows, columns = np.random.default_rng(0).integers(0, (240, 320), size=(300, 2)).T
sparse[rows, columns] = scene.reference[rows, columns]  # 300 points, for example from structure from motion

# Disparities of zero or less have no depth. The floor raises them to a hundredth of the largest disparity.
prior = Prior(disparity, kind="disparity", floor=0.01)
for label, options in (
    ("best, the default", CompletionOptions()),
    # The points are far apart, so the weight is reduced to carry each correction farther than the paper's 32 pixels.
    ("paper, long range", CompletionOptions.paper(reconstruction=ReconstructionOptions.paper(weight_data=1e-4))),
):
    result = complete(prior, sparse, options=options)
    deviation = np.sqrt(np.diag(result.fit.covariance))
    print(f"{label}:\n{result}")
    print(f"exponent {result.fit.response.exponent:+.4f} +- {deviation[0]:.1g}; -1 is exact for such a network")
    print(f"largest error {np.nanmax(np.abs(result.depth - scene.reference)) * 1000:.2f} mm\n")
