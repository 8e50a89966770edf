"""The paper's tables next to ours, and a run, or several side by side, as one self-contained HTML file.

facts.py gathers the numbers, figures.py draws them, page.py and compare.py hand both to the Jinja2 templates;
page.css, figures.css and page.js are embedded in the file. export.py writes the figures as files.
"""

from .compare import comparison_page, named
from .facts import Facts, gather
from .page import run_page
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
