"""Makes Triton's interpreter twice as fast, for the tests that run in it."""

import contextlib

import pytest
from triton.runtime import interpreter


@contextlib.contextmanager
def fast_calls():
    """Let functions called by a kernel prepare their module once, not at each call: half of the interpreter's time."""
    prepared = set()

    def call(function, *args, **kwargs):
        if id(function.fn.__globals__) not in prepared:
            prepared.add(id(function.fn.__globals__))
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpretedFunction, "__call__", call)
        yield
