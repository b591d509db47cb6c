"""The board's HTML page, with its CSS, its scripts and plotly.js."""

import json
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = ("words.js", "charts.js", "tables.js", "page.js")
_POLICY = "default-src 'none'; img-src data: blob:; base-uri 'none'; form-action 'none'"
_SERVED = f"{_POLICY}; connect-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'"
_WHOLE = f"{_POLICY}; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


class NoBoard(RuntimeError):
    """The board cannot be shown; the message is one sentence."""


@cache
def plotly_script() -> str:
    """Return the source of plotly.js. Raises NoBoard if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise NoBoard("the board needs plotly: pip install 'dpfbo[board]'") from error
    return str(get_plotlyjs())


def board_script() -> str:
    return "\n".join((HERE / name).read_text() for name in SCRIPTS)


def style() -> str:
    return (HERE / "board.css").read_text()


def served_page(settings: dict[str, Any]) -> str:
    """Return the page that loads its parts and its content from the server."""
    links = '<link rel="stylesheet" href="board.css">'
    scripts = '<script src="plotly.js"></script><script src="board.js"></script>'
    return _page(_SERVED, links, _data("settings", settings) + scripts)


def whole_page(content: dict[str, Any]) -> str:
    """Return a self-contained page."""
    sources = (script.replace("</script", "<\\/script") for script in (plotly_script(), board_script()))
    scripts = "".join(f"<script>{source}</script>" for source in sources)
    return _page(_WHOLE, f"<style>{style()}</style>", _data("settings", {}) + _data("content", content) + scripts)


def _page(policy: str, head: str, end: str) -> str:
    text = (HERE / "page.html").read_text()
    for name, value in (("POLICY", policy), ("HEAD", head), ("END", end)):
        text = text.replace(f"<!--{name}-->", value, 1)
    return text


def _data(name: str, content: dict[str, Any]) -> str:
    """Return a page element with JSON in it, escaped so that no character can end the element."""
    text = json.dumps(content, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'
