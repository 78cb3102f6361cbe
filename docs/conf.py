"""The site, built by ``make docs``: these pages, the README, CONTRIBUTING, two folders' READMEs and the docstrings."""

from __future__ import annotations

from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

project = "celery_ratelimit"
version = release = version_of("celery-ratelimit")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"celery_ratelimit {version}"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True

#: Pages whose text is a file outside of this folder; their own file has only the table of contents.
OUTSIDE = {
    "index": "README.md",
    "contributing": "CONTRIBUTING.md",
    "scripts": "lua/README.md",
    "tests": "tests/README.md",
    "changelog": "CHANGELOG.md",
}
#: Links, as they stand in files that are read on their own, and on the site.
LINKS = {
    **{f"]({file}": f"]({page}.md" for page, file in OUTSIDE.items()},
    **{f"](../{file}": f"]({page}.md" for page, file in OUTSIDE.items()},
    "](docs/adr/)": "](decisions.md)",
    "](adr/)": "](decisions.md)",
    "](docs/": "](",
    "](example_project/)": "](../example_project/app.py)",
    "](benchmarks/": "](../benchmarks/",
}


def _read(_app: Any, page: str, source: list[str]) -> None:
    if page in OUTSIDE:
        source[0] = f"{(ROOT / OUTSIDE[page]).read_text()}\n{source[0]}"
    for written, meant in LINKS.items():
        source[0] = source[0].replace(written, meant)


def setup(app: Any) -> None:
    app.connect("source-read", _read)
