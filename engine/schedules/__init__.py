"""Pipeline schedules, one file each; a module in the folder is registered by its existence."""

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
