"""``meshwave calibrate``: what this machine, or a small cluster emulated on it, takes for what designs are made of.

Nothing here imports torch: what measures runs in processes of its own (:mod:`.stages`, :mod:`.links`).
"""

from meshwave.engine.runtime.calibration.collectives import Plan, calibrate, machine_of
from meshwave.engine.runtime.calibration.machine_profile import PARTS, Heard, Told, Wanted, calibrate_machine, usual

__all__ = [
    "PARTS",
    "Heard",
    "Plan",
    "Told",
    "Wanted",
    "calibrate",
    "calibrate_machine",
    "machine_of",
    "usual",
]
