"""`wcapsnet report`: a run as one HTML file that needs nothing else, or several runs side by side.

facts.py gathers the numbers, sections.py makes HTML of them, svg.py draws; page.css and page.js go into the file.
"""

from .compare import comparison_page, named
from .facts import Facts, Subject, Surveyor, gather, subject_of_run, subject_of_shipped
from .page import run_page

__all__ = [
    "Facts",
    "Subject",
    "Surveyor",
    "comparison_page",
    "gather",
    "named",
    "run_page",
    "subject_of_run",
    "subject_of_shipped",
]
