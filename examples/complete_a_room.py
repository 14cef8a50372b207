"""Complete a rendered room from one pixel in fifty, and compare the two stages with the ground truth.

Run it with `python examples/complete_a_room.py`; it needs no file and no network.
"""

from leadline import complete
from leadline.bench.metrics import depth_scores
from leadline.bench.observations import observe
from leadline.datasets.rendered import network_like_prior, render

scene = render(width=320, height=240)
prior = network_like_prior(scene.reference)  # relative depth with errors like those of a network
observed = observe(scene.reference, "distributed")  # the paper's grid of measurements, in metres

result = complete(prior, observed.sparse)
print(result)

for stage, depth in (("response", result.calibrated), ("completed", result.depth)):
    scores = depth_scores(depth, scene.reference, observed.scored)
    print(f"{stage:>9}: AbsRel {scores.absrel:.4f}, MAE {scores.mae:.3f} m over {scores.support} held-out pixels")
