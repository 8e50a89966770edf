"""`wcapsnet report`: a run as one HTML file that needs nothing else, or several runs side by side."""

from .facts import Facts, Subject, Surveyor, gather, subject_of_run, subject_of_shipped
from .page import run_page

__all__ = ["Facts", "Subject", "Surveyor", "gather", "run_page", "subject_of_run", "subject_of_shipped"]
