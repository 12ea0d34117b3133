"""Pipeline schedules, one file each; every module in this folder is registered automatically."""

from meshwave.engine.schedules._base import (
    MAX_MICROBATCHES,
    Pipe,
    Prices,
    Schedule,
    schedule_names,
    schedules,
    use_microbatches,
)
