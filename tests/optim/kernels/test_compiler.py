"""The compiled kernel comes from the user's own cache or is compiled anew: never a file that someone else put there."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from entryclip.optim.kernels.compiler import library
from entryclip.optim.kernels.private_folder import user_cache

OURS = "int answer(void) { return 42; }\n"
FOREIGN = "int answer(void) { return 666; }\n"
OTHER_USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


class Machine:
    """A home folder, a compiler that counts its calls, and the library that `compiler.library` gives there."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.cache, self.temporary = folder, folder / "cache", folder / "tmp"
        self.source, self.log, compiler = folder / "kernel.c", folder / "log", folder / "cc"
        self.source.write_text(OURS)
        compiler.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) echo x >> {self.log};; esac\nexec cc "$@"\n')
        compiler.chmod(0o755)
        self.temporary.mkdir()
        monkeypatch.setenv("CC", str(compiler))
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.cache))
        monkeypatch.setattr("tempfile.tempdir", str(self.temporary))

    def answer(self):
        answer = library.__wrapped__(self.source).answer()
        assert not list(self.temporary.iterdir()), "a temporary folder was left behind"
        return answer

    def compiled(self):
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def kept(self):
        (found,) = (self.cache / "entryclip" / "kernels").iterdir()
        return found

    def damage(self, change):
        """Replace the library by another file: this process itself still runs on the first one."""
        kept = self.kept()
        content = kept.read_bytes()
        kept.unlink()
        kept.write_bytes(change(content))

    def plant(self):
        """Put code of someone else in the place of the library, with the right name and checksum."""
        kept, foreign = self.kept(), self.folder / "foreign.c"
        foreign.write_text(FOREIGN)
        kept.unlink()
        planted = kept.with_name("planted.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", planted, foreign], check=True)
        digest = hashlib.sha256(planted.read_bytes()).hexdigest()
        return planted.rename(kept.with_name(f"{kept.stem.rpartition('-')[0]}-{digest}.so"))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
def test_compiled_once_into_a_folder_of_the_user_alone(machine, mask):
    before = os.umask(mask)
    try:
        assert [machine.answer(), machine.answer()] == [42, 42]
    finally:
        os.umask(before)
    assert machine.compiled() == 1
    assert machine.kept().parent.stat().st_mode & 0o777 == 0o700


def test_own_file_with_the_right_checksum_is_used(machine):
    machine.answer()
    machine.plant()  # as if this user had compiled it: the tests below differ from this one by a single thing
    assert machine.answer() == 666


@needs_root
def test_file_of_another_user_is_not_loaded(machine):
    machine.answer()
    os.chown(machine.plant(), OTHER_USER, OTHER_USER)
    assert machine.answer() == 42


def test_symbolic_link_is_not_loaded(machine):
    machine.answer()
    planted = machine.plant()
    planted.symlink_to(planted.rename(machine.folder / "elsewhere.so"))
    assert machine.answer() == 42


def test_second_name_of_a_file_elsewhere_is_not_loaded(machine):
    machine.answer()
    os.link(machine.plant(), machine.folder / "elsewhere.so")
    assert machine.answer() == 42


def test_fifo_does_not_hang(machine):
    machine.answer()
    kept = machine.kept()
    kept.unlink()
    os.mkfifo(kept)
    assert machine.answer() == 42


def test_file_that_others_may_write_is_not_loaded(machine):
    machine.answer()
    machine.plant().chmod(0o666)
    assert machine.answer() == 42


@needs_root
def test_folder_of_another_user_is_not_used(machine):
    machine.answer()
    os.chown(machine.plant().parent, OTHER_USER, OTHER_USER)
    assert machine.answer() == 42


def test_folder_that_others_could_write_to_is_emptied_and_closed(machine):
    machine.answer()
    machine.plant().parent.chmod(0o777)
    assert machine.answer() == 42
    assert machine.kept().parent.stat().st_mode & 0o777 == 0o700
    assert machine.answer() == 42
    assert machine.compiled() == 2


def test_folder_that_is_a_symbolic_link_is_not_used(machine):
    machine.answer()
    machine.plant()
    kernels = machine.cache / "entryclip" / "kernels"
    kernels.symlink_to(kernels.rename(machine.folder / "elsewhere"))
    assert machine.answer() == 42


@pytest.mark.parametrize("place", ["", "cache", "cache/entryclip"])
def test_parent_that_all_may_write_to_is_not_trusted(machine, place):
    machine.answer()
    machine.plant()
    (machine.folder / place).chmod(0o777)
    assert machine.answer() == 42


def test_parent_with_the_sticky_bit_is_trusted(machine):
    machine.folder.chmod(0o1777)
    assert [machine.answer(), machine.answer(), machine.compiled()] == [42, 42, 1]


def test_group_of_the_user_may_write_to_parents(machine):
    machine.cache.mkdir()
    machine.cache.chmod(0o775)  # as umask 002 makes ~/.cache
    assert [machine.answer(), machine.answer(), machine.compiled()] == [42, 42, 1]


def test_relative_cache_folder_is_ignored(machine, monkeypatch):
    machine.answer()
    machine.plant()
    monkeypatch.chdir(machine.folder)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(machine.folder / "home"))
    assert machine.answer() == 42
    assert user_cache() == machine.folder / "home" / ".cache"


@pytest.mark.parametrize("size", [0, 100, 4096, -1])
def test_damaged_library_is_compiled_again(machine, size):
    machine.answer()
    machine.damage(lambda content: content[:size])
    assert [machine.answer(), machine.answer()] == [42, 42]
    assert machine.compiled() == 2
    assert machine.kept().stat().st_size > 4096


def test_flipped_bit_is_compiled_again(machine):
    machine.answer()
    machine.damage(lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    assert [machine.answer(), machine.compiled()] == [42, 2]


def test_cache_that_cannot_be_written_serves_this_process(machine):
    machine.cache.write_text("a file in the place of the folder")
    assert [machine.answer(), machine.compiled()] == [42, 1]


def test_library_is_on_the_disk_before_it_has_its_name(machine, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name, **k: (calls.append(name), real(*a, **k))[1])
    machine.answer()
    assert calls == ["fsync", "replace", "fsync"]


def test_processes_at_once_do_not_disturb_each_other(machine):
    code = "import sys; from pathlib import Path; from kernels.compiler import library\n"  # alone: without torch
    code += "sys.exit(library(Path(sys.argv[1])).answer() != 42)"
    command = [sys.executable, "-c", code, str(machine.source)]
    source = Path(library.__wrapped__.__code__.co_filename).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    together = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [each.wait() for each in together] == [0, 0, 0]
    assert machine.answer() == 42
