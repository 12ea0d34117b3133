"""Pipeline schedules, one file each; being in the folder is being registered."""

from meshwave.engine.schedules._base import (
    MAX_MICROBATCHES,
    Pipe,
    Prices,
    Schedule,
    schedule_names,
    schedules,
    use_microbatches,
)

__all__ = ["MAX_MICROBATCHES", "Pipe", "Prices", "Schedule", "schedule_names", "schedules", "use_microbatches"]
