"""How near a prediction came to what was measured: one comparison of a design's prediction with a run's recording.

Everything here is a question to two columns of seconds, a row an action of the program: what each action was
predicted to take, and what it took (the median over the steps that are timed). Where the step is off, the
simulator is asked why: it plays the program again with what was measured of one kind of action, or of one mesh,
in place of what was predicted, and the answer is exact.
"""

from meshwave.engine.runs.accuracy.comparison import (
    Compared,
    Comparison,
    Iteration,
    LayerTime,
    Link,
    MeshMemory,
    compare,
)
from meshwave.engine.runs.accuracy.error_causes import AS_PREDICTED, Cause
from meshwave.engine.runs.accuracy.profile_from_run import profile_of

__all__ = ["AS_PREDICTED", "Cause", "Compared", "Comparison", "Iteration", "LayerTime", "Link", "MeshMemory"]
__all__ += ["compare", "profile_of"]
