"""Design documents: the complete input of a user as one frozen, validated object."""

from meshwave.engine.document.cluster import Cluster, Device, Link
from meshwave.engine.document.design import Design
from meshwave.engine.document.loading import load_design, parse_design, save_design
from meshwave.engine.document.meshes import Mesh
from meshwave.engine.document.model import Model
from meshwave.engine.document.training import Training
from meshwave.engine.document.upgrades import FORMAT
