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
from celery import Celery, signals
from celery.app import base
from celery.app.task import Context
from celery.app.task import Task as CeleryTask
from celery.apps import worker
from celery.concurrency import eventlet, gevent, prefork
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.base import BasePool
from celery.events import EventDispatcher
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
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.redis import MultiChannelPoller
from kombu.transport.redis import QoS as RedisQoS
from kombu.transport.redis import Transport as RedisTransport

from celery_ratelimit._celery import models_of, requests
from celery_ratelimit._celery.autoscaling import Autoscaling
from celery_ratelimit._celery.broker import Broker
from celery_ratelimit._celery.bulk_receive import BulkReceive
from celery_ratelimit._celery.consumed_queues import consumer_classes
from celery_ratelimit._celery.final_states import _announce_revoked
from celery_ratelimit._celery.prefetch import Prefetch
from celery_ratelimit._celery.publisher import Publisher
from celery_ratelimit._celery.return_addresses import ReturnAddresses, ReturnNames
from celery_ratelimit._celery.return_queues import ReturnConsumer


def source(thing: object) -> str:
    return inspect.getsource(thing)  # type: ignore[arg-type]


def text_of(module: str) -> str:
    """The source of a module that is not imported: eventlet warns if it is, and has patched nothing."""
    spec = find_spec(module)
    assert spec is not None
    return Path(str(spec.origin)).read_text()


def test_every_path_to_the_pool_reads_on_task_request() -> None:
    assert "handle = consumer.on_task_request" in source(strategy.default)
    assert "handle(req)" in source(strategy.default)
    assert "self.on_task_request(task)" in source(consumer.Consumer.apply_eta_task)
    assert "self.on_task_request(request)" in source(consumer.Consumer._limit_move_to_pool)


def test_strategies_are_built_after_the_bootsteps() -> None:
    assert "c.update_strategies()" in source(Tasks.start)
    init = source(consumer.Consumer.__init__)
    assert init.index("self.on_task_request = on_task_request") < init.index("self.blueprint.apply(")


def test_the_pool_tells_the_end_of_a_task_by_two_callbacks() -> None:
    made = source(request.create_request_cls)
    assert "apply_async = pool.apply_async" in made
    assert "callback=self.on_success" in made
    assert "error_callback=self.on_failure" in made


def test_it_tells_the_beginning_and_a_time_limit_by_two_more() -> None:
    made = source(request.create_request_cls)
    assert "accept_callback=self.on_accepted" in made
    assert "timeout_callback=self.on_timeout" in made
    assert "return timeout_callback(False, timeout)" in text_of("celery.concurrency.gevent")
    assert "timeout" not in text_of("celery.concurrency.eventlet")


def test_a_request_that_was_revoked_leaves_the_pool_without_a_callback() -> None:
    made = source(request.create_request_cls)
    assert made.index("raise TaskRevokedError(task_id)") < made.index("= apply_async(")
    assert "except TaskRevokedError:" in source(WorkController._process_task)


def test_what_runs_when_the_connection_is_lost() -> None:
    closed = source(consumer.Consumer.on_close)
    assert closed.index("reserved_requests.clear()") < closed.index("self.pool.flush()")
    assert "_accepted" in source(AsynPool.flush)
    assert "self._cache" in source(AsynPool.flush)
    assert "_busy_workers" in source(AsynPool.flush)
    assert "busy_workers = self._busy_workers" in source(AsynPool._create_write_handlers)
    assert "_scheduled_for" in source(AsynPool.on_job_process_down)
    assert "inqW_fd" in source(AsynPool.on_job_ready)
    assert "job._write_to = proc" in source(AsynPool._create_write_handlers)


def test_a_cancelled_timer_stays_until_its_time() -> None:
    assert "tref.cancel()" in source(KombuTimer.cancel)
    assert "push(self._queue, scheduled(eta, priority, entry))" in source(KombuTimer._enter)
    assert KombuTimer().schedule._queue == []


def test_what_a_task_is_told_when_it_starts() -> None:
    assert "'delivery_info': self._delivery_info" in source(request.Request.__init__)
    assert "self.request_dict" in source(request.create_request_cls)
    for name in ("request_dict", "delivery_info"):
        assert f"return self._{name}" in source(getattr(request.Request, name).fget)


def test_a_pool_says_how_many_run_at_once_and_prefork_is_of_one_class() -> None:
    assert isinstance(BasePool.num_processes, property)
    assert issubclass(prefork.TaskPool, BasePool)
    for greenlets in (gevent.TaskPool, eventlet.TaskPool):
        assert greenlets.is_green
        assert "self._pool = self.Pool(self.limit)" in source(greenlets.on_start)
        for change in (greenlets.grow, greenlets.shrink):
            assert "self._pool.size" in source(change)


def test_gossip_knows_the_workers_that_are_alive() -> None:
    made = source(Gossip.__init__)
    assert "self.enabled = not without_gossip and" in made
    assert made.index("if self.enabled:") < made.index("self.state = c.app.events.State(")
    assert "if w.alive" in source(State.alive_workers)


def test_reserved_requests_are_those_that_have_not_ended() -> None:
    assert "task_reserved(req)" in source(strategy.default)
    assert "discard" in source(state.task_ready) or "discard" in source(state)
    probe = type("Request", (), {"id": "x", "name": "n"})()
    state.task_reserved(probe)
    assert probe in state.reserved_requests
    state.task_ready(probe)
    assert probe not in state.reserved_requests


def test_the_hub_fires_a_bounded_number_of_timers_a_turn() -> None:
    assert "max_timers" in inspect.signature(hub.Hub.fire_timers).parameters
    assert "fire_timers = self.fire_timers" in source(hub.Hub.create_loop)


def test_a_timer_shows_who_waits_for_a_countdown() -> None:
    assert "apply_eta_task, (req,), priority=6)" in source(strategy.default)
    for timer in (KombuTimer(), Timer2()):
        entry = timer.call_after(60, print, ("arg",))
        assert [waiting[2] for waiting in timer.queue] == [entry]
        assert (entry.fun, entry.args[0], entry.canceled) == (print, "arg", False)
        entry.cancel()
        assert entry.canceled
        timer.stop()


def test_the_hub_is_woken_where_it_has_what_is_looked_for() -> None:
    """Since kombu 5.7; before, a worker that waits for a place asks four times a second."""
    assert hasattr(hub.Hub(), "_wake_pending") == ("_wake_pending" in source(hub.Hub.call_soon))


def test_a_worker_without_an_event_loop_has_timers_in_a_thread() -> None:
    # How tests/apps/loopless.py has none.
    assert "not self.app.IS_WINDOWS" in source(WorkController.should_use_eventloop)
    assert BasePool.Timer is Timer2
    assert "min(eta - now, max_interval)" in source(KombuTimer.__iter__)
    timer = Timer2(max_interval=1.0)
    assert timer.schedule.max_interval == 1.0


def test_a_worker_without_an_event_loop_hears_of_a_call_when_it_has_read() -> None:
    assert "self._pending_operations.append(p)" in source(consumer.Consumer.call_soon)
    loop = source(loops.synloop)
    assert loop.index("perform_pending_operations()\n") < loop.index("drain_events(timeout=2.0)")
    assert "perform_pending_operations = obj.perform_pending_operations" in loop
    assert "if blueprint.state == RUN:" in loop[loop.index("except OSError:") :]
    assert "drain_events(self.connection" in source(Connection.drain_events)
    assert "_ensure_connection(" in source(Connection.connection.fget)


def test_a_broker_that_has_nothing_is_asked_again_after_a_while() -> None:
    """``Broker.poll_delay``."""
    assert "self.loop = loops.asynloop if hub else loops.synloop" in source(consumer.Consumer.__init__)
    assert "sleep(polling_interval)" in source(virtual.Transport.drain_events)
    assert 0 < virtual.Transport.polling_interval < 4.0


def test_a_worker_has_no_connection_while_it_connects() -> None:
    assert "c.connection = c.connect()" in text_of("celery.worker.consumer.connection")
    lost = source(consumer.Consumer.on_connection_error_after_connected)
    assert "connection, self.connection = self.connection, None" in lost
    assert "self.connection_errors = self.conninfo.connection_errors" in source(consumer.Consumer.__init__)


def test_the_prefetch_has_a_most_where_tasks_with_an_eta_have() -> None:
    assert "eta_task_limit = c.app.conf.worker_eta_task_limit" in source(Tasks.start)


def test_a_pool_of_greenlets_says_so_and_its_timer_shows_who_waits() -> None:
    assert not BasePool.is_green
    for name in ("gevent", "eventlet"):
        lines = text_of(f"celery.concurrency.{name}").splitlines()
        assert {"    is_green = True", "        g.entry = entry", "        g.eta = eta"} <= set(lines)


def test_a_request_and_its_timer_hold_each_other() -> None:
    """Since Celery 5.7. What the gate clears is read for requests that are scheduled alone."""
    if hasattr(request.Request, "_eta_timer_entry"):
        assert "req._eta_timer_entry = call_at(" in source(strategy.default)
        assert "for r in tuple(scheduled_requests)" in source(consumer.Consumer.on_close)
        assert "discard_scheduled_request(request)" in source(state.task_reserved)
    else:
        assert "_timer_entry" not in source(strategy) + source(request)


def test_basic_consume_passes_a_callback_to_the_queue() -> None:
    consume = source(KombuConsumer._basic_consume)
    assert "queue.consume(tag, self._receive_callback" in consume
    assert "nowait" in inspect.signature(KombuConsumer._basic_consume).parameters
    begun = source(amqp.Channel.basic_consume)
    assert begun.index("wait=None if nowait else") < begun.index("self.callbacks[consumer_tag] = callback")


def test_disabled_prefetching_counts_reserved_requests() -> None:
    """Since Celery 5.5."""
    started = source(Tasks.start)
    assert "if len(state.reserved_requests) >= limit:" in started
    assert 'limit = getattr(c.controller, "max_concurrency", None) or c.pool.num_processes' in started
    assert "channel_qos.can_consume = MethodType(can_consume, channel_qos)" in started


def test_the_prefetch_is_widened_for_what_waits() -> None:
    assert "consumer.qos.increment_eventually()" in source(strategy.default)
    assert "self.qos.decrement_eventually()" in source(consumer.Consumer.apply_eta_task)
    assert {"increment_eventually", "decrement_eventually"} <= set(dir(QoS))


def test_what_celery_does_to_end_a_revoked_request() -> None:
    """``end_revoked`` does the same, with the state stored in a thread."""
    parameters = inspect.signature(_announce_revoked).parameters
    assert list(parameters) == ["self", "reason", "terminated", "signum", "expired"]
    steps = ["task_ready(", "send_event('task-revoked'", "mark_as_revoked(", "acknowledge()", "_already_revoked = True"]
    lines = source(_announce_revoked)
    places = [lines.index(step) for step in [*steps, "send_revoked(self.task, request=self._context"]]
    assert places == sorted(places)
    assert lines.count("self.") == 9, "and nothing else"
    assert request.send_revoked == signals.task_revoked.send
    assert "self._announce_revoked(" in source(request.Request.revoked)
    assert "return self.app.backend" in source(CeleryTask.backend.fget)
    assert "self._local.backend = backend" in source(Celery._backend.fset)


def test_a_message_on_redis_is_acknowledged_by_two_removals() -> None:
    """``BulkAcknowledge`` does for many messages what this does for one."""
    assert source(RedisQoS.ack).count("\n") == 3
    assert "self._remove_from_indices(delivery_tag).execute()" in source(RedisQoS.ack)
    assert "super().ack(delivery_tag)" in source(RedisQoS.ack)
    removal = source(RedisQoS._remove_from_indices)
    assert "pipe.zrem(self.unacked_index_key, delivery_tag)" in removal
    assert ".hdel(self.unacked_key, delivery_tag)" in removal
    assert "self._quick_ack(delivery_tag)" in source(virtual.QoS.ack)
    assert "self._quick_ack = self._dirty.add" in source(virtual.QoS.__init__)


def test_a_message_on_redis_that_comes_is_noted_through_the_clients_of_its_channel() -> None:
    append = source(RedisQoS.append)
    assert append.count("self.pipe_or_acquire()") == append.count("execute()") == 1
    assert list(inspect.signature(RedisQoS.append).parameters) == ["self", "message", "delivery_tag"]
    assert "with self.channel.conn_or_acquire(client) as client" in source(RedisQoS.pipe_or_acquire)


def test_messages_on_redis_are_taken_from_the_right_end_of_a_list_and_noted_with_where_they_came_from() -> None:
    """``lua/broker/fetch_batch.lua`` and ``BulkReceive`` do for several messages what these do for one."""
    put = source(RedisChannel._put)
    assert "pri = self._get_message_priority(message, reverse=False)" in put
    assert "self._q_for_pri(queue, pri)" in put
    assert "lpush" in put
    append = source(RedisQoS.append)
    assert "EX, RK = delivery['exchange'], delivery['routing_key']" in append
    assert "zadd_args = [{delivery_tag: time()}]" in append
    assert "dumps([message._raw, EX, RK])" in append
    assert "super().append(message, delivery_tag)" in append
    assert "self.connection._deliver(loads(bytes_to_str(item)), dest)" in source(RedisChannel._brpop_read)
    assert "self.handlers = {'BRPOP': self._brpop_read" in source(RedisChannel.__init__)
    assert "chan.handlers[type]()" in source(MultiChannelPoller.on_readable)


def test_a_channel_on_redis_makes_a_client_for_each_thing_that_it_says() -> None:
    assert "yield self._create_client()" in source(RedisChannel.conn_or_acquire)
    assert list(inspect.signature(RedisChannel._create_client).parameters) == ["self", "asynchronous"]
    assert "'connection_pool': self.pool" in source(RedisChannel._create_client)
    assert "self._pool = self._get_pool()" in source(RedisChannel.pool.fget)  # type: ignore[attr-defined]


def test_the_size_of_a_queue_on_redis_is_that_of_its_lists() -> None:
    size = source(RedisChannel._size)
    assert "for pri in self.priority_steps:" in size
    assert "pipe = pipe.llen(self._q_for_pri(queue, pri))" in size


def test_an_acknowledged_message_says_so() -> None:
    message = Message(channel=None)
    assert not message.acknowledged
    message._state = "ACK"
    assert message.acknowledged


def test_an_amqp_message_keeps_the_dict_that_the_queue_is_noted_in() -> None:
    assert "delivery_info=msg.delivery_info" in source(pyamqp.Message.__init__)


@pytest.mark.parametrize("kind", ["server", "broker"])
def test_a_message_tells_its_queue_and_how_long_it_has_been_here(request: pytest.FixtureRequest, kind: str) -> None:
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
            connection.drain_events(timeout=5)
        (message,) = came
        came_back = SimpleNamespace(message=message, delivery_info=message.delivery_info)
        assert 0 < requests.delivery_age(came_back) < time.monotonic() - before
        assert requests.queue_of(came_back) == "orders"
        message.ack()


def test_a_consumer_stops_and_goes_on_with_one_queue() -> None:
    assert {"cancel_by_queue", "add_queue", "consume", "consuming_from"} <= set(dir(KombuConsumer))
    assert "in_protected_read" in source(RedisChannel.basic_cancel)


def test_revoked_ids_are_the_keys_of_a_dict() -> None:
    known = LimitedSet(maxlen=10)
    known.add("one")
    known.add("two")
    assert list(known._data) == ["one", "two"]
    assert isinstance(state.revoked, LimitedSet)


def test_the_worker_has_one_consumer_for_its_tasks_when_it_starts_to_consume() -> None:
    from celery.app.amqp import AMQP

    assert "return self.Consumer(" in source(AMQP.TaskConsumer)
    assert "c.task_consumer = c.app.amqp.TaskConsumer(" in source(Tasks.start)
    for loop in (loops.asynloop, loops.synloop):
        text = source(loop)
        assert text.index("consumer.on_message = on_task_received") < text.index("consumer.consume()")
    assert "c.task_consumer.cancel" in source(Tasks.stop)
    assert "self.task_consumer.cancel_by_queue(" in source(consumer.Consumer.cancel_task_queue)
    assert "self._basic_consume(" in source(KombuConsumer._consume_queues)
    assert KombuConsumer.close is KombuConsumer.cancel  # one function of two names


def test_a_channel_counts_by_itself() -> None:
    poll = source(MultiChannelPoller.on_poll_start)
    assert "for channel in self._channels" in poll
    assert "channel.qos.can_consume()" in poll
    assert "self.qos.prefetch_count = prefetch_count" in source(virtual.Channel.basic_qos)
    assert "self._queue_cycle" in source(RedisChannel._brpop_start)
    assert "self._qos = self.QoS(self)" in source(virtual.Channel.qos.fget)


def test_what_was_asked_for_is_read_and_nothing_else_is_asked_for() -> None:
    """``ReturnConsumer`` leaves return queues alone while the answer to what was asked before may be on its way; a
    worker that is late asks for nothing new, ``pause_while``.
    """
    assert "channel._brpop_start()" in source(MultiChannelPoller._register_BRPOP)
    assert "self._register_BRPOP(channel)" in source(MultiChannelPoller.on_poll_start)
    assert "loop.on_tick.add(on_poll_start)" in source(RedisTransport.register_with_event_loop)  # again in each turn
    assert "chan.qos.can_consume()" in source(MultiChannelPoller.on_readable)
    assert "self.qos.can_consume()" in source(virtual.Channel.drain_events)


def test_the_prefetch_is_asked_for_at_each_change_and_its_increments_alone_are_bounded() -> None:
    assert "max_prefetch" in source(QoS.increment_eventually)
    assert "max_prefetch" not in source(QoS.decrement_eventually)
    assert "def set_prefetch_count" in source(Tasks.start)
    for owner in (strategy.default, consumer.Consumer._limit_post_eta, consumer.Consumer.apply_eta_task):
        assert ".qos." in source(owner)
    for loop in (loops.asynloop, loops.synloop):
        assert "qos.prev != qos.value" in source(loop)


def test_celerys_own_rate_limit_has_two_ways_in() -> None:
    built = source(strategy.default)
    assert "limit_task = consumer._limit_task" in built
    assert "limit_post_eta = consumer._limit_post_eta" in built
    assert "return limit_task(req, bucket, 1)" in built
    assert "eta, limit_post_eta, (req, bucket, 1)" in built
    moved = source(consumer.Consumer._limit_move_to_pool)
    assert moved.index("task_reserved(request)") < moved.index("self.on_task_request(request)")
    assert "self.qos.decrement_eventually()" in source(consumer.Consumer._limit_post_eta)


def test_a_channel_that_the_broker_closes_is_opened_again_without_its_consumers() -> None:
    """The reason for ``end_connection_with``, and where it steps in."""
    closed = source(amqp.Channel._on_close)
    assert "self._do_revive()" in closed
    assert "raise error_for_code(" in closed
    assert "consume" not in source(amqp.Channel._do_revive)
    assert "spec.Channel.Close: self._on_close" in source(amqp.Channel._setup_listeners)
    assert "spec.Basic.Cancel: self._on_basic_cancel" in source(amqp.Channel._setup_listeners)
    assert "raise ConsumerCancelled(" in source(amqp.Channel._on_basic_cancel)
    assert "listeners = [self._callbacks[method_sig]]" in source(AbstractChannel.dispatch_method)
    assert isinstance(amqp.Connection.sock, property)
    assert issubclass(RecoverableConnectionError, amqp.Connection.connection_errors)
    assert issubclass(pyamqp.Channel, amqp.Channel)


def test_a_redis_channel_reads_once_more_before_it_gives_back_what_it_has() -> None:
    close = source(RedisChannel.close)
    assert close.index("self._brpop_read()") < close.index("super().close()")
    read = source(RedisChannel._brpop_read)
    assert "self._in_poll = None" in read[read.index("finally:") :]
    assert "restore_unacked_once()" in source(virtual.Channel.close)
    closed = source(virtual.Transport.close_connection)
    assert closed.index("chan_list.pop()") < closed.index("channel.close()")
    assert "for channel in self.channels:" in source(virtual.Transport._reject_inbound_message)


def test_what_the_publisher_says_to_its_channel() -> None:
    assert "wait=None" in str(inspect.signature(AbstractChannel.send_method))
    assert "already closed" in source(AbstractChannel.wait)
    assert "self.connection = self.connection, None" in source(amqp.Channel.collect)
    assert "self.events.get('basic_return')" in source(amqp.Channel._on_basic_return)
    assert "spec.Basic.Qos, argsig, (prefetch_size, prefetch_count, a_global)," in source(amqp.Channel.basic_qos)
    assert "argsig='lBb'" in source(amqp.Channel.basic_qos)
    assert "mandatory" in inspect.signature(Producer.publish).parameters


def test_queues_are_made_without_being_kept() -> None:
    from celery.app.amqp import Queues
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


def test_a_task_that_ends_in_the_main_process_has_its_context_on_the_stack() -> None:
    def body() -> None: ...

    task = Celery(set_as_current=False).task(body)
    task.request_stack.push(Context(id="this"))
    assert task.request.id == "this"
    task.request_stack.pop()
    assert task.request.id is None


def test_a_task_with_pydantic_makes_models_in_a_function_that_calls_another_one_by_name() -> None:
    wrapper = source(base.pydantic_wrapper)
    assert "returned_value = task_fun(*bound_args.args, **bound_args.kwargs)" in wrapper
    assert "isinstance(returned_value, BaseModel)" in wrapper
    assert base.__name__ == "celery.app.base"
    assert "'__wrapped__': run" in source(Celery._task_from_fun)

    def body(order: pydantic.RootModel[int]) -> None: ...

    models = models_of(Celery(set_as_current=False).task(body, pydantic=True))
    assert models is not None
    assert models((7,), {}) == ((pydantic.RootModel[int](7),), {})


def test_a_soft_shutdown_sleeps_and_the_pipe_of_a_process_says_that_its_task_has_ended() -> None:
    assert "sleep(app.conf.worker_soft_shutdown_timeout)" in source(WorkController.wait_for_soft_shutdown)
    handler = source(worker.on_cold_shutdown)
    assert "worker.wait_for_soft_shutdown()" in handler
    assert handler.index("wait_for_soft_shutdown") < handler.index("state.should_terminate = True")
    assert "obj.outqR_fd = self.outq._reader.fileno()" in source(billiard.pool.Worker.contribute_to_object)


def test_an_autoscaler_wants_a_process_for_each_request_and_looks_at_each_message() -> None:
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
    assert "len(state.reserved_requests)" in source(autoscale.Autoscaler.qty.fget)
    assert "self.maybe_scale()" in source(autoscale.Autoscaler.body)
    assert "self.qty" in source(autoscale.Autoscaler._maybe_scale)
    Autoscaling(SimpleNamespace(controller=SimpleNamespace(autoscaler=None), hub=None)).update()


def test_a_request_is_rejected_by_its_message() -> None:
    assert "self._on_reject(logger, self._connection_errors, requeue)" in source(request.Request.reject)


def test_what_a_queue_is_declared_with() -> None:
    from celery.app.amqp import Queues
    from kombu.transport.base import to_rabbitmq_queue_arguments

    assert [Queues(create_missing=each).create_missing for each in (True, False)] == [True, False]
    assert to_rabbitmq_queue_arguments({"x-a": 1}, message_ttl=2.5) == {"x-a": 1, "x-message-ttl": 2500}
    assert to_rabbitmq_queue_arguments({"x-message-ttl": 7}, message_ttl=None) == {"x-message-ttl": 7}


def test_a_banner_is_put_together_when_the_consumer_has_been_made() -> None:
    assert "self.extra_info() or ''" in source(worker.Worker.emit_banner)
    assert "self.emit_banner()" in source(worker.Worker.on_start)


def test_a_field_of_an_event_is_the_state_where_celery_merges() -> None:
    """``show_revoked_state``: the other way round it would be lost."""
    state, times = State(), {"timestamp": 1.0, "local_received": 1.0, "clock": 1}

    def shown(kind: str, **fields: Any) -> str:
        state.event({"type": f"task-{kind}", "uuid": "t", "hostname": "w", **times, **fields})
        return str(state.tasks["t"].state)

    assert [shown("received"), shown("throttled")] == ["RECEIVED", "THROTTLED"]
    assert shown("revoked") == "THROTTLED"
    assert shown("revoked", state="REVOKED") == "REVOKED"
    assert shown("received") == "REVOKED"


def test_each_connection_has_a_dispatcher_that_requests_send_by() -> None:
    from celery.worker.consumer import events

    assert "dis = c.event_dispatcher = c.app.events.Dispatcher(" in source(events.Events.start)
    assert "self._eventer.send(type, uuid=self.id, **fields)" in source(request.Request.send_event)
    assert "groups, group = self.groups, group_from(type)" in source(EventDispatcher.send)
    assert group_from("task-throttled") == "task"


@pytest.mark.parametrize("zone", [None, "Europe/Vienna"])
def test_the_time_zone_of_countdowns_is_looked_up_once_for_a_task(zone: str | None) -> None:
    app = Celery("zones", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    task = app.task(name="any")(text_of)
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


def test_tasks_are_counted_by_what_may_not_be_hashable() -> None:
    """A shadow that is a list; ``note_arrived`` makes it a text."""
    assert "{request.name: 1}" in source(state.task_accepted)


def test_what_kombus_redis_transport_imports_is_installed_with_us() -> None:
    """It is a requirement of ``kombu[redis]``, and not of ``kombu``."""
    assert "from packaging.version import Version" in source(sys.modules[RedisChannel.__module__])
    assert "packaging" in (requires("celery-ratelimit") or ())


def test_sqs_creates_a_queue_that_is_declared_passively_and_goes_by_its_own_visibility_timeout() -> None:
    channel = SQS.Channel
    assert channel._has_queue is virtual.Channel._has_queue
    assert "_resolve_queue_url" in source(channel._new_queue)
    assert "'VisibilityTimeout': str(self.visibility_timeout)" in source(channel._new_queue)
    assert "visibility_timeout" not in source(channel._get_from_sqs)
    assert "kwargs['MessageDeduplicationId'] = str(uuid.uuid4())" in source(channel._put)
