"""What tools/faults.py tries, one file per kind of trouble."""
