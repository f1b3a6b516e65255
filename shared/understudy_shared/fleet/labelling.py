"""The metrics of a fleet: each family of an application once, with a label that names the application (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

LABEL = "application"


def labelled(families: Mapping[str, Iterable[Metric]], of_process: Iterable[Metric] = ()) -> Iterator[Metric]:
    """Yield the families of the process, whose samples have no such label, and those of all applications, by their ids:
    one of each name, with all samples.
    """
    found = {family.name: family for family in of_process}
    for application_id, own in families.items():
        for family in own:
            whole = found.get(family.name)
            if whole is None:
                whole = found[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
            whole.samples += [_labelled(sample, application_id) for sample in family.samples]
    yield from found.values()


def _labelled(sample: Sample, application_id: str) -> Sample:
    return sample._replace(labels={LABEL: application_id, **sample.labels})
