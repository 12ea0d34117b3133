"""Pipeline schedules, one file each; being in the folder is being registered."""

from engine.schedules._base import Pipe, Prices, Schedule, by_age, schedules
from engine.schedules._watch import go_on, watched

__all__ = ["Pipe", "Prices", "Schedule", "by_age", "go_on", "schedules", "watched"]
