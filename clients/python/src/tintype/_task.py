"""Tasks, and the files that their images are saved in."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from ._errors import NoAnswer

Status = Literal["processing", "completed", "failed"]

# Ids become parts of URLs and of file names.
_TASK_ID = re.compile(r"imgmodel-[A-Za-z0-9_-]{21}", re.ASCII)


@dataclass(frozen=True)
class Task:
    """A task, as the API returns it. `images` are the URLs, in order."""

    task_id: str
    status: Status
    type: str
    images: tuple[str, ...]
    error: str | None
    created_at: datetime


@dataclass(frozen=True)
class Generated:
    """A completed task and its images as PNG, in order."""

    task: Task
    images: tuple[bytes, ...]

    def save(self, folder: str | os.PathLike[str] = ".") -> list[Path]:
        """Writes the images as `TASK_ID-1.png` and so on, and makes the folder if it is missing.

        A file is written completely or not at all. Raises `FileExistsError` for a name that another file has; an image that an
        earlier call saved stays as it is.
        """
        directory = Path(folder)
        directory.mkdir(parents=True, exist_ok=True)
        paths = [directory / f"{self.task.task_id}-{i}.png" for i in range(1, len(self.images) + 1)]
        for path, image in zip(paths, self.images):
            _save(path, image)
        return paths


def _save(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with unfinished.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            # A rename replaces its target, so an empty file of ours claims the name first.
            path.open("xb").close()
        except FileExistsError:
            found = path.read_bytes()
            if found == content:
                return
            # A crash after the claim leaves an empty file.
            if found:
                raise
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_task(data: Any) -> Task:
    """The task in an answer. Raises `NoAnswer` if it is none."""
    try:
        task_id, status = data["task_id"], data["status"]
        if not _TASK_ID.fullmatch(task_id) or status not in get_args(Status):
            raise ValueError
        images = tuple(str(image["url"]) for image in data.get("images") or ())
        created_at = datetime.fromisoformat(data["created_at"].replace("Z", "+00:00"))
        error = data.get("error")
        return Task(task_id, status, str(data["type"]), images, None if error is None else str(error), created_at)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise NoAnswer("the answer is not one of the Tintype API") from None
