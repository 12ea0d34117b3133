"""Document sections that are members of a registry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from meshwave.engine.frozen import Part


class Member(Part):
    """Document section that is a member of a registry: its fields are its keys and its form on the page."""

    title: ClassVar[str]

    @classmethod
    def initial_values(cls) -> Mapping[str, Any]:
        """Return known values of required keys for a design that switches to this member."""
        return {}


class MemberOf:
    """Annotation of a field whose value is a member of ``registry``; the key ``tag`` contains the name of the member.

    The union of the members is built when the first document is read, not when its class is defined (``defer_build``),
    because members price and build designs and therefore import the document module.
    """

    def __init__(self, registry: Mapping[str, type[Member]], tag: str, default: str = "") -> None:
        """Declare the registry of a section.

        Args:
            registry: member classes by name.
            tag: the key that contains the name of the member.
            default: name of the member in a document without the section; empty if the section is required.
        """
        self._registry, self._tag, self._default = registry, tag, default

    def default(self) -> Any:
        """Return the default member with default values of its keys."""
        return self._registry[self._default]()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = reduce(or_, dict.fromkeys(self._registry.values()))
        return handler.generate_schema(Annotated[members, Field(discriminator=self._tag)])

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        return {"default": self.default().model_dump(mode="json"), **written} if self._default else written
