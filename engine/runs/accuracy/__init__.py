"""Accuracy of predictions: comparison of a predicted design with the recording of its run.

A comparison uses two columns of seconds with a row for each action of the program: the predicted duration, and the
measured duration (the median over the timed steps). To find the cause of an error, the simulator runs the program with
the measured durations of one kind of action, or of one mesh, and the predicted durations of the others.
"""

from meshwave.engine.runs.accuracy.comparison import (
    ComparedDuration,
    Comparison,
    Iteration,
    LayerTime,
    Link,
    MeshMemory,
    compare,
)
from meshwave.engine.runs.accuracy.error_breakdown import ErrorPart
from meshwave.engine.runs.accuracy.error_causes import AS_PREDICTED, Cause
from meshwave.engine.runs.accuracy.profile_from_run import run_profile
