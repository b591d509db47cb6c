"""HTML tables for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape

_LEFT = ' style="text-align:left"'


def html_table(rows: Iterable[Sequence[object]], header: Sequence[object] = ()) -> str:
    """Return an HTML table, with every cell escaped. Without a header, the first column becomes row headers."""
    head = "".join(f"<th{_LEFT}>{escape(str(cell))}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(_cells(row, named=not header))}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if header else ''}<tbody>{body}</tbody></table>"


def _cells(row: Sequence[object], named: bool) -> Iterable[str]:
    for k, cell in enumerate(row):
        tag = "th" if named and k == 0 else "td"
        yield f"<{tag}{_LEFT}>{escape(str(cell))}</{tag}>"
