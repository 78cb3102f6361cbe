"""The Celery and kombu internals that ``_celery`` stands on: fails loudly when one of them moves."""

from __future__ import annotations

import inspect
import sys
import time
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import amqp
import billiard.pool
import pydantic
import pytest
from amqp.abstract_channel import AbstractChannel
from amqp.exceptions import RecoverableConnectionError
from celery import VERSION, Celery, signals
from celery.app import base
from celery.app.amqp import Queues
from celery.app.task import Context
from celery.app.task import Task as CeleryTask
from celery.apps import worker
from celery.concurrency import eventlet, gevent, prefork
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.base import BasePool
from celery.events.event import group_from
from celery.events.state import State
from celery.utils.collections import LimitedSet
from celery.utils.timer2 import Timer as Timer2
from celery.worker import WorkController, autoscale, loops, request, state, strategy
from celery.worker.consumer import consumer
from celery.worker.consumer.gossip import Gossip
from celery.worker.consumer.tasks import Tasks
from kombu import Connection, Exchange, Producer, Queue
from kombu import Consumer as KombuConsumer
from kombu.asynchronous import hub
from kombu.asynchronous.timer import Timer as KombuTimer
from kombu.common import QoS
from kombu.message import Message
from kombu.transport import SQS, pyamqp, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.redis import MultiChannelPoller
from kombu.transport.redis import QoS as RedisQoS
from kombu.transport.redis import Transport as RedisTransport

from celery_ratelimit._celery import models_of, requests
from celery_ratelimit._celery.autoscaler_patch import Autoscaling
from celery_ratelimit._celery.broker import Broker
from celery_ratelimit._celery.bulk_receive import BulkReceive
from celery_ratelimit._celery.consumed_queues import consumer_classes
from celery_ratelimit._celery.end_without_run import _announce_revoked
from celery_ratelimit._celery.prefetch import Prefetch
from celery_ratelimit._celery.publisher import Publisher
from celery_ratelimit._celery.return_addresses import ReturnAddresses, ReturnNames
from celery_ratelimit._celery.return_queue_consumer import ReturnConsumer

if VERSION[:2] < (5, 7):
    pytest.skip("what is compared is the source of Celery 5.7", allow_module_level=True)


def source(thing: object) -> str:
    if isinstance(thing, property):
        thing = thing.fget
    elif isinstance(thing, str):  # a module that is not imported: eventlet warns if it is, and has patched nothing
        spec = find_spec(thing)
        assert spec is not None
        return Path(str(spec.origin)).read_text()
    return inspect.getsource(getattr(thing, "fget", None) or thing)  # type: ignore[arg-type]


#: What ``_celery`` relies on, the code of Celery or kombu, and texts that its source must contain.
CONTAINS: list[tuple[Any, ...]] = [
    # A task that Celery itself held goes to the gate; the time limits of greenlets are reported by a callback.
    (consumer.Consumer._limit_move_to_pool, "self.on_task_request(request)"),
    (request.create_request_cls, "timeout_callback=self.on_timeout"),
    ("celery.concurrency.gevent", "return timeout_callback(False, timeout)"),
    (WorkController._process_task, "except TaskRevokedError:"),
    # A lost connection.
    (AsynPool.flush, "_accepted", "self._cache", "_busy_workers"),
    (AsynPool._create_write_handlers, "busy_workers = self._busy_workers", "job._write_to = proc"),
    (AsynPool.on_job_process_down, "_scheduled_for"),
    (AsynPool.on_job_ready, "inqW_fd"),
    (consumer.Consumer.on_connection_error_after_connected, "connection, self.connection = self.connection, None"),
    (consumer.Consumer.__init__, "self.connection_errors = self.conninfo.connection_errors"),
    ("celery.worker.consumer.connection", "c.connection = c.connect()"),
    # A cancelled timer stays in the queue until its time.
    (KombuTimer.cancel, "tref.cancel()"),
    (KombuTimer._enter, "push(self._queue, scheduled(eta, priority, entry))"),
    # Pools of greenlets, and their timers.
    *((pool.on_start, "self._pool = self.Pool(self.limit)") for pool in (gevent.TaskPool, eventlet.TaskPool)),
    *((pool.grow, "self._pool.size") for pool in (gevent.TaskPool, eventlet.TaskPool)),
    *((pool.shrink, "self._pool.size") for pool in (gevent.TaskPool, eventlet.TaskPool)),
    *(
        (f"celery.concurrency.{name}", "    is_green = True\n", "        g.entry = entry\n", "        g.eta = eta\n")
        for name in ("gevent", "eventlet")
    ),
    # Gossip knows the workers that are alive.
    (Gossip.__init__, "self.enabled = not without_gossip and"),
    (State.alive_workers, "if w.alive"),
    (strategy.default, "task_reserved(req)", "apply_eta_task, (req,), priority=6)"),
    (hub.Hub.create_loop, "fire_timers = self.fire_timers"),
    # A worker without an event loop: timers in a thread (tests/apps/loopless.py), calls after each read.
    (WorkController.should_use_eventloop, "not self.app.IS_WINDOWS"),
    (KombuTimer.__iter__, "min(eta - now, max_interval)"),
    (consumer.Consumer.call_soon, "self._pending_operations.append(p)"),
    (loops.synloop, "perform_pending_operations = obj.perform_pending_operations"),
    (Connection.drain_events, "drain_events(self.connection"),
    (Connection.connection, "_ensure_connection("),
    # Broker.poll_delay.
    (consumer.Consumer.__init__, "self.loop = loops.asynloop if hub else loops.synloop"),
    (virtual.Transport.drain_events, "sleep(polling_interval)"),
    # Prefetch.
    (Tasks.start, "eta_task_limit = c.app.conf.worker_eta_task_limit", "def set_prefetch_count"),
    (Tasks.start, "if len(state.reserved_requests) >= limit:"),
    (Tasks.start, 'limit = getattr(c.controller, "max_concurrency", None) or c.pool.num_processes'),
    (Tasks.start, "channel_qos.can_consume = MethodType(can_consume, channel_qos)"),
    (strategy.default, "consumer.qos.increment_eventually()"),
    (consumer.Consumer.apply_eta_task, "self.qos.decrement_eventually()"),
    (consumer.Consumer._limit_post_eta, "self.qos.decrement_eventually()"),
    (QoS.increment_eventually, "max_prefetch"),
    *((loop, "qos.prev != qos.value") for loop in (loops.asynloop, loops.synloop)),
    # Consumers and callbacks.
    (KombuConsumer._basic_consume, "queue.consume(tag, self._receive_callback"),
    (KombuConsumer._consume_queues, "self._basic_consume("),
    (RedisChannel.basic_cancel, "in_protected_read"),
    (Tasks.stop, "c.task_consumer.cancel"),
    (consumer.Consumer.cancel_task_queue, "self.task_consumer.cancel_by_queue("),
    # end_revoked does what Celery does, with the state stored in a thread.
    (request.Request.revoked, "self._announce_revoked("),
    (CeleryTask.backend, "return self.app.backend"),
    (Celery._backend.fset, "self._local.backend = backend"),
    (request.Request.reject, "self._on_reject(logger, self._connection_errors, requeue)"),
    # BulkAcknowledge does for many messages what these do for one.
    (RedisQoS.ack, "self._remove_from_indices(delivery_tag).execute()", "super().ack(delivery_tag)"),
    (RedisQoS._remove_from_indices, "pipe.zrem(self.unacked_index_key, delivery_tag)"),
    (RedisQoS._remove_from_indices, ".hdel(self.unacked_key, delivery_tag)"),
    (virtual.QoS.ack, "self._quick_ack(delivery_tag)"),
    (virtual.QoS.__init__, "self._quick_ack = self._dirty.add"),
    # lua/broker/fetch_batch.lua and BulkReceive do for several messages what these do for one.
    (RedisChannel._put, "pri = self._get_message_priority(message, reverse=False)", "lpush"),
    (RedisChannel._put, "self._q_for_pri(queue, pri)"),
    (RedisQoS.append, "EX, RK = delivery['exchange'], delivery['routing_key']"),
    (RedisQoS.append, "zadd_args = [{delivery_tag: time()}]", "dumps([message._raw, EX, RK])"),
    (RedisQoS.append, "super().append(message, delivery_tag)"),
    (RedisQoS.pipe_or_acquire, "with self.channel.conn_or_acquire(client) as client"),
    (RedisChannel._brpop_read, "self.connection._deliver(loads(bytes_to_str(item)), dest)"),
    (RedisChannel.__init__, "self.handlers = {'BRPOP': self._brpop_read"),
    (MultiChannelPoller.on_readable, "chan.handlers[type]()", "chan.qos.can_consume()"),
    # A channel makes a client for each command (reuse_client).
    (RedisChannel.conn_or_acquire, "yield self._create_client()"),
    (RedisChannel._size, "for pri in self.priority_steps:", "pipe = pipe.llen(self._q_for_pri(queue, pri))"),
    (pyamqp.Message.__init__, "delivery_info=msg.delivery_info"),
    # Each channel counts and asks by itself: return queues, and pause_while.
    (MultiChannelPoller.on_poll_start, "for channel in self._channels", "channel.qos.can_consume()"),
    (MultiChannelPoller.on_poll_start, "self._register_BRPOP(channel)"),
    (MultiChannelPoller._register_BRPOP, "channel._brpop_start()"),
    (RedisTransport.register_with_event_loop, "loop.on_tick.add(on_poll_start)"),
    (virtual.Channel.drain_events, "self.qos.can_consume()"),
    (virtual.Channel.basic_qos, "self.qos.prefetch_count = prefetch_count"),
    (virtual.Channel.qos, "self._qos = self.QoS(self)"),
    (RedisChannel._brpop_start, "self._queue_cycle"),
    # Publisher.
    (AbstractChannel.wait, "already closed"),
    (amqp.Channel.collect, "self.connection = self.connection, None"),
    (amqp.Channel.basic_qos, "spec.Basic.Qos, argsig, (prefetch_size, prefetch_count, a_global),", "argsig='lBb'"),
    # models_of.
    (base.pydantic_wrapper, "returned_value = task_fun(*bound_args.args, **bound_args.kwargs)"),
    (base.pydantic_wrapper, "isinstance(returned_value, BaseModel)"),
    (Celery._task_from_fun, "'__wrapped__': run"),
    # Soft shutdown, and the pipe that shows the end of a task.
    (WorkController.wait_for_soft_shutdown, "sleep(app.conf.worker_soft_shutdown_timeout)"),
    (worker.on_cold_shutdown, "worker.wait_for_soft_shutdown()"),
    (billiard.pool.Worker.contribute_to_object, "obj.outqR_fd = self.outq._reader.fileno()"),
    # note_arrived makes an unhashable shadow a text.
    (state.task_accepted, "{request.name: 1}"),
    # SQS creates a queue that is declared passively, and uses its own visibility timeout.
    (SQS.Channel._new_queue, "_resolve_queue_url", "'VisibilityTimeout': str(self.visibility_timeout)"),
    (SQS.Channel._put, "kwargs['MessageDeduplicationId'] = str(uuid.uuid4())"),
]

#: The same, where the second text must come after the first.
IN_ORDER: list[tuple[Any, str, str]] = [
    (consumer.Consumer.__init__, "self.on_task_request = on_task_request", "self.blueprint.apply("),
    (request.create_request_cls, "raise TaskRevokedError(task_id)", "= apply_async("),
    (consumer.Consumer.on_close, "reserved_requests.clear()", "self.pool.flush()"),
    (Gossip.__init__, "if self.enabled:", "self.state = c.app.events.State("),
    (loops.synloop, "perform_pending_operations()\n", "drain_events(timeout=2.0)"),
    (loops.synloop, "except OSError:", "if blueprint.state == RUN:"),
    (amqp.Channel.basic_consume, "wait=None if nowait else", "self.callbacks[consumer_tag] = callback"),
    (loops.asynloop, "consumer.on_message = on_task_received", "consumer.consume()"),
    (loops.synloop, "consumer.on_message = on_task_received", "consumer.consume()"),
    (consumer.Consumer._limit_move_to_pool, "task_reserved(request)", "self.on_task_request(request)"),
    # A channel reads once more before it gives back what it has.
    (RedisChannel.close, "self._brpop_read()", "super().close()"),
    (RedisChannel._brpop_read, "finally:", "self._in_poll = None"),
    (virtual.Transport.close_connection, "chan_list.pop()", "channel.close()"),
    (worker.on_cold_shutdown, "wait_for_soft_shutdown", "state.should_terminate = True"),
]

#: The same, where the text must be missing.
LACKS: list[tuple[Any, str]] = [
    ("celery.concurrency.eventlet", "timeout"),
    (QoS.decrement_eventually, "max_prefetch"),
    (amqp.Channel._do_revive, "consume"),
    (SQS.Channel._get_from_sqs, "visibility_timeout"),
]


def test_sources_contain_what_we_rely_on() -> None:
    missing = [(thing, text) for thing, *texts in CONTAINS for text in texts if text not in source(thing)]
    missing += [(thing, second) for thing, first, second in IN_ORDER if second not in source(thing).split(first, 1)[1]]
    missing += [(thing, text) for thing, text in LACKS if text in source(thing)]
    assert missing == []


PARAMETERS: dict[Any, set[str]] = {
    hub.Hub.fire_timers: {"max_timers"},
    KombuConsumer._basic_consume: {"nowait"},
    Producer.publish: {"mandatory"},
    AbstractChannel.send_method: {"wait"},
}


def test_classes_and_attributes_are_what_we_rely_on() -> None:
    assert [each for each, names in PARAMETERS.items() if not names <= set(inspect.signature(each).parameters)] == []
    assert isinstance(BasePool.num_processes, property)
    assert issubclass(prefork.TaskPool, BasePool)
    assert (BasePool.is_green, gevent.TaskPool.is_green, eventlet.TaskPool.is_green) == (False, True, True)
    assert KombuTimer().schedule._queue == []
    assert BasePool.Timer is Timer2
    assert Timer2(max_interval=1.0).schedule.max_interval == 1.0
    assert 0 < virtual.Transport.polling_interval < 4.0
    assert {"increment_eventually", "decrement_eventually"} <= set(dir(QoS))
    assert {"cancel_by_queue", "add_queue", "consume", "consuming_from"} <= set(dir(KombuConsumer))
    assert KombuConsumer.close is KombuConsumer.cancel
    assert isinstance(amqp.Connection.sock, property)
    assert issubclass(RecoverableConnectionError, amqp.Connection.connection_errors)
    assert issubclass(pyamqp.Channel, amqp.Channel)
    assert group_from("task-throttled") == "task"
    assert SQS.Channel._has_queue is virtual.Channel._has_queue
    assert request.send_revoked == signals.task_revoked.send
    # Since kombu 5.7 the hub is woken by call_soon; before, a worker that waits for a lease asks 4 times a second.
    assert hasattr(hub.Hub(), "_wake_pending") == ("_wake_pending" in source(hub.Hub.call_soon))
    known = LimitedSet(maxlen=10)
    known.add("one")
    known.add("two")
    assert list(known._data) == ["one", "two"]
    assert isinstance(state.revoked, LimitedSet)
    assert [Queues(create_missing=each).create_missing for each in (True, False)] == [True, False]
    assert to_rabbitmq_queue_arguments({"x-a": 1}, message_ttl=2.5) == {"x-a": 1, "x-message-ttl": 2500}
    assert to_rabbitmq_queue_arguments({"x-message-ttl": 7}, message_ttl=None) == {"x-message-ttl": 7}
    assert source(RedisQoS.ack).count("\n") == 3
    append = source(RedisQoS.append)
    assert list(inspect.signature(RedisQoS.append).parameters) == ["self", "message", "delivery_tag"]
    assert list(inspect.signature(RedisChannel._create_client).parameters) == ["self", "asynchronous"]
    assert append.count("self.pipe_or_acquire()") == append.count("execute()") == 1, "one client for a message"
    message = Message(channel=None)
    assert not message.acknowledged
    message._state = "ACK"
    assert message.acknowledged


def test_request_and_its_timer_refer_to_each_other() -> None:
    """Since Celery 5.7. What the gate clears is read for requests that are scheduled alone."""
    if hasattr(request.Request, "_eta_timer_entry"):
        assert "req._eta_timer_entry = call_at(" in source(strategy.default)
        assert "for r in tuple(scheduled_requests)" in source(consumer.Consumer.on_close)
        assert "discard_scheduled_request(request)" in source(state.task_reserved)
    else:
        assert "_timer_entry" not in source(strategy) + source(request)


def test_celery_announces_a_revoked_request_in_these_steps() -> None:
    """``end_revoked`` does the same, with the state stored in a thread."""
    assert list(inspect.signature(_announce_revoked).parameters) == [
        *("self", "reason", "terminated", "signum", "expired"),
    ]
    steps = ["task_ready(", "send_event('task-revoked'", "mark_as_revoked(", "acknowledge()", "_already_revoked = True"]
    lines = source(_announce_revoked)
    places = [lines.index(step) for step in [*steps, "send_revoked(self.task, request=self._context"]]
    assert places == sorted(places)
    assert lines.count("self.") == 9, "and nothing else"


def test_task_that_ends_in_the_main_process_has_its_context_on_the_stack() -> None:
    def body() -> None: ...

    task = Celery(set_as_current=False).task(body)
    task.request_stack.push(Context(id="this"))
    assert task.request.id == "this"
    task.request_stack.pop()
    assert task.request.id is None


def test_retry_publishes_no_permit() -> None:
    app = Celery("proj", broker="memory://", set_as_current=False)
    permit = {requests.PERMIT: {"worker": "w0@here"}}
    delivery = {"exchange": "named", "routing_key": "mail"}
    context = Context(id="1", args=(), kwargs={}, hostname="w0@here", properties=permit, delivery_info=delivery)
    assert requests.permit_in(context) == {"worker": "w0@here"}
    task = app.register_task(type("Retried", (CeleryTask,), {"name": "task", "run": lambda self: None})())
    options = task.signature_from_request(context).options
    assert options["routing_key"] == "mail"
    assert requests.PERMIT not in repr(options)


def test_packaging_which_kombus_redis_transport_imports_is_a_requirement_of_ours() -> None:
    """It is a requirement of ``kombu[redis]``, and not of ``kombu``."""
    assert "from packaging.version import Version" in source(sys.modules[RedisChannel.__module__])
    assert "packaging" in (requires("celery-ratelimit") or ())


def test_timer_shows_the_requests_that_wait_for_a_countdown() -> None:
    for timer in (KombuTimer(), Timer2()):
        entry = timer.call_after(60, print, ("arg",))
        assert [waiting[2] for waiting in timer.queue] == [entry]
        assert (entry.fun, entry.args[0], entry.canceled) == (print, "arg", False)
        entry.cancel()
        assert entry.canceled
        timer.stop()


@pytest.mark.parametrize("kind", ["server", "broker"])
def test_message_knows_its_queue_and_its_time_since_delivery(request: pytest.FixtureRequest, kind: str) -> None:
    came: list[Any] = []
    with Connection(request.getfixturevalue(kind).url) as connection:
        queue = Queue("orders", Exchange("shop", type="topic"), routing_key="order.*")
        before = time.monotonic()
        celerys = SimpleNamespace(task_consumer=None, hub=None)
        broker = Broker(celerys)
        addresses = ReturnAddresses(celerys, ReturnNames(celerys), Publisher(None, broker))
        parts = Prefetch(celerys), addresses, BulkReceive(broker)
        for_tasks = consumer_classes(KombuConsumer, lambda message: None, ReturnConsumer(celerys, *parts))[1]
        with for_tasks(connection.default_channel, [queue], on_message=came.append):
            Producer(connection.default_channel).publish({}, exchange="shop", routing_key="order.new")
            connection.drain_events(timeout=60)
        (message,) = came
        came_back = SimpleNamespace(message=message, delivery_info=message.delivery_info)
        assert 0 < requests.delivery_age(came_back) < time.monotonic() - before
        assert requests.queue_of(came_back) == "orders"
        message.ack()


def test_missing_queues_are_made_without_being_kept() -> None:
    from celery.utils.nodenames import WORKER_DIRECT_EXCHANGE, worker_direct

    app = Celery(broker="memory://", set_as_current=False)
    app.conf.task_queue_max_priority = 7
    made = app.amqp.Queues((app.amqp.queues.new_missing("later"),))["later"]
    assert made.queue_arguments == {"x-max-priority": 7}
    assert "later" not in app.amqp.queues
    assert app.amqp.queues.get("later") is None
    assert app.amqp.queues.create_missing is True
    assert isinstance(app.amqp.queues, Queues)
    assert worker_direct("one@two").exchange == WORKER_DIRECT_EXCHANGE != Exchange("one")


def test_models_of_a_pydantic_task_are_made_before_its_function_is_called() -> None:
    assert base.__name__ == "celery.app.base"

    def body(order: pydantic.RootModel[int]) -> None: ...

    models = models_of(Celery(set_as_current=False).task(body, pydantic=True))
    assert models is not None
    assert models((7,), {}) == ((pydantic.RootModel[int](7),), {})


def test_autoscaler_counts_reserved_requests_at_each_message() -> None:
    class Own(autoscale.Autoscaler):
        """A user's."""

    steps: list[Any] = []
    messages: set[Any] = set()
    pool = SimpleNamespace(num_processes=1, maintain_pool=lambda: None, grow=steps.append)
    controller: Any = SimpleNamespace(pool=pool, consumer=SimpleNamespace(on_task_message=messages))
    component = autoscale.WorkerComponent.__new__(autoscale.WorkerComponent)
    controller.autoscaler = Own(pool, 4, 1)  # type: ignore[arg-type]
    autoscaling = Autoscaling(SimpleNamespace(controller=controller, hub=object()))
    autoscaling.leave_out(lambda: 3)
    component.register_with_event_loop(controller, SimpleNamespace(call_repeatedly=lambda *call: steps.append(call)))
    assert steps == [(controller.autoscaler.keepalive, controller.autoscaler.maybe_scale)]
    (on_message,) = messages
    received = [Context(id=str(number)) for number in range(6)]
    state.reserved_requests.update(received)
    try:
        on_message(received[0])
        assert len(steps) == 1, "the gate has not seen it yet"
        assert controller.autoscaler.info()["qty"] == 3
        autoscaling.update()
        assert steps[1:] == [2], "to three processes"
    finally:
        state.reserved_requests.difference_update(received)
    Autoscaling(SimpleNamespace(controller=SimpleNamespace(autoscaler=None), hub=None)).update()


@pytest.mark.parametrize("zone", [None, "Europe/Vienna"])
def test_time_zone_of_countdowns_is_looked_up_once_per_task(zone: str | None) -> None:
    app = Celery("zones", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    task = app.task(name="any")(source)
    made = request.create_request_cls(request.Request, task, SimpleNamespace(apply_async=None), "here", None, app=app)

    def come() -> Any:
        headers = {"id": "1", "task": "any", "eta": "2030-01-01T10:00:00"}
        body = [[], {}, {}]
        message = SimpleNamespace(headers=headers, payload=body, body=body, delivery_info={}, properties={})
        message.content_type = message.content_encoding = None
        return made(message, hostname="here", app=app, task=task)

    first = come()
    of_celery = request.Request.tzlocal
    requests.note_arrived(first)
    assert (first.tzlocal, made.tzlocal) == (zone, zone)
    app.conf.timezone = "Asia/Tokyo"
    second = come()
    assert (second.tzlocal, second.eta) == (zone, first.eta)
    assert request.Request.tzlocal is of_celery, "it is of this task alone"
