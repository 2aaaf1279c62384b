"""Worker processes: what a unit leaves in memory does not cost the next ones their worker."""

from entryclip.lab.engine.processes import outcomes


def test_a_worker_that_grows_is_kept():
    """A new one would import torch again, and loky would warn of a leak."""

    def work(unit):
        import os
        import sys
        import time

        time.sleep(1.1)  # loky looks once a second
        if unit == 1:
            sys.modules[__name__ + ".kept"] = bytearray(b"x" * 400_000_000)
        return os.getpid()

    assert len(set(outcomes([0, 1, 2, 3], work, 1))) == 1
