"""Every Python block of the README and the docs runs, in the order of its page, on a real store and broker.

``docs/testing.md`` is a small project, which ``test_memory_store.py`` writes to files and tests.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery, _state
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser

from benchmarks.conformance import page as page_of_figures
from benchmarks.report import RESULT
from celery_ratelimit import RateLimitedTask
from celery_ratelimit.testing import EmbeddedServer, clear_memory

ROOT = Path(__file__).parents[3]
PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if "```python" in page.read_text() and page.name != "testing.md"
]


@pytest.fixture
def names(server: EmbeddedServer) -> Iterator[dict[str, Any]]:
    """Names that pages use without defining them."""
    app = Celery("docs", broker=server.url, backend=server.url, set_as_current=False)
    app.conf.ratelimit_quotas = {"stripe": {"rate": "100/s", "key": "tenant:{tenant_id}"}}

    @app.task(base=RateLimitedTask, limits="stripe")
    def charge(tenant_id: int) -> None: ...

    clear_memory()
    with contextlib.closing(app):
        yield {
            "app": app,
            "client": SimpleNamespace(complete=str.upper),  # an upstream's
        }
    clear_memory()
    if CeleryInstrumentor().is_instrumented_by_opentelemetry:  # which a page has switched on
        CeleryInstrumentor().uninstrument()


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_runs(
    page: str, names: dict[str, Any], server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    here = tmp_path / Path(page).name
    here.write_text((ROOT / page).read_text().replace("redis://localhost:6379/0", server.url))
    document = Document.parse(str(here), PythonCodeBlockParser())
    document.namespace.update(names)
    current = _state._tls.current_app
    try:
        ran = [example.evaluate() for example in document.examples()]
    finally:
        _state._set_current_app(current)
    assert len(ran) == here.read_text().count("```python")


def test_page_of_figures_shows_the_latest_result() -> None:
    """Else: ``python -m benchmarks.conformance > docs/conformance.md``."""
    assert (ROOT / "docs" / "conformance.md").read_text() == page_of_figures(json.loads(RESULT.read_text()))
