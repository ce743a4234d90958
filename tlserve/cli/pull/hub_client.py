"""A hub, through the `huggingface_hub` package: the files of a repository, and the bytes of one file.

Owns the package (no other module imports it) and the messages about its errors. The user's own settings apply: HF_ENDPOINT,
HF_TOKEN, proxies. Files come over plain HTTP, so that an interrupted download continues where it stopped, also in another
process. Does not know which files are needed, and where they go in the end.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from tlserve.cli.pull.hub_files import HubFile
from tlserve.config.environment import process_environ
from tlserve.config.hub_names import HubName
from tlserve.errors import DownloadFailed, OperatorError

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@attrs.frozen
class HubRepository:
    """A repository at one commit."""

    commit: str
    files: tuple[HubFile, ...]


class Hub:
    """The hub that HF_ENDPOINT names; raises `OperatorError` if the package is not installed."""

    def __init__(self) -> None:
        try:
            import huggingface_hub.file_download
            import huggingface_hub.utils
        except ImportError:
            raise OperatorError(
                "a model of a hub needs the package huggingface_hub: pip install 'tlserve[hub]'"
            ) from None
        self._package: Any = huggingface_hub
        self.endpoint = process_environ().get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
        self._package.utils.disable_progress_bars()

    def describe(self, name: HubName) -> HubRepository:
        """Return the repository `name`; raises `DownloadFailed`."""
        with _clear_errors(name, self.endpoint):
            api = self._package.HfApi(endpoint=self.endpoint)
            info = api.model_info(name.repository, revision=name.revision or None, files_metadata=True)
            if not _COMMIT.fullmatch(str(info.sha)):
                raise ValueError(f"the hub names a commit {str(info.sha)[:80]!r}, which is not a hash")
            return HubRepository(str(info.sha), tuple(_file(sibling) for sibling in info.siblings or ()))

    def fetch(self, name: HubName, commit: str, file: HubFile, target: Path, report: Callable[[int], None]) -> None:
        """Fetch the bytes of `file` that `target` does not have yet; `report` gets the size of `target`.

        Raises `DownloadFailed`.
        """
        url = self._package.hf_hub_url(name.repository, file.path, revision=commit, endpoint=self.endpoint)
        held = target.stat().st_size if target.is_file() else 0
        if held > file.size_bytes:
            target.unlink()
            held = 0
        with (
            _clear_errors(name, self.endpoint),
            target.open("ab", buffering=0) as raw,
            _CountedFile(raw, report) as content,
        ):
            self._package.file_download.http_get(
                url,
                content,
                resume_size=held,
                headers=self._package.utils.build_hf_headers(),
                expected_size=file.size_bytes,
            )


class _CountedFile(io.BufferedWriter):
    """A file that reports its size."""

    def __init__(self, raw: Any, report: Callable[[int], None]) -> None:
        super().__init__(raw, 1 << 20)
        self._report = report

    def write(self, data: Any) -> int:
        """Write, and report the size."""
        written = super().write(data)
        self._report(self.tell())
        return written


def _file(sibling: Any) -> HubFile:
    """Convert the package's description of a file."""
    lfs = sibling.lfs
    return HubFile(
        path=str(sibling.rfilename),
        size_bytes=-1 if sibling.size is None else int(sibling.size),
        sha256=str(lfs.sha256).lower() if lfs else "",
        git_sha1="" if lfs else str(sibling.blob_id or "").lower(),
    )


@contextmanager
def _clear_errors(name: HubName, endpoint: str) -> Iterator[None]:
    """Turn the package's errors into one message that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        page = f"{endpoint}/{name.repository}"
        raise DownloadFailed(f"{name} is gated: accept its terms at {page}, then set HF_TOKEN to your token") from None
    except errors.RevisionNotFoundError:
        raise DownloadFailed(f"{name.repository} has no revision {name.revision!r}") from None
    except errors.EntryNotFoundError:
        raise DownloadFailed(f"{endpoint} lists a file of {name} that does not exist") from None
    except errors.RepositoryNotFoundError:
        raise DownloadFailed(
            f"{endpoint} has no model {name.repository}; if it is private, set HF_TOKEN to a token that can read it"
        ) from None
    except Exception as error:  # the package and its HTTP library have many types
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise DownloadFailed(f"cannot fetch {name} from {endpoint}: {said}") from error
