"""Tuning constants of calls to the store: each with its unit, and its reason or an ADR."""

from __future__ import annotations

# -- Calls to the store ------------------------------------------------------------------------------------------------

#: Threads that make calls, each with its own connection; and how many of them connect when the worker starts, since
#: that takes four round trips (ADR 35).
THREADS, CONNECTED = 4, 2
#: Threads make calls from this many seconds of a round trip on; below the second value the loop makes them again.
#: Passing a call to a thread takes 0.1 ms (ADR 35).
THREADS_FROM, LOOP_BELOW = 0.001, 0.0005
#: The fastest of so many latest replies shows the distance of the store; the others were late for other reasons.
LATEST_REPLIES = 16
#: Most seconds that a round trip counts in its mean, and the weight of the newest.
MAX_ROUND_TRIP, NEWEST_WEIGHT = 0.1, 1 / 8
#: Seconds that a stopping worker waits for replies. A call to a store that hangs has timed out by then.
LAST_REPLIES = 3.0
#: Seconds after which the store is asked for its time again: it may be another server by then, with another clock.
CLOCK_FRESH = 5.0

# -- While the store does not answer -----------------------------------------------------------------------------------

#: Seconds between two probes of the store.
PROBE_INTERVAL = 0.5
#: Seconds between two lines in the log.
OUTAGE_WARNING_INTERVAL = 60.0
#: The shortest and the longest pause, in seconds, after which a deferred task comes back.
SHORTEST_DEFERRAL, LONGEST_DEFERRAL = 1.0, 30.0
