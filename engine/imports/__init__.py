"""Import of designs from the files of other tools, one file per format."""

from meshwave.engine.imports._base import (
    TOO_FEW_DEVICES,
    Import,
    Imported,
    find_format,
    imports,
    is_import,
    load_import,
    split_name,
)
from meshwave.engine.imports._traces import (
    StageSeconds,
    Trace,
    TracedAction,
    TracedProcess,
    TraceFormat,
    load_trace,
    parse_trace,
    traces,
)
