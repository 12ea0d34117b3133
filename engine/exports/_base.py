"""What an export is, and the folder of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from meshwave.engine.registry import Registry

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction


class Export(ABC):
    """A form that a prediction is written in. A member is one file in this folder."""

    title: ClassVar[str]  # how a menu calls it
    note: ClassVar[str]  # what opens it
    suffix: ClassVar[str]  # of its file
    mime: ClassVar[str]

    @staticmethod
    @abstractmethod
    def make(prediction: Prediction) -> bytes:
        """The file.

        Raises:
            InputError: the form cannot say what the design means.
        """

    @staticmethod
    def left_out(prediction: Prediction) -> list[str]:
        """What the design means and the file has no place for, neither in its actions nor in words; none of most forms.

        To be told beside the file: whoever takes it elsewhere has to see to that there.
        """
        return []


exports: Registry[type[Export]] = Registry("export", "meshwave.engine.exports")
