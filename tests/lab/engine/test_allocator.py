"""Freed memory stays in the process after `keep_freed_memory`: a large buffer is not zeroed by the kernel again."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from entryclip.lab.engine.allocator import keep_freed_memory
keep = {keep}
set_by_us = keep_freed_memory() if keep else None
def use():
    torch.empty(2**24).fill_(1)  # 64 MB, freed at once
for _ in range(12):
    use()  # the heap grows until freed pieces fit
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use()
print(set_by_us, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep, **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")} | variables
    command = [sys.executable, "-c", FAULTS.format(keep=keep)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    set_by_us, faults = done.stdout.split()
    return set_by_us, int(faults)


@pytest.mark.skipif(not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs glibc")
def test_a_freed_buffer_is_reused():
    (_, given_back), (set_by_us, kept) = page_faults(False), page_faults(True)
    assert set_by_us == "True"
    assert given_back > 64  # of 256 MB: huge pages of 2 MB at best
    assert kept < given_back / 4
    assert page_faults(True, MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"  # the user's own setting stays
