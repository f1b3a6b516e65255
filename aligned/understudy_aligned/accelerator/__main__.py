"""Prints the path of the jar: `spark-submit --jars "$(python -m understudy_aligned.accelerator)" job.py`."""

import sys

from understudy_aligned.accelerator import jar_path
from understudy_shared.base.errors import UnderstudyError

if __name__ == "__main__":
    try:
        sys.stdout.write(f"{jar_path()}\n")
    except UnderstudyError as error:
        raise SystemExit(str(error)) from None
