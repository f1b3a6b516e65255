"""The message by which a pipeline names the stores of its query."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from understudy_shared.bus.messages import MAX_COLUMNS, Count, Message, Name

MAX_TYPE_CHARACTERS = 65_536
"""Limit on the type of a result: an array of structs of some hundred columns."""

MAX_ANNOUNCED = 256
"""Limit on the stores of one announcement; each is tried against the checkpoint."""

MAX_LOCATION_CHARACTERS = 4096


class ResultColumn(BaseModel):
    """One output column that can be computed exactly from the stored buffers of an aggregate."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    name: Name
    function: Name
    """One of `ResultFunction`, or of a later release: a node leaves out the columns of those that it does not know."""
    buffers: list[Count] = Field(min_length=1, max_length=MAX_COLUMNS)
    """Indexes of the value columns it is made of, in Spark's order."""
    type: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TYPE_CHARACTERS)]
    """Spark's name of the output type; for an array its JSON."""


class AnnouncedStore(BaseModel):
    """Names that the job's author chose for one store, by its operator."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    operator_id: Count
    name: Name | None = None
    key: list[Name] | None = Field(default=None, max_length=MAX_COLUMNS)
    value: list[Name] | None = Field(default=None, max_length=MAX_COLUMNS)
    result: list[ResultColumn] = Field(default_factory=list, max_length=MAX_COLUMNS)


class Announcement(Message):
    """The names that the pipeline announces for its query, by one call in the user's job. Never needed to answer."""

    query_id: Name
    """The lineage it is about; ignored by nodes that follow another."""
    stores: list[AnnouncedStore] = Field(max_length=MAX_ANNOUNCED)
    checkpoint: str | None = Field(default=None, min_length=1, max_length=MAX_LOCATION_CHARACTERS)
    """The location of its checkpoint, as Spark resolved it; None where it cannot be told, or was taken out."""
