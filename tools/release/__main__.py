"""Takes every step of the release check, and says at the end what holds and what to do about the rest.

    python -m tools.release [--tag v0.1.0] [--only STEP]...

`--tag`: for a version that is published now, so what is due (a dated changelog, links) must be there. Without it, that
is listed and does not fail. No network but the package indexes of the machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tools.release.outcome import Done, Outcome, StepError, table
from tools.release.steps import STEPS, Release


def main() -> int:
    """Take the steps in order; each is taken, whatever came of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", default="", help="the tag of the release, such as v0.1.0")
    parser.add_argument("--only", action="append", choices=STEPS, default=[], help="only this step")
    given = parser.parse_args()
    release = Release(given.tag)
    done = []
    for name in given.only or STEPS:
        sys.stderr.write(f"== {name}\n")
        began_s = time.monotonic()
        outcome = _taken(STEPS[name], release)
        if outcome.state == "due" and given.tag:
            outcome = outcome._replace(state="failed")
        done.append(Done(name, outcome, time.monotonic() - began_s))
    sys.stdout.write("\n".join(table(done)) + "\n")
    return 1 if any(each.outcome.state == "failed" for each in done) else 0


def _taken(step: Callable[[Release], Outcome], release: Release) -> Outcome:
    try:
        return step(release)
    except StepError as error:
        return Outcome("failed", str(error), step.__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
