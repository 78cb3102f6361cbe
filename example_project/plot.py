"""The plots of the demo: calls a second against the limit, one panel a run; and whose they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
logging.getLogger("matplotlib").setLevel(logging.ERROR)  # "building the font cache" is nobody's concern here

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

from .results import BIG, SMALL, Run  # noqa: E402

BIN = 0.2  # seconds; short enough to show what happens within a second
ACCEPTED, REFUSED, LIMIT = "#3b82f6", "#ef4444", "#0f172a"
OF_TENANT = {BIG: "#93c5fd", SMALL: "#ea580c"}
TEXT, FAINT, GRID = "#0f172a", "#64748b", "#e2e8f0"
DASHES = (0, (5, 3))


def draw(runs: list[Run], path: Path) -> None:
    """Write the plot to ``path`` (PNG): calls that were accepted and refused."""
    with _panels(runs, path) as (figure, panels):
        for axes, run in zip(panels, runs, strict=True):
            _panel(axes, run)
        keys = [Patch(color=ACCEPTED), Patch(color=REFUSED), Line2D([], [], color=LIMIT, ls=DASHES, lw=1.4)]
        names = ["accepted", "refused by the upstream (429)", f"its limit, {runs[0].rate:g} a second"]
        figure.legend(keys, names, loc="outside lower center", ncols=3, frameon=False)


def draw_tenants(runs: list[Run], path: Path) -> None:
    """Write the plot to ``path`` (PNG): calls of a big tenant and of a small one."""
    with _panels(runs, path) as (figure, panels):
        for axes, run in zip(panels, runs, strict=True):
            big = _per_second(run, [run.calls[0].at + at for at in run.waited(BIG)])
            both = _per_second(run, run.calls_at())
            last = run.waited(SMALL)[-1]
            _areas(axes, run, [(big, OF_TENANT[BIG]), (both, OF_TENANT[SMALL])])
            _titles(axes, run, f"the small one's last call after {last:.1f} s", OF_TENANT[SMALL])
        keys = [
            Patch(color=OF_TENANT[SMALL]),
            Patch(color=OF_TENANT[BIG]),
            Line2D([], [], color=LIMIT, ls=DASHES, lw=1.4),
        ]
        few, many = len(runs[0].waited(SMALL)), len(runs[0].waited(BIG))
        names = [
            f"the small tenant's {few}, sent last",
            f"the big tenant's {many:,}",
            f"the limit, {runs[0].rate:g} a second",
        ]
        figure.legend(keys, names, loc="outside lower center", ncols=3, frameon=False)


@contextmanager
def _panels(runs: list[Run], path: Path) -> Iterator[tuple[Figure, list[Axes]]]:
    """One below the other, on the same scales."""
    style: dict[Any, Any] = {"font.size": 11, "text.color": TEXT, "axes.edgecolor": FAINT}
    style.update(dict.fromkeys(("xtick.color", "ytick.color", "axes.labelcolor"), FAINT))
    with plt.rc_context(style):
        layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12)
        shape: dict[str, Any] = {"sharex": True, "sharey": True, "squeeze": False}
        figure, grid = plt.subplots(len(runs), 1, figsize=(10, 6), dpi=160, layout=layout, **shape)
        panels: list[Axes] = list(grid[:, 0])
        yield figure, panels
        panels[0].set_xlim(-0.1, max(run.seconds for run in runs) + 0.1)
        panels[0].set_ylim(0, 1.06 * max(max(_per_second(run, run.calls_at())) for run in runs))
        panels[-1].set_xlabel("seconds since the first call")
        figure.supylabel(f"calls per second, in bins of {BIN * 1000:.0f} ms", color=FAINT, fontsize=11)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, facecolor="white")
        plt.close(figure)


def _panel(axes: Axes, run: Run) -> None:
    accepted = _per_second(run, run.calls_at(accepted=True))
    total = _per_second(run, run.calls_at())
    _areas(axes, run, [(accepted, ACCEPTED), (total, REFUSED)])
    _titles(axes, run, f"{run.refused:,} of {len(run.calls):,} refused", REFUSED if run.refused else ACCEPTED)


def _areas(axes: Axes, run: Run, levels: list[tuple[list[float], str]]) -> None:
    """One on the other, and the limit."""
    edges = [index * BIN for index in range(len(levels[0][0]) + 1)]
    below = [0.0] * len(levels[0][0])
    for level, colour in levels:
        axes.stairs(level, edges, baseline=below, fill=True, color=colour, lw=0)
        below = level
    axes.axhline(run.rate, color=LIMIT, lw=1.4, ls=DASHES)


def _titles(axes: Axes, run: Run, verdict: str, colour: str) -> None:
    title = axes.set_title(run.title, loc="left", fontsize=14, fontweight="bold", pad=8)
    axes.annotate(
        run.note, (1, 0), xycoords=title, xytext=(10, 0), textcoords="offset points", va="bottom", color=FAINT
    )
    axes.set_title(verdict, loc="right", fontsize=13, color=colour, pad=8)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _per_second(run: Run, times: list[float]) -> list[float]:
    """Calls per second in each bin of the run."""
    # Bins begin half an interval before the first call. On a beat of exactly 10 ms, calls would otherwise
    # fall on the edges, and a millisecond's jitter would look like a change of the rate.
    start = run.calls[0].at - 0.5 / run.rate
    counts = [0] * (int((run.calls[-1].at - start) / BIN) + 1)
    for at in times:
        counts[int((at - start) / BIN)] += 1
    return [count / BIN for count in counts]
