"""Download files with checksums: the result is complete and correct, or absent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ..atomic import replacing
from ..console import progress_bar
from ..errors import InputError


def download(urls: Sequence[str], target: Path, *, md5: str = "", sha256: str = "", quiet: bool = False) -> Path:
    """Download `target` from the first URL that serves it with the right checksum: `md5` or `sha256`."""
    import pooch  # with requests, a tenth of a second
    from requests import HTTPError, RequestException

    pooch.get_logger().setLevel("ERROR")
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    checksum, failures = f"sha256:{sha256}" if sha256 else f"md5:{md5}", []
    with progress_bar(TextColumn("{task.description}"), *columns, quiet=quiet) as progress:
        for url in urls:
            bar = _Bar(progress, target.name)
            # some servers reject the default user agent
            fetch = pooch.HTTPDownloader(progressbar=bar, timeout=30.0, headers={"User-Agent": "wcapsnet"})
            try:
                with replacing(target) as partial:
                    pooch.retrieve(url, checksum, partial.name, partial.parent, downloader=fetch)
                return target
            except HTTPError as error:
                failures.append(f"{url} answered {str(error).partition(' for url')[0]}")
            except RequestException as error:
                failures.append(f"{url} {'broke off' if bar.total else f'cannot be reached ({_cause(error)})'}")
            except ValueError:  # from pooch
                failures.append(f"{url} serves a file with the wrong checksum")
            except OSError as error:
                raise InputError(
                    f"Cannot write {target}: {error.strerror or error}; check the permissions and free space of that "
                    "folder."
                ) from error
            finally:
                bar.close()
    raise InputError(
        f"Cannot download {target.name}: {'; '.join(failures)}; "
        f"check the network and try again, or put the file at {target} yourself."
    )


class _Bar:
    """A row of a progress bar, with the attributes that pooch uses."""

    def __init__(self, progress: Progress, name: str):
        self._progress, self._task = progress, progress.add_task(name, total=None)
        self.total = 0  # bytes, set when the server answers

    def update(self, size: int) -> None:
        self._progress.update(self._task, total=self.total or None, advance=size)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.update(self._task, visible=False)


def _cause(error: BaseException) -> str:
    """The innermost reason: requests wraps those of urllib3, which wrap those of the system."""
    while isinstance(reason := getattr(error, "reason", None) or next(iter(error.args), None), BaseException):
        error = reason
    return str(getattr(error, "strerror", None) or error).rpartition(": ")[2]
