"""Numbers that describe the routing: over a dataset, for one image, for one capsule. Plots are elsewhere.

    from wcapsnet.explanations import explain_image, specialization, survey

    seen = survey(classifier.network, split)      # one pass over a dataset, from which most of the rest is computed
    specialization(seen).levels[0].mean           # the paper's figure: mean weight for each class and capsule
    explain_image(classifier.network, image)      # weights, contributions, the effect of switching a block off

`wcapsnet.explain(run, picture)` and `wcapsnet.explain(run)` load a trained network and do all of this for it.
"""

from .capsule import (
    CapsuleExplanation,
    Neighbours,
    Traversal,
    check_capsule,
    decode,
    explain_capsule,
    nearest,
    traverse,
    traverse_capsule,
    vector_range,
)
from .faithfulness import Faithfulness, available_methods, faithfulness, mean_and_margin
from .image import ImageExplanation, explain_image, explain_images, over_image, without_each_block
from .lipschitz import Critics, critics, recalibrated
from .probes import Probe, probe_levels
from .reroute import Rerouted, reroute
from .specialization import LevelSpecialization, Specialization, specialization
from .survey import Survey, check_routing, has_routing, survey, without_routing

__all__ = [
    "CapsuleExplanation",
    "Critics",
    "Faithfulness",
    "ImageExplanation",
    "LevelSpecialization",
    "Neighbours",
    "Probe",
    "Rerouted",
    "Specialization",
    "Survey",
    "Traversal",
    "available_methods",
    "check_capsule",
    "check_routing",
    "critics",
    "decode",
    "explain_capsule",
    "explain_image",
    "explain_images",
    "faithfulness",
    "has_routing",
    "mean_and_margin",
    "nearest",
    "over_image",
    "probe_levels",
    "recalibrated",
    "reroute",
    "specialization",
    "survey",
    "traverse",
    "traverse_capsule",
    "vector_range",
    "without_each_block",
    "without_routing",
]
