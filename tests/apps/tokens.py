"""Passwords that change while workers run: read from a file at each connection."""

from __future__ import annotations

import os
from pathlib import Path

from redis.credentials import CredentialProvider


class Tokens(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "iam", Path(os.environ["TEST_TOKEN"]).read_text()
