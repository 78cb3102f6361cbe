"""Headers of real upstreams, as their documentation or a recorded response shows them, and what they say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

__all__ = ["RESPONSES", "Recorded"]


@dataclass(frozen=True)
class Recorded:
    """One response.

    Attributes:
        name: the upstream, and the case.
        source: where its headers are shown.
        status: the HTTP status.
        headers: as sent, one a line.
        says: fields of the feedback that are not ``None`` or false, by the unit that is read.
        pause: seconds without calls that are asked for, by the unit.
        now: seconds since 1970, where the response has no ``Date``.
    """

    name: str
    source: str
    status: int
    headers: str
    says: dict[str, dict[str, Any]]
    pause: dict[str, float] = field(default_factory=dict)
    now: float = 1_767_225_600.0  # 2026-01-01

    def pairs(self) -> list[tuple[str, str]]:
        lines = [line.strip().partition(":") for line in self.headers.strip().splitlines()]
        return [(name, value.strip()) for name, _, value in lines]


RESPONSES = [
    Recorded(
        "GitHub, left",
        "https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api",
        200,
        """
        Date: Thu, 01 Jan 2026 00:00:00 GMT
        x-ratelimit-limit: 5000
        x-ratelimit-remaining: 4987
        x-ratelimit-reset: 1767227400
        x-ratelimit-used: 13
        x-ratelimit-resource: core
        """,
        {"requests": {"remaining": 4987, "limit": 5000, "reset_after": 1800.0}, "tokens": {}},
    ),
    Recorded(
        "GitHub, primary limit: no Retry-After",
        "https://codeinu.net/language/whatever/c169807-http-header (GitHub's own example of 2013)",
        403,
        """
        Date: Tue, 20 Aug 2013 14:50:41 GMT
        X-RateLimit-Limit: 60
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 1377013266
        """,
        {"requests": {"remaining": 0, "limit": 60, "reset_after": 3025.0}},
        {"requests": 3025.0},
    ),
    Recorded(
        "GitHub, secondary limit: quota is left",
        "https://docs.github.com/en/enterprise-server@3.6/rest/overview/troubleshooting",
        403,
        """
        Date: Thu, 01 Jan 2026 00:00:00 GMT
        Retry-After: 60
        x-ratelimit-limit: 5000
        x-ratelimit-remaining: 4200
        x-ratelimit-reset: 1767227400
        """,
        {"requests": {"retry_after": 60.0, "remaining": 4200, "limit": 5000, "reset_after": 1800.0}},
        {"requests": 60.0},
    ),
    Recorded(
        "OpenAI: durations, requests and tokens apart",
        "https://community.openai.com/t/how-to-get-rate-limit-reset-time-for-response-api/1268905",
        200,
        """
        x-ratelimit-limit-requests: 5000
        x-ratelimit-limit-tokens: 160000
        x-ratelimit-limit-tokens_usage_based: 160000
        x-ratelimit-remaining-requests: 4999
        x-ratelimit-remaining-tokens: 159976
        x-ratelimit-remaining-tokens_usage_based: 159976
        x-ratelimit-reset-requests: 12ms
        x-ratelimit-reset-tokens: 9ms
        x-ratelimit-reset-tokens_usage_based: 9ms
        """,
        {
            "requests": {"remaining": 4999, "limit": 5000, "reset_after": pytest.approx(0.012), "refills": True},
            "tokens": {"remaining": 159976, "limit": 160000, "reset_after": pytest.approx(0.009), "refills": True},
        },
    ),
    Recorded(
        "OpenAI, tokens used up: the quota refills, so nothing waits for its reset",
        "https://thoughtbot.com/blog/openai-rate-limits",
        200,
        """
        x-ratelimit-limit-requests: 60
        x-ratelimit-limit-tokens: 150000
        x-ratelimit-remaining-requests: 59
        x-ratelimit-remaining-tokens: 0
        x-ratelimit-reset-requests: 1s
        x-ratelimit-reset-tokens: 6m0s
        """,
        {
            "requests": {"remaining": 59, "limit": 60, "reset_after": 1.0, "refills": True},
            "tokens": {"remaining": 0, "limit": 150000, "reset_after": 360.0, "refills": True},
        },
    ),
    Recorded(
        "Azure OpenAI, not said: -1 and 0",
        "https://learn.microsoft.com/en-us/answers/questions/5625878/",
        200,
        """
        x-ratelimit-limit-tokens: -1
        x-ratelimit-remaining-tokens: -1
        x-ratelimit-reset-tokens: 0
        """,
        {"requests": {}, "tokens": {}},
    ),
    Recorded(
        "Azure OpenAI, provisioned: milliseconds",
        "https://github.com/simonkurtz-MSFT/python-openai-loadbalancer/issues/14",
        429,
        """
        retry-after: 2
        retry-after-ms: 1450
        """,
        {"requests": {"retry_after": 2.0}},
        {"requests": 2.0},
    ),
    Recorded(
        "Azure OpenAI, a day: cut to an hour",
        "https://github.com/Azure/azure-sdk-for-java/pull/42696",
        429,
        "Retry-After: 86400",
        {"requests": {"retry_after": 3600.0}},
        {"requests": 3600.0},
    ),
    Recorded(
        "Anthropic: times at which quotas are full",
        "https://rdrr.io/cran/tidyllm/src/tests/testthat/claude/api.anthropic.com/v1/messages-e050b5-POST.R",
        200,
        """
        date: Thu, 21 Aug 2025 12:40:50 GMT
        anthropic-ratelimit-input-tokens-limit: 80000
        anthropic-ratelimit-input-tokens-remaining: 80000
        anthropic-ratelimit-input-tokens-reset: 2025-08-21T12:40:59Z
        anthropic-ratelimit-output-tokens-limit: 16000
        anthropic-ratelimit-output-tokens-remaining: 16000
        anthropic-ratelimit-output-tokens-reset: 2025-08-21T12:41:00Z
        anthropic-ratelimit-requests-limit: 1000
        anthropic-ratelimit-requests-remaining: 999
        anthropic-ratelimit-requests-reset: 2025-08-21T12:40:59Z
        anthropic-ratelimit-tokens-limit: 96000
        anthropic-ratelimit-tokens-remaining: 96000
        anthropic-ratelimit-tokens-reset: 2025-08-21T12:40:59Z
        """,
        {
            "requests": {"remaining": 999, "limit": 1000, "reset_after": 9.0, "refills": True},
            "tokens": {"remaining": 96000, "limit": 96000, "reset_after": 9.0, "refills": True},
            "input_tokens": {"remaining": 80000, "limit": 80000, "reset_after": 9.0, "refills": True},
            "output-tokens": {"remaining": 16000, "limit": 16000, "reset_after": 10.0, "refills": True},
        },
    ),
    Recorded(
        "Stripe: a status, and no header",
        "https://docs.stripe.com/rate-limits",
        429,
        """
        Stripe-Rate-Limited-Reason: global-rate
        Stripe-Should-Retry: false
        """,
        {"requests": {}},
    ),
    Recorded(
        "Shopify: used/limit, seconds with a fraction",
        "https://shopify.dev/docs/api/admin-rest/usage/rate-limits",
        429,
        """
        X-Shopify-Shop-Api-Call-Limit: 40/40
        Retry-After: 2.0
        """,
        {
            "requests": {"retry_after": 2.0, "remaining": 0, "limit": 40, "refills": True},
            "tokens": {"retry_after": 2.0},
        },
        {"requests": 2.0, "tokens": 2.0},
    ),
    Recorded(
        "Slack",
        "https://docs.slack.dev/apis/web-api/rate-limits",
        429,
        "Retry-After: 30",
        {"requests": {"retry_after": 30.0}, "tokens": {"retry_after": 30.0}},
        {"requests": 30.0, "tokens": 30.0},
    ),
    Recorded(
        "X (Twitter)",
        "https://docs.x.com/fundamentals/rate-limits",
        429,
        """
        x-rate-limit-limit: 900
        x-rate-limit-remaining: 0
        x-rate-limit-reset: 1705420800
        """,
        {"requests": {"remaining": 0, "limit": 900, "reset_after": 300.0}},
        {"requests": 300.0},
        now=1705420500.0,
    ),
    Recorded(
        "Discord: the same time twice, as a time and as seconds",
        "https://docs.discord.com/developers/topics/rate-limits",
        429,
        """
        Date: Tue, 08 Sep 2026 12:00:00 GMT
        X-RateLimit-Limit: 10
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 1788868864.57
        X-RateLimit-Reset-After: 64.57
        X-RateLimit-Bucket: abcd1234
        X-RateLimit-Scope: user
        Retry-After: 65
        """,
        {"requests": {"retry_after": 65.0, "remaining": 0, "limit": 10, "reset_after": pytest.approx(64.57)}},
        {"requests": 65.0},
    ),
    Recorded(
        "Zendesk",
        "https://developer.zendesk.com/documentation/api-basics/best-practices/best-practices-for-avoiding-rate-limiting",
        200,
        """
        x-rate-limit: 700
        ratelimit-limit: 700
        x-rate-limit-remaining: 699
        ratelimit-remaining: 699
        ratelimit-reset: 41
        zendesk-ratelimit-tickets-index: total=100; remaining=99; resets=41
        """,
        {"requests": {"remaining": 699, "limit": 700, "reset_after": 41.0}},
    ),
    Recorded(
        "HubSpot: ten seconds and the day apart",
        "https://developers.hubspot.com/changelog/2018-11-06-rate-limit-information-headers-will-be-included-in-http-responses",
        200,
        """
        X-HubSpot-RateLimit-Daily: 250000
        X-HubSpot-RateLimit-Daily-Remaining: 249487
        X-HubSpot-RateLimit-Interval-Milliseconds: 10000
        X-HubSpot-RateLimit-Max: 100
        X-HubSpot-RateLimit-Remaining: 98
        """,
        {"requests": {"remaining": 98, "limit": 100}, "daily": {"remaining": 249487}},
    ),
    Recorded(
        "Okta",
        "https://developer.okta.com/docs/reference/rl-best-practices/",
        200,
        """
        X-Rate-Limit-Limit: 1200
        X-Rate-Limit-Remaining: 1199
        X-Rate-Limit-Reset: 1609459200
        """,
        {"requests": {"remaining": 1199, "limit": 1200, "reset_after": 60.0}},
        now=1609459140.0,
    ),
    Recorded(
        "Cloudflare: structured fields",
        "https://developers.cloudflare.com/fundamentals/api/reference/limits",
        200,
        """
        Ratelimit: "default";r=50;t=30
        Ratelimit-Policy: "burst";q=100;w=60
        """,
        {"requests": {"remaining": 50, "reset_after": 30.0}},
    ),
    Recorded(
        "The draft: several policies, the tightest counts; bytes are no requests",
        "https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/",
        200,
        r"""
        RateLimit-Policy: "permin";q=50;w=60,"perhr";q=1000;w=3600
        RateLimit-Policy: "peruser, \"A\"; all";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:
        RateLimit: "permin";r=49;t=58, "perhr";r=12;t=3000, "peruser, \"A\"; all";r=0;t=9
        """,
        {
            "requests": {"remaining": 12, "limit": 1000, "reset_after": 3000.0},
            "content-bytes": {"remaining": 0, "limit": 65535, "reset_after": 9.0},
        },
        {"content-bytes": 9.0},
    ),
    Recorded(
        "The draft, version 7: one dictionary",
        "https://www.ietf.org/archive/id/draft-ietf-httpapi-ratelimit-headers-07.html",
        200,
        """
        RateLimit: limit=100, remaining=0, reset=50
        RateLimit-Policy: 100;w=60
        """,
        {"requests": {"remaining": 0, "limit": 100, "reset_after": 50.0}},
        {"requests": 50.0},
    ),
    Recorded(
        "The draft, version 3: three headers, policies beside the limit",
        "https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/03/",
        200,
        """
        RateLimit-Limit: 10, 10;w=1, 50;w=60
        RateLimit-Remaining: 9
        RateLimit-Reset: 50
        """,
        {"requests": {"remaining": 9, "limit": 10, "reset_after": 50.0}},
    ),
    Recorded(
        "WHOOP: the draft's values under the older names",
        "https://developer.whoop.com/docs/developing/rate-limiting",
        200,
        """
        X-RateLimit-Limit: 100, 100;window=60, 10000;window=86400
        X-RateLimit-Remaining: 98
        X-RateLimit-Reset: 3
        """,
        {"requests": {"remaining": 98, "limit": 100, "reset_after": 3.0}},
    ),
    Recorded(
        "GitLab: the draft's names, a time since 1970",
        "https://gitlab.com/gitlab-org/gitlab/-/issues/199738",
        429,
        """
        Date: Thu, 30 Jan 2020 14:14:16 GMT
        RateLimit-Limit: 600
        RateLimit-Observed: 5
        RateLimit-Remaining: 595
        RateLimit-Reset: 1580393717
        RateLimit-ResetTime: Thu, 30 Jan 2020 14:15:17 GMT
        """,
        {"requests": {"remaining": 595, "limit": 600, "reset_after": 61.0}},
    ),
    Recorded(
        "Jira: ISO 8601 without seconds",
        "https://jira.atlassian.com/browse/JRACLOUD-69262",
        429,
        """
        Date: Thu, 01 Jan 2026 00:00:30 GMT
        X-RateLimit-Reset: 2026-01-01T00:01Z
        X-RateLimit-Limit: 350
        X-RateLimit-Remaining: 0
        """,
        {"requests": {"remaining": 0, "limit": 350, "reset_after": 30.0}},
        {"requests": 30.0},
    ),
    Recorded(
        "Linear: milliseconds since 1970",
        "https://linear.app/developers/rate-limiting, https://docs.rs/linear-api/0.1.0/linear_api/struct.RateLimitInfo.html",
        200,
        """
        Date: Thu, 01 Jan 2026 00:00:00 GMT
        X-RateLimit-Requests-Limit: 5000
        X-RateLimit-Requests-Remaining: 4998
        X-RateLimit-Requests-Reset: 1767226200123
        X-Complexity: 12
        X-RateLimit-Complexity-Limit: 250000
        X-RateLimit-Complexity-Remaining: 249988
        X-RateLimit-Complexity-Reset: 1767226200123
        """,
        {
            "requests": {"remaining": 4998, "limit": 5000, "reset_after": pytest.approx(600.123)},
            "complexity": {"remaining": 249988, "limit": 250000, "reset_after": pytest.approx(600.123)},
        },
    ),
    Recorded(
        "Docker Hub: windows beside the numbers",
        "https://docs.docker.com/docker-hub/usage/pulls/",
        200,
        """
        ratelimit-limit: 100;w=21600
        ratelimit-remaining: 20;w=21600
        docker-ratelimit-source: 192.0.2.1
        """,
        {"requests": {"remaining": 20, "limit": 100}},
    ),
    Recorded(
        "Reddit: a number with a fraction, seconds",
        "https://pastebin.com/hiFpDDv5",
        200,
        """
        Date: Sat, 05 Sep 2015 05:28:09 GMT
        x-ratelimit-remaining: 586.0
        x-ratelimit-reset: 111
        x-ratelimit-used: 14
        """,
        {"requests": {"remaining": 586, "reset_after": 111.0}},
    ),
    Recorded(
        "Brevo: a prefix of its own",
        "https://developers.brevo.com/docs/limit-headers",
        429,
        """
        x-sib-ratelimit-limit: 1000
        x-sib-ratelimit-remaining: 0
        x-sib-ratelimit-reset: 17
        """,
        {"requests": {"remaining": 0, "limit": 1000, "reset_after": 17.0}},
        {"requests": 17.0},
    ),
    Recorded(
        "MailerLite: a Retry-After of its own",
        "https://developers-classic.mailerlite.com/docs/api-rate-limits",
        429,
        """
        Date: Thu, 01 Jan 2026 00:00:00 GMT
        X-RateLimit-Limit: 60
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 2026-01-01 00:00:40
        X-RateLimit-Retry-After: 41
        """,
        {"requests": {"retry_after": 41.0, "remaining": 0, "limit": 60, "reset_after": 40.0}},
        {"requests": 41.0},
    ),
    Recorded(
        "SendGrid",
        "https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/rate-limits",
        429,
        """
        X-RateLimit-Limit: 150
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 1392815263
        """,
        {"requests": {"remaining": 0, "limit": 150, "reset_after": 63.0}},
        {"requests": 63.0},
        now=1392815200.0,
    ),
    Recorded(
        "Prisjakt: milliseconds until the reset look like seconds: cut to an hour",
        "https://developer.prisjakt.nu/docs/sections/rate-limit",
        429,
        """
        X-Rate-Limit-Limit: 10000
        X-Rate-Limit-Remaining: 0
        X-Rate-Limit-Reset: 600000
        """,
        {"requests": {"remaining": 0, "limit": 10000, "reset_after": 3600.0}},
        {"requests": 3600.0},
    ),
    Recorded(
        "A server down for maintenance: an HTTP date",
        "https://www.rfc-editor.org/rfc/rfc9110#field.retry-after",
        503,
        """
        Date: Fri, 31 Dec 1999 23:58:59 GMT
        Retry-After: Fri, 31 Dec 1999 23:59:59 GMT
        """,
        {"requests": {"retry_after": 60.0}},
        {"requests": 60.0},
    ),
]
