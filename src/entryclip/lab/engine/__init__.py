"""The engine of all studies: units of work on disk, the loop that runs them, sweeps, provenance and files."""
