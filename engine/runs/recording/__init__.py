"""What a run measured, on disk: written a step at a time by each process, read back as timelines.

==================  ===============================================================================
:mod:`.spans`       the actions of a process, of which one a rank speaks for all
:mod:`.inside`      inside some of them the steps of expert layers, of every process
:mod:`.clocks`      how the clocks of the processes stand to each other
:mod:`.memory`      the most memory that each of them held
:mod:`.routing`     how often each expert was chosen
:mod:`.recording`   all of it read back
:mod:`.timeline`    one step of it as a timeline
==================  ===============================================================================
"""

from meshwave.engine.runs.recording.clocks import Clocks, ProcessClock, Sighting, read_clocks, write_clocks
from meshwave.engine.runs.recording.layer_steps import (
    STEP,
    LayerSteps,
    MeasuredInside,
    StepsRecorder,
    Way,
    read_inside,
    read_routing,
    write_routing,
)
from meshwave.engine.runs.recording.memory import WITHIN, MeasuredMemory, read_memory
from meshwave.engine.runs.recording.recording import Recording, read_recording
from meshwave.engine.runs.recording.spans import SPAN, Recorder, Spans
from meshwave.engine.runs.recording.timeline import stood_still

__all__ = ["SPAN", "STEP", "WITHIN", "Clocks", "LayerSteps", "MeasuredInside", "MeasuredMemory", "ProcessClock"]
__all__ += ["Recorder", "Recording", "Sighting", "Spans", "StepsRecorder", "Way", "read_clocks", "read_inside"]
__all__ += ["read_memory", "read_recording", "read_routing", "stood_still", "write_clocks", "write_routing"]
