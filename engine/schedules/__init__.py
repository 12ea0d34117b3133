"""Pipeline schedules, one file each; being in the folder is being registered."""

from meshwave.engine.schedules._base import Pipe, Prices, Schedule, by_age, schedules

__all__ = ["Pipe", "Prices", "Schedule", "by_age", "schedules"]
