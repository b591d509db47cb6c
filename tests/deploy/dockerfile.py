"""A few rules for a Dockerfile, as hadolint has them, and that what it copies exists and reaches the builder."""

import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

_PINNED = re.compile(r".+:\d[\w.-]*\d[\w.-]*")  # a tag with a version
_SECRET = re.compile(r"(?i)\b\w*(api_?key|token|password|secret)\w*\s*=")


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions in capital letters, with their arguments on one line; comments are left out."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    return [
        (word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word
    ]


def faults(text: str, root: Path) -> Iterator[str]:
    """Sentences about what is wrong with a Dockerfile whose build context is `root`."""
    stages, user = set[str](), "root"
    for word, rest in instructions(text):
        if word == "FROM":
            image, _, stage = rest.partition(" AS ")
            if not _is_stage(image, stages) and not _PINNED.fullmatch(image):
                yield f"the image {image} has no version"
            stages.add(stage)
            user = "root"
        elif word == "USER":
            user = rest
        elif word == "WORKDIR" and not rest.startswith("/"):
            yield f"WORKDIR {rest} is not absolute"
        elif word == "ADD":
            yield f"ADD {rest}: COPY says what it does"
        elif word in ("ENV", "ARG") and _SECRET.search(rest):
            yield f"{word} {rest} would keep a secret in the image"
        elif word == "RUN":
            yield from _run_faults(rest)
        elif word == "COPY" and not rest.startswith("--from="):
            yield from _copy_faults(shlex.split(rest)[:-1], root)
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", user):
        yield f"the user of the image is {user}, not a number other than root's"


def _is_stage(image: str, stages: set[str]) -> bool:
    """True for the name of an earlier stage, also one with an argument: every stage that fits its pattern counts."""
    return any(fnmatch(stage, re.sub(r"\$\{\w+\}", "*", image)) for stage in stages if stage)


def _run_faults(command: str) -> Iterator[str]:
    for part in command.split("&&"):
        if re.search(r"\bpip3? (install|wheel)\b", part) and "--no-cache-dir" not in part:
            yield f"pip keeps its cache: {part.strip()}"
        if "apt-get install" in part and not ("--no-install-recommends" in part and "/var/lib/apt/lists" in command):
            yield f"apt-get leaves what nobody needs: {part.strip()}"
        if re.search(r"\b(sudo|curl|wget) ", part) and "apt-get" not in part:
            yield f"not reproducible, or not needed: {part.strip()}"


def _copy_faults(sources: list[str], root: Path) -> Iterator[str]:
    sent = {line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in sources:
        if not (root / source).exists():
            yield f"{source} does not exist"
        if source not in sent:
            yield f".dockerignore keeps {source} from the builder"
