"""The parking lots of an app; see :class:`ParkingLots`."""

from .operations.lots import ParkingLot
from .operations.operator_actions import ParkedTask, ParkingLots

__all__ = ["ParkedTask", "ParkingLot", "ParkingLots"]
