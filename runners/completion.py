"""dpfbo completion bash: print a shell script that completes commands and their settings."""

import re
import sys
from collections.abc import Sequence

from runners import private_apis
from runners.compose.conf_folder import CONF, added_folders
from runners.dpfbo_command import COMMANDS

SCRIPT = r"""_dpfbo() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
    local word="${line##* }"
    COMPREPLY=($(dpfbo completion words "$line" 2>/dev/null))
    if [[ $word == *=* ]]; then  # bash completes what comes after the equals sign
        COMPREPLY=("${COMPREPLY[@]#"${word%%=*}="}")
    fi
    if [[ ${COMPREPLY[0]} == *[=./] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F _dpfbo dpfbo"""
WITH_SETTINGS = ("run", "sweep", "audit", "headroom")  # commands that take KEY=VALUE
_ONE_VALUE = re.compile(r"[\w/.@]+=[^,]*")  # an override with a single value


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script or completions; return 0, or 2 for an unknown argument."""
    match sys.argv[1:] if argv is None else list(argv):
        case ["words", line]:
            print(*candidates(line), sep="\n")
            return 0
        case ["bash"]:
            print(SCRIPT)
            return 0
        case ["-h" | "--help"]:
            print('usage: dpfbo completion bash\n\nPrint the script: eval "$(dpfbo completion bash)"')
            return 0
    print("error: give the shell bash", file=sys.stderr)
    return 2


def candidates(line: str) -> list[str]:
    """Return completions of the last word of a command line; a key is completed up to its next dot."""
    program, *given, word = re.split(r"\s+", line.lstrip())
    if not given:
        return [name for name in COMMANDS if name.startswith(word)]
    found = settings(given[1:], word) if given[0] in WITH_SETTINGS and not word.startswith("-") else []
    return sorted({name for name in found if name.startswith(word)})


def settings(given: Sequence[str], word: str) -> list[str]:
    """Return Hydra's completions of the override `word`: groups, options or keys.

    In a list such as `group=a,b`, only the last option is completed.
    """
    key, equals, value = word.partition("=")
    before, comma, last = value.rpartition(",")
    path = f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in added_folders())}]"
    others = [other for other in given if _ONE_VALUE.fullmatch(other)]
    found = private_apis.complete_overrides(CONF, [path, *others, f"{key}{equals}{last}"])
    return [f"{key}{equals}{before}{comma}{name.removeprefix(key + equals)}" for name in found]


if __name__ == "__main__":
    sys.exit(main())
