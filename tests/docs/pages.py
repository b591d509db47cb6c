"""Pages of Markdown as programs: their code blocks run one after another in an empty folder, as a reader would.

```python             runs in the page's own process, with the names of the blocks before
```sh                 runs in bash; a command that fails fails the page
```<any> title="f"    is written to the file f
```                   anything else is shown, not run: output, and commands that need more than a test has
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r'^( *)```(\w*)(?: +title="([^"]+)")?[^\n]*\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. title: the file that it is written to, or empty."""

    kind: str
    title: str
    text: str


def blocks(page):
    return [Block(kind, title, text) for _, kind, title, text in _FENCE.findall((ROOT / page).read_text())]


def run(page, folder):
    """Run a page in an empty folder; returns the names that its Python blocks defined, and what its commands said."""
    names, said = {"__name__": "__main__"}, []
    for block in blocks(page):
        if block.title:
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.kind == "python":
            exec(compile(block.text, str(page), "exec"), names)
        elif block.kind == "sh":
            said.append(_bash(block.text, folder))
    return names, "".join(said)


def _bash(commands, folder):
    """Run commands where pip installs into `folder`/site, offline, and Python finds it there."""
    site = folder / "site"
    pip = {"PIP_TARGET": str(site), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = os.pathsep.join([str(folder), str(site), os.environ["PYTHONPATH"]])
    environment = {**os.environ, **pip, "PATH": path, "PYTHONPATH": found, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=folder, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr
