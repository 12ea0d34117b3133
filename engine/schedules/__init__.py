"""Pipeline schedules, one file each; being in the folder is being registered."""

from meshwave.engine.schedules._base import Pipe, Prices, Schedule, by_age, schedules
from meshwave.engine.schedules._progress import go_on, watched

__all__ = ["Pipe", "Prices", "Schedule", "by_age", "go_on", "schedules", "watched"]
