"""The paper's tables next to ours, and HTML reports on runs. `wcapsnet.report(run)` writes a report."""

from ..verbs import callable_package

callable_package(__name__)
