"""`wcapsnet report`: a run, or several runs side by side, as one self-contained HTML file.

facts.py gathers the numbers; overview.py, answers.py, routing.py and examples.py turn them into HTML; svg.py draws;
page.css and page.js are embedded in the file.
"""

from .compare import comparison_page, named
from .facts import Facts, gather
from .look import saved_survey
from .page import run_page
from .subject import Subject, subject_of_run, subject_of_shipped

__all__ = [
    "Facts",
    "Subject",
    "comparison_page",
    "gather",
    "named",
    "run_page",
    "saved_survey",
    "subject_of_run",
    "subject_of_shipped",
]
