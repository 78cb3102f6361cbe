"""What the demo found out about a run, from the upstream's own record of the calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

#: Two tenants of one upstream.
BIG, SMALL = "big", "small"


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the upstream saw it; ``at`` is in seconds, on the upstream's clock."""

    at: float
    path: str
    accepted: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One run: ``sent`` tasks, the calls they made in order of arrival, and how often they were delivered."""

    title: str
    note: str
    sent: int
    rate: float
    calls: tuple[Call, ...]
    deliveries: int

    def calls_at(self, *, accepted: bool | None = None) -> list[float]:
        """The times of all calls, or of those accepted, or of those refused."""
        return [call.at for call in self.calls if accepted is None or call.accepted is accepted]

    def waited(self, tenant: str) -> list[float]:
        """Seconds from the first call of all to each of a tenant's."""
        return [call.at - self.calls[0].at for call in self.calls if call.path.partition("/")[2].startswith(tenant)]

    @property
    def refused(self) -> int:
        return sum(not call.accepted for call in self.calls)

    @property
    def lost(self) -> int:
        """Tasks that never called."""
        return self.sent - len({call.path for call in self.calls})

    @property
    def repeated(self) -> int:
        """Calls beyond the first of a task."""
        return sum(count - 1 for count in Counter(call.path for call in self.calls).values())

    @property
    def seconds(self) -> float:
        """From the first call to the last."""
        return self.calls[-1].at - self.calls[0].at if self.calls else 0.0

    @property
    def used(self) -> float:
        """Calls made, as a share of what the rate would have allowed in that time."""
        return (len(self.calls) - 1) / (self.rate * self.seconds) if self.seconds else 0.0

    @property
    def worst_second(self) -> int:
        """The most calls in any one second, wherever that second begins."""
        worst = first = 0
        for last, call in enumerate(self.calls):
            while self.calls[first].at <= call.at - 1.0:
                first += 1
            worst = max(worst, last - first + 1)
        return worst

    @property
    def sent_again(self) -> float:
        """Messages per task beyond the first."""
        return (self.deliveries - self.sent) / self.sent

    @property
    def clean(self) -> bool:
        """Every task called once, and no call was refused."""
        return not (self.refused or self.lost or self.repeated)


def table(runs: list[Run]) -> Table:
    """The runs side by side."""
    result = Table(title=f"Calls to an upstream that allows {runs[0].rate:g} a second")
    result.add_column("")
    for run in runs:
        result.add_column(run.title, justify="right")
    rows = {
        "calls": [Text(f"{len(run.calls):,}") for run in runs],
        "refused by the upstream (429)": [_good(f"{run.refused:,}", not run.refused) for run in runs],
        "share of the rate used": [Text(f"{run.used:.1%}") for run in runs],
        "worst second": [_good(f"{run.worst_second} calls", run.worst_second <= run.rate * 1.02) for run in runs],
        "messages sent again per task": [Text(f"{run.sent_again:.2f}") for run in runs],
        "time, first call to last": [Text(f"{run.seconds:.1f} s") for run in runs],
    }
    for name, cells in rows.items():
        result.add_row(name, *cells)
    return result


def table_of_tenants(runs: list[Run]) -> Table:
    """The same for two tenants."""
    result = Table(title="Seconds until a tenant's last call")
    result.add_column("")
    for run in runs:
        result.add_column(run.title, justify="right")
    for tenant in (SMALL, BIG):
        lasts = [run.waited(tenant)[-1] for run in runs]
        result.add_row(f"the {tenant} one", *[Text(f"{last:.1f} s") for last in lasts])
    return result


def _good(text: str, good: bool) -> Text:
    return Text(text, style="bold green" if good else "bold red")
