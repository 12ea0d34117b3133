"""Pipeline schedules, one file each; being in the folder is being registered."""

from engine.schedules._base import Pipe, Schedule, schedules

__all__ = ["Pipe", "Schedule", "schedules"]
