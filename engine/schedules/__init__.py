"""Pipeline schedules, one file each; being in the folder is being registered."""

from engine.schedules._base import Pipe, Prices, Schedule, by_age, schedules
from engine.schedules._watch import watched

__all__ = ["Pipe", "Prices", "Schedule", "by_age", "schedules", "watched"]
