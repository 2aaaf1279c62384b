"""Keep freed memory in the process: glibc gives large buffers back, and the kernel zeroes them anew each step."""

import ctypes
import os
import sys

# mallopt's names of the two options, from glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1  # bytes at the end of the heap before it is given back; the option is an int
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")


def keep_freed_memory() -> bool:
    """Tell glibc's allocator to reuse freed memory rather than give it back; return whether it does.

    For commands that train, and their worker processes: it is a setting of the whole process, so no library sets it.
    It does nothing under another C library, or where the user set one of glibc's variables in the environment.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _VARIABLES):
        return False
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - an AttributeError under musl, whose mallopt means nothing
        return bool(libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, _NEVER))
    except (OSError, AttributeError):
        return False
