"""Pipeline schedules, one file each; being in the folder is being registered."""

from meshwave.engine.schedules._base import (
    MOST_MICROBATCHES,
    Pipe,
    Prices,
    Schedule,
    schedule_names,
    schedules,
    use_microbatches,
)

__all__ = ["MOST_MICROBATCHES", "Pipe", "Prices", "Schedule", "schedule_names", "schedules", "use_microbatches"]
