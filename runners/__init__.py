"""Programs on top of the library."""

import os
import sys


def use_utf8() -> None:
    """Start the process again in Python's UTF-8 mode if its locale has ASCII alone, as `LC_ALL=C` may.

    Names of files with other letters could neither be read, nor opened, nor printed.
    """
    if sys.getfilesystemencoding() == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"  # for the processes that it starts, too
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


if sys.argv[:1] == ["-m"]:  # python -m runners.PROGRAM, before the program is read
    use_utf8()
