"""Settings: their sources and defaults, and errors that say what to change."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest
from celery import Celery

from celery_ratelimit import ConfigurationError, Limit
from celery_ratelimit.app.app_store import check_store, limiter_of
from celery_ratelimit.app.settings import has_limits, settings_of
from tests.unit.apps import make_app

URL = "redis://limits:6379/3"
SECRET = "hunter2"


def error_of(app: Celery) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(app)
    return str(caught.value)


# -- Where settings come from ------------------------------------------------------------------------------------------


def test_a_configuration_module() -> None:
    module = types.ModuleType("celeryconfig")
    module.broker_url = "memory://"  # type: ignore[attr-defined]
    module.ratelimit_url = URL  # type: ignore[attr-defined]
    module.ratelimit_queues = {"emails": "14/s"}  # type: ignore[attr-defined]
    app = Celery("test", set_as_current=False)
    app.config_from_object(module)
    assert settings_of(app).url == URL
    assert settings_of(app).queues == {"emails": (Limit("14/s", name="emails"),)}


def test_djangos_settings_under_a_namespace() -> None:
    class DjangoSettings:
        DEBUG = True
        RATELIMIT_ENABLE = True  # django-ratelimit's: none of ours, as it is outside the namespace
        CELERY_BROKER_URL = "memory://"
        CELERY_RATELIMIT_URL = URL
        CELERY_RATELIMIT_QUOTAS = {"openai": {"rate": "200000/m", "burst": 20_000}}  # noqa: RUF012
        CELERY_RATELIMIT_ON_STORE_ERROR = "raise"

    app = Celery("test", set_as_current=False)
    app.config_from_object(DjangoSettings(), namespace="CELERY")
    settings = settings_of(app)
    assert (settings.url, settings.on_store_error) == (URL, "raise")
    assert settings.quotas == {"openai": Limit("200000/m", burst=20_000, name="openai")}


@pytest.mark.parametrize("name", ["CELERY_RATELIMIT_QOUTAS", "ratelimit_qoutas"])
def test_a_misspelt_setting_under_a_namespace_is_named_as_it_was_written(name: str) -> None:
    django_settings = types.SimpleNamespace(CELERY_BROKER_URL=URL, **{name: {"a": "1/s"}})
    app = Celery("test", set_as_current=False)
    app.config_from_object(django_settings, namespace="CELERY")
    if name.islower():
        setattr(app.conf, name, {"a": "1/s"})
    text = error_of(app)
    assert f"'{name}'" in text
    assert "did you mean 'ratelimit_quotas'?" in text


def test_settings_are_read_once_per_app() -> None:
    app, other = make_app(URL), make_app("redis://other")
    assert settings_of(app) is settings_of(app)
    assert limiter_of(app) is limiter_of(app)
    assert limiter_of(app) is not limiter_of(other)
    assert settings_of(other).url == "redis://other"


# -- Defaults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker", "backend", "url"),
    [
        (URL, None, URL),
        (URL, "redis://results", URL),
        ("amqp://guest@host//", URL, URL),
        ("memory://", "rediss://results", "rediss://results"),
        ("redis://one;redis://two", None, "redis://one"),
        (["redis://one", "redis://two"], None, "redis://one"),
        ("redis+socket:///run/redis.sock", None, "redis+socket:///run/redis.sock"),
        ("valkey://host", None, "valkey://host"),
    ],
)
def test_the_store_is_the_broker_if_it_is_redis_else_the_result_backend(broker: Any, backend: Any, url: str) -> None:
    assert settings_of(make_app(broker, backend)).url == url


@pytest.mark.parametrize(
    ("broker", "backend"),
    [
        ("memory://", None),
        ("amqp://guest:secret@host//", "rpc://"),
        ("sentinel://host:26379", "cache+memory://"),
        ("sqs://", "db+sqlite:///results.db"),
        (None, None),
    ],
)
def test_missing_store_error_names_the_setting(broker: str | None, backend: str | None) -> None:
    text = error_of(make_app(broker, backend))
    assert "set ratelimit_url" in text
    assert "redis://localhost:6379/0" in text
    assert "secret" not in text


def test_defaults() -> None:
    settings = settings_of(make_app(URL))
    assert (settings.quotas, settings.tasks, settings.queues) == ({}, (), {})
    assert (settings.on_store_error, settings.prefix) == ("defer", "ratelimit")
    assert (settings.fleet, settings.orphans_after, settings.max_upstream_throttles) == ("", 60.0, 20)
    assert (settings.missing_key, settings.observers, settings.counts) == ("error", (), True)
    assert settings.return_queue_for("emails") == "emails.throttled"


def test_fleet_is_named_by_letters_digits_and_signs() -> None:
    assert settings_of(make_app(URL, ratelimit_fleet="Blue_1.a-b")).fleet == "Blue_1.a-b"


def test_task_may_never_be_put_back() -> None:
    assert settings_of(make_app(URL, ratelimit_max_upstream_throttles=0)).max_upstream_throttles == 0


@pytest.mark.parametrize(
    ("conf", "has"),
    [
        ({}, False),
        ({"RATELIMIT_QUOTAS": {"a": "1/s"}}, True),
        ({"ratelimit_qotas": {}}, True),
        ({"RATELIMIT_X": 1}, False),
    ],
)
def test_app_has_limits_if_a_setting_may_be_meant_for_them(conf: dict[str, Any], has: bool) -> None:
    assert has_limits(make_app(URL, **conf)) is has


def test_credentials_are_not_shown() -> None:
    app = make_app(URL, ratelimit_url=f"redis://:{SECRET}@limits/0", ratelimit_store_options={"password": SECRET})
    assert SECRET not in repr(settings_of(app))


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_url": "sqs://"},
        {"broker_url": "SQS://key:secret@"},
        {"broker_url": ["sqs://a:b@", "sqs://c:d@"]},
        {"broker_url": "sqs://a:b@;sqs://c:d@"},
        {"broker_transport": "SQS"},
        {"broker_transport": "sqs", "broker_url": "localhost//"},
        {"broker_transport": "kombu.transport.SQS:Transport"},
        {"broker_url": "redis://localhost/0", "broker_read_url": "sqs://"},
    ],
)
def test_amazon_sqs_is_known_however_it_is_named(conf: dict[str, Any]) -> None:
    app = Celery("test", set_as_current=False)
    app.conf.update(conf, ratelimit_url=URL)
    assert settings_of(app).return_queue_for("emails") == "emails-throttled"


def test_return_queue_on_amazon_sqs_is_as_it_was_set() -> None:
    app = make_app("sqs://", ratelimit_url=URL, ratelimit_return_queue="{queue}.back")
    assert settings_of(app).return_queue_for("emails") == "emails.back"


@pytest.mark.parametrize("template", ["{queue}.throttled", "back-{queue}", "{queue}", "a{queue}a"])
def test_a_return_queue_is_its_own(template: str) -> None:
    settings = settings_of(make_app(URL, ratelimit_return_queue=template))
    for queue in ("emails", ".throttled", "back-", "a"):
        back = settings.return_queue_for(queue)
        assert back == template.replace("{queue}", queue)
        assert settings.return_queue_for(back) == back


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        ({}, "ratelimit"),
        (None, "ratelimit"),
        ({"global_keyprefix": ""}, "ratelimit"),
        ({"global_keyprefix": "one:"}, "one:ratelimit"),
        ({"global_keyprefix": "{one} 1%:"}, "%7Bone%7D%201%25:ratelimit"),
    ],
)
def test_apps_that_share_a_broker_by_prefixes_have_limits_of_their_own(options: Any, prefix: str) -> None:
    assert settings_of(make_app(URL, broker_transport_options=options)).prefix == prefix
    chosen = settings_of(make_app(URL, broker_transport_options=options, ratelimit_prefix="ratelimit"))
    assert chosen.prefix == "ratelimit"


# -- What cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"ratelimit_quota": {}}, r"'ratelimit_quota'.*did you mean 'ratelimit_quotas'\?"),
        ({"ratelimit_urls": URL}, r"'ratelimit_urls'.*did you mean 'ratelimit_url'\?"),
        ({"ratelimit_xyzzy": 1}, "no setting 'ratelimit_xyzzy'.*ratelimit_url"),
        ({"RATELIMIT_URLS": URL}, r"'RATELIMIT_URLS'.*did you mean 'ratelimit_url'\?"),
        ({"ratelimit_on_store_error": "ignore"}, "'ignore'.*'defer', 'allow', 'local', 'raise'"),
        ({"ratelimit_on_store_error": ["defer"]}, r"ratelimit_on_store_error=\['defer'\]"),
        ({"ratelimit_quotas": "100/s"}, "ratelimit_quotas='100/s'.*a mapping"),
        ({"ratelimit_quotas": None}, "ratelimit_quotas=None.*a mapping"),
        ({"ratelimit_tasks": ["stripe"]}, r"ratelimit_tasks=\['stripe'\].*a mapping"),
        ({"ratelimit_queues": 5}, "ratelimit_queues=5.*a mapping"),
        *[
            ({"ratelimit_quotas": {"a": quota}}, rf"ratelimit_quotas\['a'\]: .*{message}")
            for quota, message in [
                ("100/ms", "cannot read the rate '100/ms'"),
                (5, "5 is not a limit"),
                (["1/s", "9/m"], r"\['1/s', '9/m'\]"),
                ([], r"\[\]"),
                ({"rates": "1/s"}, "rates"),
                ({"burst": 5}, "rate"),
                ({"rate": "1/s", "burst": 0}, "burst=0"),
                ({"rate": "1/s", "bursts": 5}, "bursts"),
                ({"rate": ["1/s"]}, r"\['1/s'\]"),
                ({"limit": 3, "burst": 5}, "burst=5 is for a rate, and limit= makes a Concurrency"),
                ({"limit": 3, "algorithm": "sliding_log"}, "algorithm='sliding_log' is for a rate, and limit= makes"),
                ({"limit": 3, "rate": "1/s"}, "rate='1/s' is for a rate, and limit= makes a Concurrency"),
                ({"rate": "1/s", "lease": 5}, "lease=5 is for a Concurrency, and without limit= this is a rate"),
            ]
        ],
        ({"ratelimit_quotas": {5: "1/s"}}, "5"),
        ({"ratelimit_quotas": {"": "1/s"}}, "name=''"),
        ({"ratelimit_tasks": {"a.*": "strpe"}}, r"ratelimit_tasks\['a.\*'\].*no quota 'strpe'.*none is defined"),
        (
            {"ratelimit_quotas": {"stripe": "1/s", "x": "2/s"}, "ratelimit_tasks": {"a.*": ["strpe"]}},
            r"ratelimit_tasks\['a.\*'\].*no quota 'strpe'.*stripe, x.*did you mean 'stripe'\?",
        ),
        (
            {"ratelimit_quotas": {"s3_reads": "1/s"}, "ratelimit_queues": {"q": "s3_read"}},
            r"ratelimit_queues\['q'\].*no quota 's3_read'.*did you mean 's3_reads'",
        ),
        *[
            ({kind: {"a": []}}, rf"{kind}\['a'\]: \[\] names no limit")
            for kind in ("ratelimit_tasks", "ratelimit_queues")
        ],
        ({"ratelimit_missing_key": "skip"}, "ratelimit_missing_key='skip' is not one of 'error', 'exempt', 'shared'"),
        *[({"ratelimit_fleet": name}, f"ratelimit_fleet={name!r} must be a name") for name in ("", "a b", 5)],
        ({"ratelimit_counts": 1}, "ratelimit_counts=1 must be True or False"),
        *[
            ({"ratelimit_max_upstream_throttles": most}, f"throttles={most!r} must be a whole number, 0 or more")
            for most in (-1, 1.5, True)
        ],
        ({"ratelimit_queues": {"q": "14"}}, r"ratelimit_queues\['q'\].*'14'"),
        ({"ratelimit_queues": {"q": [["1/s"]]}}, r"ratelimit_queues\['q'\].*\['1/s'\] is not a limit"),
        *[({"ratelimit_prefix": prefix}, f"ratelimit_prefix={prefix!r}") for prefix in ("", "a{b}", 5)],
        *[
            ({"ratelimit_return_queue": name}, f"ratelimit_return_queue='{name}'.*{{queue}}")
            for name in ("later", "{queue}.{x}")
        ],
        *[
            ({"ratelimit_orphans_after": after}, f"ratelimit_orphans_after={after!r}.*a number of seconds")
            for after in (-1, "60", True, 1e9)
        ],
        *[
            ({"ratelimit_url": url}, "ratelimit_url=.*'redis://host:6379/0'")
            for url in ("http://host", "localhost:6379", "", "amqp://guest@host", 5, ["redis://host"], b"x")
        ],
        ({"ratelimit_observers": "proj.observer"}, "ratelimit_observers='proj.observer'.*must be a list"),
    ],
)
def test_invalid_setting_error_names_it_and_the_remedy(conf: dict[str, Any], message: str) -> None:
    assert re.search(message, text := error_of(make_app(URL, **conf))), text


@pytest.mark.parametrize("choice", ["defer", "allow", "local", "raise"])
def test_unreachable_store_is_an_error_or_an_outage_as_on_store_error_says(choice: str) -> None:
    app = make_app("memory://", ratelimit_url=f"redis://:{SECRET}@127.0.0.1:1/0", ratelimit_on_store_error=choice)
    if choice == "raise":
        with pytest.raises(ConfigurationError) as caught:
            check_store(app)
        text = str(caught.value)
        assert "set ratelimit_url" in text
    else:
        text = str(check_store(app))
    assert re.search(r"@127.0.0.1:1/0.*no Redis or Valkey answers", text)
    assert SECRET not in text


def test_the_limiter_has_the_apps_quotas_and_prefix() -> None:
    limiter = limiter_of(make_app(URL, ratelimit_quotas={"a": "1/s"}, ratelimit_prefix="mine"))
    assert limiter.quotas == {"a": Limit("1/s", name="a")}
    assert limiter.prefix == "mine"
