"""The numbers of the backlog that a person could tune: each with its unit, and the measurement or reason behind it.

"ADR n" is a page in ``docs/adr``. A number without a measurement has a reason, or is the smallest that serves.
"""

from __future__ import annotations

# -- Return of a task --------------------------------------------------------------------------------------------------

#: Seconds before its slot at which a task leaves the backlog: time for the broker, timers and a short stall of a
#: worker. A task without such a lead would need 20 polls a second and a worker that is never late (ADR 6).
RETURN_AHEAD = 1.0
#: Seconds before its slot at which a returned task starts to wait in the worker: brokers and timers are usually late.
RETURN_EARLY = 0.05
#: Seconds that a return usually takes, through store, broker and worker. Lots are polled so long before a slot.
RETURN_DURATION = 0.15
#: Most returned tasks of one bucket, for each worker, that have a slot and have not started. With 1,000 for a whole
#: fleet 1,000 workers used 0.52 of 10,000/s; with this number 1.000 (ADR 24). A fleet counts as at least two workers.
MAX_IN_FLIGHT = 500
#: Seconds after which a returned task is published once more, unless its message was reported to be at the broker.
PUBLISH_TIMEOUT = 10.0
#: Most seconds between two attempts to publish a task that the broker refuses.
MAX_PUBLISH_PAUSE = 300.0
#: Seconds for which an error of such an attempt is shown to operators: until the attempt after the next one.
FAILURE_KEPT = 2 * MAX_PUBLISH_PAUSE
#: Most of these errors that a fleet keeps: what an operator may still read.
MAX_FAILURES = 1000

# -- Parking -----------------------------------------------------------------------------------------------------------

#: A new request is parked without acquiring if the last assigned slot is more seconds ahead than this. Without this
#: rule and one other, a worker with a store 20 ms away used 0.42 of its limit in the place of 0.85 (ADR 35).
CLOSED_AHEAD = 0.1
#: Least seconds from the first park in an empty bucket to its poll. After 10 ms two or three tasks return together,
#: after 50 ms a dozen (ADR 6).
FIRST_POLL_DELAY = 0.05
#: Share of the time until the next slot after which an empty bucket is polled: 1.88 store operations a permit without
#: the later poll, 1.72 with it (ADR 24).
FIRST_POLL_SHARE = 0.75
#: Buckets that one worker remembers as occupied. Requests of other buckets acquire first.
MAX_KNOWN_BUCKETS = 10_000
#: Seconds after which acknowledged, published and arrived messages are reported, if no other call has reported them.
#: Far less than :data:`PUBLISH_TIMEOUT`, or returned tasks would be published once more.
REPORT_DELAY = 2.0
#: Seconds by which a broker may redeliver a message late: kombu polls Redis for such messages every 100 s.
REDELIVERY_LATE = 300.0

#: Share of the store's ``maxmemory`` from which on no task is parked. The rest is for the returns of parked tasks, for
#: tasks that are parked until workers notice, and for a broker in the same store.
FULL = 0.9
#: Bytes that a parked task takes beside its message (docs/operations.md).
PARKED_BYTES = 300

# -- Polls of one worker -----------------------------------------------------------------------------------------------

#: Seconds between two polls: of a worker that finds tasks, of one parking lot, and of a store that is lost. With 0.2 a
#: task cost 0.17 scripts more (simulated, ADR 37).
POLL_INTERVAL = 0.3
#: Most seconds between two polls while tasks are parked: each poll without a result doubles the pause (ADR 24). A
#: worker that has found and parked nothing for as long is quiet.
MAX_POLL_INTERVAL = 2.0
#: Least seconds between two polls of a quiet worker.
QUIET_POLL_INTERVAL = 1.0
#: Seconds between two polls, and between two reports to the fleet, of a worker at rest: 0.15 commands a second in the
#: place of 3.7 (ADR 8). A notification ends the pause.
REST_INTERVAL = 20.0
#: The share by which pauses differ at random, so that workers do not poll at the same time.
JITTER = 0.25
#: Seconds of one turn of the worker's loop that polls may take. The last step may take some 30 ms more: it
#: publishes up to :data:`STEP_BUDGET` tasks.
TURN = 0.01
#: Seconds until the next turn. A timer without a delay goes off in the same turn, which took 290 ms then (ADR 15).
NEXT_TURN = 0.001

# -- The fleet ---------------------------------------------------------------------------------------------------------

#: Seconds between two reports of the queues of a worker while tasks are parked.
HEARTBEAT = 2.0
#: Reports that a worker may miss before it counts as dead.
MISSED_REPORTS = 3
#: Seconds without a report after which a limit or a return queue has no worker.
UNATTENDED = MISSED_REPORTS * REST_INTERVAL
#: Seconds for which a queue is known that no worker consumes. A queue that was never consumed is not known.
QUEUE_KNOWN = 30 * 86_400.0
#: Seconds for which a limit or a return queue without a worker is known: its tasks must not be forgotten.
LIMIT_KNOWN = 365 * 86_400.0
#: Seconds for which an empty limit or return queue stays known after the grace: a task on its way may still arrive.
EMPTY_KNOWN = 3600.0
#: Workers above which each reports its counts less often than once a second, and the most seconds between two of these
#: reports: 0.05 operations a permit for 1,000 workers (ADR 24).
MANY_WORKERS, MAX_COUNTS_INTERVAL = 100, 2.0
#: Least seconds between two reviews of what has no worker, and between two comparisons of a fleet's keys.
REVIEW_INTERVAL = 10.0
#: Limits whose keys one review compares.
REVIEWED = 10
#: Seconds between two log lines about one limit or queue.
WARNING_INTERVAL = 300.0

# -- Work of one script ------------------------------------------------------------------------------------------------

#: Work of one script, 1 to 2 ms of the store's time. A returned task counts 1 (17 µs), a parking lot 2 (27 µs; ADR 15).
STEP_BUDGET = 50
#: Parking lots that one script may return tasks of: if each returns one task, the script does not reach more.
LOTS_PER_RETURN = STEP_BUDGET // 3 + 1
#: Tasks that one script takes out or lists. Of a million in one lot, 75 revoked ones took the store 6.6 ms (ADR 15).
PAGE = 40
#: Ids that one script looks up; limits times tasks.
LOOKUPS = 200
#: Parking lots, or names of limits and queues, that one script reads: 15 µs each (ADR 8). 100 took the store up to
#: 6.8 ms (ADR 15).
READ_AT_ONCE = 75
#: Entries of one index that one script moves or one command scans. 500 took the store 6.1 ms (ADR 15).
#: 250 of them are due at once after a change, and more at 500 a second (ADR 8).
SCANNED_AT_ONCE = 350
#: Keys of buckets with parking lots that one command or script reads: 0.9 ms; with the counts of 350 limits 2.2 ms.
KEYS_READ_AT_ONCE = 1000
#: Parking lots that one round trip reads, in scripts of :data:`READ_AT_ONCE`: half a megabyte is sent.
LOTS_AT_ONCE = 2000
#: Entries of parking lots that one script compares (about a millisecond), and scripts of one comparison.
COMPARED, COMPARISONS = 250, 20
#: Bytes of messages after which one script's reply ends: a connection transfers so many in a moment (ADR 8).
MAX_REPLY_BYTES = 512_000
