"""Run folders → the paper's tables, with ours beside them."""
