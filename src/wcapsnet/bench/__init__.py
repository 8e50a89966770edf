"""Speed comparison, `wcapsnet bench`: implementations, tasks, measurement, and records."""
