"""Programs that turn result files into tables, figures and verdicts; they need the extra `analysis`."""

from dpfbo.extras import check_for_program

PACKAGES = ("jinja2", "matplotlib", "PIL", "pyarrow", "yaml", "rich")

check_for_program(PACKAGES, "analysis")
