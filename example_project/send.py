"""Sends work of every kind: ``python -m example_project.send [how many of each]``."""

from __future__ import annotations

import argparse

from .tasks import charge, payout, refund, send_email, sync_page

TENANTS = ("acme", "globex", "initech")


def main() -> None:
    parser = argparse.ArgumentParser(description="Send some work of every kind.")
    parser.add_argument("count", type=int, nargs="?", default=200, help="tasks of each kind (200)")
    count: int = parser.parse_args().count
    for number in range(count):
        charge.delay(number)
        send_email.delay(number)
        refund.delay(number)
        payout.delay(number)
        sync_page.delay(TENANTS[number % len(TENANTS)], page=number)
    print(f"sent {count} each of charge, send_email, refund, payout, sync_page")


if __name__ == "__main__":
    main()
