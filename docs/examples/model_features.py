"""Features of a model, read for each request within 5 ms, and a default where they cannot be.

UNDERSTUDY_URL=http://router-1:8080 python docs/examples/model_features.py N14228 N24211
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from understudy import Client, UnderstudyError

DEADLINE = timedelta(milliseconds=5)


@dataclass(frozen=True)
class Features:
    """The features of one aircraft, as the model takes them."""

    flights: int | None
    delay_sum: int | None


DEFAULT = Features(flights=0, delay_sum=0)
"""The features of an aircraft of which nothing is known: the model was trained with it, too."""


class FeatureReader:
    """The reader of features. It never fails and is never late: `defaults` counts the rows that it made up."""

    def __init__(self, client: Client, deadline: timedelta = DEADLINE) -> None:
        """Hold the features against the schema of the store, and open a connection, before the first request."""
        self._store = client.store("aircraft", value=Features)
        self._store.get_many([""])
        self._deadline = deadline
        self.defaults = 0

    def read(self, tails: Sequence[str]) -> list[Features]:
        """Return the features of each aircraft, in the order of `tails`."""
        try:
            results = self._store.get_many(tails, timeout=self._deadline, max_staleness=timedelta(minutes=1))
        except UnderstudyError:  # late, away, or too old
            self.defaults += len(tails)
            return [DEFAULT] * len(tails)
        features = []
        for result in results:  # a key that could not be read has an `error`, and the others have their values
            found = None if result.error is not None else result.value
            self.defaults += found is None
            features.append(DEFAULT if found is None else found)
        return features


if __name__ == "__main__":
    with Client(retries=0) as client:
        reader = FeatureReader(client)
        for tail, features in zip(sys.argv[1:], reader.read(sys.argv[1:]), strict=True):
            print(tail, features)
        print(reader.defaults, "defaults")
