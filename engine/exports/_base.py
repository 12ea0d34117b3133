"""Base class and registry of export formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from meshwave.engine.registry import Registry

if TYPE_CHECKING:
    from meshwave.engine.exports.pictures.rows import ShownTimeline
    from meshwave.engine.predict.prediction import Prediction


class Export(ABC):
    """File format for predictions. A member is one file in this folder."""

    title: ClassVar[str]  # name in menus
    note: ClassVar[str]  # program that opens the file
    suffix: ClassVar[str]  # suffix of the file name
    mime: ClassVar[str]

    @staticmethod
    @abstractmethod
    def to_bytes(prediction: Prediction) -> bytes:
        """Return the content of the exported file.

        Raises:
            InputError: the format cannot represent the design.
        """

    @classmethod
    def shown_bytes(cls, prediction: Prediction, shown: Sequence[ShownTimeline]) -> bytes:
        """Return the content of a file with the timelines and rows that the page shows.

        Formats that are not pictures of the timeline contain the whole step.

        Raises:
            InputError: the format cannot represent the design.
        """
        return cls.to_bytes(prediction)

    @staticmethod
    def omissions(prediction: Prediction) -> list[str]:
        """Return notes on properties of the design that the file does not contain; empty for most formats.

        They are shown with the file, because its user has to add these properties.
        """
        return []


exports: Registry[type[Export]] = Registry("export", "meshwave.engine.exports")
