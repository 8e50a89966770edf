"""Trained networks included in the package, and the tool that creates them from run folders."""
