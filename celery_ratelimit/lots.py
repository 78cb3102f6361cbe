"""The parking lots of an app, for people; see :class:`ParkingLots`."""

from .operations.parking_lots import ParkedTask, ParkingLot, ParkingLots

__all__ = ["ParkedTask", "ParkingLot", "ParkingLots"]
