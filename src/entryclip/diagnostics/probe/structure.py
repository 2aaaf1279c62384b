"""What makes the entries of gradient noise differ in size: rows and columns, single entries, or neither."""

from enum import StrEnum

ANOMALOUS_GAIN = 1.25  # of the best clip of the standardised entries, from which on these are called anomalous


class NoiseStructure(StrEnum):
    """What makes the entries of the noise differ in size, beyond Gaussian noise."""

    ROWS_AND_COLUMNS = "rows and columns"  # they differ in scale, and within them entries are of one kind
    ENTRIES = "anomalous entries"  # single entries stand out from their rows and columns
    NEITHER = "neither"

    @classmethod
    def of(cls, *, anomalous: bool, uneven: bool) -> "NoiseStructure":
        """Return the structure of noise with `anomalous` entries, or else in rows and columns of `uneven` scales.

        >>> print(NoiseStructure.of(anomalous=False, uneven=True))
        rows and columns
        """
        if anomalous:
            return cls.ENTRIES
        return cls.ROWS_AND_COLUMNS if uneven else cls.NEITHER

    @property
    def summary(self) -> str:
        """The structure in words, for a list of all three."""
        return str(self) + (" differ in scale" if self is NoiseStructure.ROWS_AND_COLUMNS else "")

    @property
    def sentence(self) -> str:
        """The structure in words that are understood alone."""
        neither = "neither rows and columns of different scale nor anomalous entries"
        return neither if self is NoiseStructure.NEITHER else self.summary
