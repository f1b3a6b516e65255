"""`python -m understudy.demo` runs the demo's pipeline with settings from `UNDERSTUDY_*` variables."""

from __future__ import annotations

import logging
import sys

from pydantic import ValidationError

from understudy.demo.job import main
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.telemetry.logs import configure_logging

if __name__ == "__main__":
    configure_logging()
    try:
        main()
    except (UnderstudyError, ValidationError) as error:
        logging.getLogger(__name__).error("%s", error, extra={"action": "failed"})  # no bug of ours
        sys.exit(1)
