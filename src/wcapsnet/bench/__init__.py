"""Speed, side by side: `wcapsnet bench`. Who competes, what is timed, how, and what is left as a record."""
