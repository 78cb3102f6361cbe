"""The parking lots of an app; see :class:`ParkingLots`."""

from .operations.parked_tasks import ParkedTask, ParkingLots
from .operations.read_parking_lots import ParkingLot

__all__ = ["ParkedTask", "ParkingLot", "ParkingLots"]
