"""What a Spark job needs of Understudy: one call, `announce`, after the query was started."""

from understudy_pipeline.announcing import Announced, announce

__all__ = ["Announced", "announce"]
