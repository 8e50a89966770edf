"""The training loop, the run folder, and evaluation."""
