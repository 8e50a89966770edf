"""The loop, the run folder, and what a network is measured by."""
