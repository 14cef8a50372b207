"""Use a network that predicts disparity with an unknown shift, and look at what was fitted.

Run it with `python examples/disparity_prior.py`; the disparity is made from a rendered room.
"""

import numpy as np

from leadline import CompletionOptions, Prior, ReconstructionOptions, complete
from leadline.datasets.rendered import render

scene = render(width=320, height=240)
disparity = 0.7 / scene.reference - 0.05  # an affine-invariant network: scale and shift of 1/z are its own
sparse = np.zeros_like(scene.reference)
rows, columns = np.random.default_rng(0).integers(0, (240, 320), size=(300, 2)).T
sparse[rows, columns] = scene.reference[rows, columns]  # 300 points, say from structure from motion

# Disparities at or below zero have no depth: raise them to a hundredth of the largest, and say so.
prior = Prior(disparity, kind="disparity", floor=0.01)
# Few points, far apart: let each correction reach farther than the paper's 32 pixels.
options = CompletionOptions(reconstruction=ReconstructionOptions(weight_data=1e-4))
result = complete(prior, sparse, options=options)

print(result)
deviation = np.sqrt(np.diag(result.fit.covariance))
print(f"exponent {result.fit.response.exponent:+.4f} +- {deviation[0]:.1g}; -1 is exact for such a network")
print(f"largest error {np.nanmax(np.abs(result.depth - scene.reference)) * 1000:.2f} mm")
