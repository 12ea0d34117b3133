"""Measurement of the costs of this machine, or of a small cluster emulated on it, as a calibration profile.

This package does not import torch when it is imported: measurements run in their own processes (:mod:`.stage_timing`,
:mod:`.link_timing`).
"""

from meshwave.engine.runtime.calibration.machine_profile import (
    PARTS,
    CalibrationOptions,
    CalibrationProgress,
    calibrate_machine,
    default_options,
)
