"""The paper's tables next to ours, and a run, or several side by side, as one self-contained HTML file.

facts.py gathers the numbers; overview.py, confusion.py, routing.py and examples.py turn them into HTML; svg.py draws;
page.css and page.js are embedded in the file.
"""

from .compare import comparison_page, named
from .document import run_page
from .facts import Facts, gather
from .subject import Subject, subject_of_run, subject_of_shipped
from .survey_cache import saved_survey

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
