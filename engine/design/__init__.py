"""The document: everything a person draws, as one frozen, validated value."""

from engine.design.cluster import Cluster, Device, Link
from engine.design.document import Design, load_design, parse_design, save_design
from engine.design.meshes import Mesh
from engine.design.model import Model
from engine.design.training import Training
from engine.design.upgrades import FORMAT

__all__ = ["FORMAT", "Cluster", "Design", "Device", "Link", "Mesh", "Model", "Training"]
__all__ += ["load_design", "parse_design", "save_design"]
