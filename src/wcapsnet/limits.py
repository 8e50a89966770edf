"""Constants shared by several modules. Must not load torch."""

MIN_SIDE = 8  # pixels of an image; the levels of Table I reduce this to a 2×2 map
MAX_LANES = 32  # runs trained at a time: the size of PyTorch's stream pool; more would share streams
EQUAL = 0.99  # a weight of at least this share of the largest ties with it (D31)
