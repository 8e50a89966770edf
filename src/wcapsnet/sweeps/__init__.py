"""One experiment with several settings and seeds."""

from .plan import Planned, Sweep, product, run_at, with_seeds
from .run import train_all

__all__ = ["Planned", "Sweep", "product", "run_at", "train_all", "with_seeds"]
