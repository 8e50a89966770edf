"""Run folders → the paper's tables, with ours beside them; pages about runs. `wcapsnet.report(run)` writes one."""

from ..verbs import callable_package

callable_package(__name__)
