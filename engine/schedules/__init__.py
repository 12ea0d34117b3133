"""Pipeline schedules, one file each; being in the folder is being registered."""

from engine.schedules._base import Pipe, Prices, Schedule, by_age, schedules

__all__ = ["Pipe", "Prices", "Schedule", "by_age", "schedules"]
