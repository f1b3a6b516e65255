"""The aligned source by its way through Python workers, for a session whose `understudy` is the accelerator jar."""

from understudy_aligned.source import AlignedSource


class PythonWay(AlignedSource):
    """The Python source by a name of its own."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "understudy-python"
