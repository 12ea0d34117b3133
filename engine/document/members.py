"""Sections of the document that are members of a registry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from meshwave.engine.frozen import Part


class Member(Part):
    """A section of the document that is a member of a registry: its fields are its keys and its form on the page."""

    title: ClassVar[str]

    @classmethod
    def initial_values(cls) -> Mapping[str, Any]:
        """Return values of required keys for a design that switches to this member, as far as they are known."""
        return {}


class MemberOf:
    """Annotation of a field whose value is a member of ``registry``; ``tag`` is the key that names it.

    The union of the members is built when the document is first read, not when its class is defined (``defer_build``):
    members price and build designs and so import the document, not the other way round.
    """

    def __init__(self, registry: Mapping[str, type[Member]], tag: str, default: str = "") -> None:
        """Declare the registry of a section.

        Args:
            registry: members by name.
            tag: the key that names the member.
            default: member of a document without the section; empty if the section is required.
        """
        self._registry, self._tag, self._default = registry, tag, default

    def default(self) -> Any:
        """Return the default member with the defaults of its keys."""
        return self._registry[self._default]()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = reduce(or_, dict.fromkeys(self._registry.values()))
        return handler.generate_schema(Annotated[members, Field(discriminator=self._tag)])

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        return {"default": self.default().model_dump(mode="json"), **written} if self._default else written
