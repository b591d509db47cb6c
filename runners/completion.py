"""dpfbo completion SHELL: a script that completes commands, options, groups, settings, experiments and data files.

The script asks `dpfbo completion words LINE`, which imports no program, because that would take seconds.
"""

import importlib.util
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runners.compose.conf_folder import CONF, groups
from runners.dpfbo_command import COMMANDS, DATA_FILES, EXPERIMENTS, SETTINGS

SCRIPTS = {
    "bash": r"""_dpfbo() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
    local word="${line##* }"
    COMPREPLY=($(dpfbo completion words "$line" 2>/dev/null))
    if [[ $word == *=* ]]; then  # bash completes what comes after the equals sign
        COMPREPLY=("${COMPREPLY[@]#"${word%%=*}="}")
    fi
    if [[ ${COMPREPLY[0]} == *[=.] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F _dpfbo dpfbo""",
    "zsh": r"""#compdef dpfbo
_dpfbo() {
    local -a found
    found=(${(f)"$(dpfbo completion words "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
    (( $#found )) || { _files; return }
    compadd -S '' -- ${(M)found:#*[=.]}
    compadd -- ${found:#*[=.]}
}
compdef _dpfbo dpfbo""",
    "fish": "complete -c dpfbo -a '(dpfbo completion words (commandline -cp))'",
}
HYDRA_OPTIONS = ("--cfg", "--help", "--multirun", "--resolve")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script of a shell; the exit code is 0, or 2 for another word."""
    match sys.argv[1:] if argv is None else list(argv):
        case ["words", line]:
            print(*candidates(line), sep="\n")
            return 0
        case [shell] if shell in SCRIPTS:
            print(SCRIPTS[shell])
            return 0
        case ["-h" | "--help"]:
            print(f'usage: dpfbo completion {"|".join(SCRIPTS)}\n\nPrint the script: eval "$(dpfbo completion bash)"')
            return 0
    print(f"error: give one shell of {', '.join(SCRIPTS)}", file=sys.stderr)
    return 2


def candidates(line: str) -> list[str]:
    """The words that may replace the last, perhaps empty, word of a command line, as far as their next dot."""
    *given, word = re.split(r"\s+", line.lstrip())
    if len(given) < 2:
        return [name for name in COMMANDS if name.startswith(word)]
    found = [name for name in _names(given[1], _results(given), word) if name.startswith(word)]
    return sorted({name[: name.find(".", len(word)) + 1] or name for name in found})


def _names(command: str, results: Path, word: str) -> Iterable[str]:
    if command not in COMMANDS:
        return
    yield from options(COMMANDS[command].module)
    for name in COMMANDS[command].words:
        if name == SETTINGS:
            yield from values(word) if "=" in word else settings()
        elif name == EXPERIMENTS:
            yield from (path.name for path in results.glob("*") if path.is_dir())
        elif name == DATA_FILES:
            yield from importlib.import_module("runners.fetch.data_files").DATA_FILES
        else:
            yield name


def _results(given: Sequence[str]) -> Path:
    folders = [word.partition("=")[2] for word in given if word.startswith("results_dir=")]
    return Path(folders[-1] if folders else "results")


_OPTION = re.compile(r'"(--[a-z0-9-]+)"')
_OTHERS = ("slurm", "slurm_job")  # modules beside a command that call, or are, other programs


def options(module: str) -> list[str]:
    """The options of a program, found in its source."""
    if module == "runners.run":
        return list(HYDRA_OPTIONS)
    spec = importlib.util.find_spec(module)
    file = Path(spec.origin)  # type: ignore[union-attr,arg-type]
    files = [p for p in file.parent.rglob("*.py") if p.stem not in _OTHERS] if file.stem == "command" else [file]
    return ["--help", *(name for path in files for name in _OPTION.findall(path.read_text()))]


def values(word: str) -> list[str]:
    """`group=option` for every option of the group in `word`; in a list such as `group=a,b`, for the last one."""
    group, _, given = word.partition("=")
    before = given[: given.rfind(",") + 1]
    return [f"{group}={before}{option}" for option in groups().get(group, [])]


def settings() -> list[str]:
    """All groups and dotted keys, with their equals signs."""
    import yaml

    def read(path: Path) -> dict[str, Any]:
        return yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}

    names = [*groups(), *_keys({key: value for key, value in read(CONF / "config.yaml").items() if key != "hydra"}, "")]
    for group in groups().keys() - {"experiment"}:  # experiments have keys of other groups
        for file in (CONF / group).glob("*.yaml"):
            names += _keys(read(file), group.replace("/", ".") + ".")
    return [f"{name}=" for name in names]


def _keys(node: dict[Any, Any], prefix: str) -> list[str]:
    found: list[str] = []
    for key, value in node.items():
        if key in ("defaults", "preset") or not str(key)[0].isalpha():
            continue
        found += _keys(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"]
    return found


if __name__ == "__main__":
    sys.exit(main())
