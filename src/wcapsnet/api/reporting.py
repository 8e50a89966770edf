"""`wcapsnet.report`: one HTML page about a run, or about several."""

from __future__ import annotations

from pathlib import Path

import torch

from .. import reports as pages
from .. import shipped
from ..atomic import check_place, write_text
from ..console import counting, warn
from ..data import Dataset
from ..device import choose_device
from ..errors import InputError
from ..explanations import Survey
from ..hub import data_of_run, load_with_data
from ..reports import export
from ..reports.survey_cache import aside
from ..sweeps.plan import runs_of
from ..training.run_folder import Run
from .options import as_path


def report(
    *sources: str | Path,
    out: Path | str | None = None,
    figures: Path | str | None = None,
    data_dir: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> Path:
    """Write one HTML page about a run or a shipped network, or about several side by side. Returns the file.

    For a sweep, all its runs are compared. `figures` is a folder for the figures as SVG, PDF and PNG.
    """
    chosen = choose_device(device)
    folder = Path(figures) if figures else None
    if folder and folder.exists() and not folder.is_dir():
        raise InputError(f"--figures must be a folder, but {folder} is a file.")
    if out:
        check_place(Path(out))  # before the work
    if not sources:
        raise InputError("Name at least one run folder, sweep or shipped network.")
    named = [run for source in sources for run in (list(map(str, runs_of(Path(source)))) or [str(source)])]
    subjects = [_subject(source) for source in dict.fromkeys(named)]
    first = subjects[0]
    if len(subjects) == 1:
        facts = _facts(first, chosen, as_path(data_dir), download, quiet)
        place = first.folder / "report.html" if first.folder else Path(f"{first.name}-report.html")
        if "pictures" in facts.missing and first.weights and place.exists() and not out:
            raise InputError(
                f"{place} was not replaced by a page without pictures; use --out to write that page elsewhere."
            )
        page, drawn = pages.run_page(facts), export.run_figures(facts)
    else:
        compared = pages.named([pages.gather(one, None, "", torch.device("cpu")) for one in subjects])
        place = (first.folder.parent if first.folder else Path()) / "comparison.html"
        page, drawn = pages.comparison_page(compared), export.comparison_figures(compared)
    place = Path(out) if out else place
    write_text(place, page)
    if folder:
        export.write_figures(drawn, folder)
        if not export.converter():
            warn(f"Only SVG files were written. {export.NEEDED}")
    return place


def report_of(
    run: Run, dataset: Dataset, device: torch.device, sample: int | None = None, found: Survey | None = None
) -> Path | None:
    """The report of a run that has just finished or stopped; None if it could not be written.

    `found` is the survey of its test images, if there is one; otherwise the images are surveyed, or `sample` of them.
    """
    place = run.file("report.html")
    try:
        facts = pages.gather(pages.subject_of_run(run.path), dataset, "", device, sample, found=found)
        write_text(place, pages.run_page(facts))
    except KeyboardInterrupt:  # the run is saved; the report can be written later
        return None
    except (InputError, OSError) as error:
        warn(f"The report could not be written: {error}")
        return None
    return place


def missing_report(run: Run, device: torch.device, data_dir: Path | None, download: bool, quiet: bool) -> Path | None:
    """The report of a finished run; written now if the run was stopped before that."""
    place = run.file("report.html")
    if place.exists():
        return place
    run.hold()
    try:
        dataset = data_of_run(run, data_dir, download, quiet)
        run.check_data(dataset)
        return report_of(run, dataset, device)
    except (InputError, OSError) as error:
        warn(f"The report could not be written: {error}")
        return None
    finally:
        run.release()


def _subject(source: str) -> pages.Subject:
    if source in shipped.names():
        return pages.subject_of_shipped(source)
    path = Path(source)
    if not path.exists():
        raise InputError(f"There is no run folder {source}, {shipped.unknown(source)}")
    return pages.subject_of_run(path)


def _facts(
    subject: pages.Subject, device: torch.device, data_dir: Path | None, download: bool, quiet: bool
) -> pages.Facts:
    """A report without the dataset is better than no report: it says what is missing."""
    dataset, why = None, ""
    parts = (subject.part, aside(subject.part))
    try:
        if subject.folder:
            run = Run.open(subject.folder)
            dataset = data_of_run(run, data_dir, download, quiet=True)
            run.check_data(dataset, *parts)
        else:
            _, dataset = load_with_data(
                subject.source, *parts, device=device, data_dir=data_dir, download=download, quiet=True
            )
    except (InputError, OSError) as error:
        dataset, why = None, str(error)
    with counting(quiet) as progress:
        facts = pages.gather(subject, dataset, why, device, progress=progress)
    if "pictures" in facts.missing and not quiet:
        warn(f"No pictures: {facts.missing['pictures']}")
    return facts
