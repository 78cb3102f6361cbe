"""What a limit is: frozen data, checked when it is made, with no I/O."""

from .any_limit import AnyLimit
from .concurrency import Concurrency
from .limit import Limit

__all__ = ["AnyLimit", "Concurrency", "Limit"]
