"""Makes Triton's interpreter faster, for the tests that run in it."""

import contextlib
import dataclasses

import pytest
from triton.runtime import interpreter


class _Kept:
    """Stands for a scope of patches that a launch would take back at its end, and its successor make again."""

    def restore(self):
        pass


@contextlib.contextmanager
def fast_calls():
    """Leave out what the interpreter does again at each call or launch, and a check without consequence.

    It would patch Triton's language for every launch and for every function that a kernel calls, build a table of
    dtypes for every operation, and look for overflows of integers, of which it says nothing unless it debugs.
    """
    prepare, scopes = interpreter._patch_lang, {}

    def prepare_once(fn):
        if id(fn.__globals__) not in scopes:
            scopes[id(fn.__globals__)] = prepare(fn)
        return _Kept()

    def call(function, *args, **kwargs):
        prepare_once(function.fn)
        return function.rewrite()(*args, **kwargs)

    dtypes, find_dtype = {}, interpreter._get_np_dtype

    def dtype_of(kind):
        name = str(kind.scalar)  # dtypes of pointers have no hash
        if name not in dtypes:
            dtypes[name] = find_dtype(kind)
        return dtypes[name]

    options = interpreter.interpreter_builder.options
    assert not options.debug
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        stack.callback(lambda: [scope.restore() for scope in reversed(scopes.values())])
        patch.setattr(interpreter, "_patch_lang", prepare_once)
        patch.setattr(interpreter, "_get_np_dtype", dtype_of)
        patch.setattr(interpreter.InterpretedFunction, "__call__", call)
        unchecked = dataclasses.replace(options, sanitize_overflow=False)
        patch.setattr(interpreter.interpreter_builder, "options", unchecked)
        yield
