"""One experiment with several settings and seeds."""

from .plan import Planned, Sweep, check_same, product, with_seeds
from .run import train_all

__all__ = ["Planned", "Sweep", "check_same", "product", "train_all", "with_seeds"]
