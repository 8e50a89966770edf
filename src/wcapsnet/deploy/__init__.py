"""Trained networks that come with the package, and the tool that makes them from run folders."""
