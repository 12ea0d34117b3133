"""Recordings of runs: each process writes its measurements step by step; they are read as timelines.

===================  ===========================================================================
:mod:`.spans`        the actions of a process; the first process of each mesh stands for its rank
:mod:`.layer_steps`  the steps of expert layers inside actions, and the tokens of each expert
:mod:`.clocks`       the offsets between the clocks of the processes
:mod:`.memory`       the peak memory of each process
:mod:`.recording`    all files of a recording together
:mod:`.timeline`     the timeline of a recorded step
===================  ===========================================================================
"""

from meshwave.engine.runs.recording.clocks import ClockOffset, Clocks, ProcessClock, read_clocks, write_clocks
from meshwave.engine.runs.recording.layer_steps import (
    STEP,
    LayerPass,
    LayerSteps,
    MeasuredLayerSteps,
    StepsRecorder,
    read_layer_steps,
    read_routing,
    write_routing,
)
from meshwave.engine.runs.recording.memory import WITHIN, MeasuredMemory, read_memory
from meshwave.engine.runs.recording.recording import Recording, read_recording
from meshwave.engine.runs.recording.spans import SPAN, Recorder, Spans
from meshwave.engine.runs.recording.timeline import has_waited
