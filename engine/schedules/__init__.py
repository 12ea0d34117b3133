"""Pipeline schedules, one file each; every module in this folder is registered automatically."""

from meshwave.engine.schedules._base import (
    MAX_MICROBATCHES,
    Pipe,
    Prices,
    Schedule,
    microbatch_fixes,
    schedule_names,
    schedules,
)
