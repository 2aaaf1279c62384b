import pytest

from entryclip.lab.engine.provenance import code_hash

FILE = '''"""Words."""
from .helper import double

SCALE = 2
STYLE = "red"

def run(config):
    """More words."""
    return _inner(SCALE)  # a comment

def _inner(x):
    return double(x)

def plot(rows):
    from .look import colour
    return _draw(rows, STYLE)

def _draw(rows, style):
    return 1
'''


@pytest.fixture
def hashes(tmp_path):
    (tmp_path / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "look.py").write_text("colour = 1\n")

    def compute(text=FILE, **options):
        (tmp_path / "experiment.py").write_text(text)
        code_hash.cache_clear()
        return code_hash(tmp_path / "experiment.py", **options)

    return compute


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("# a comment", "# another", False),
        ('"""More words."""', '"""Fewer."""', False),
        ('"""Words."""\n', "", False),
        ("return 1", "return 2", False),  # what only draws
        ("red", "blue", False),
        ("SCALE = 2", "SCALE = 3", True),
        ("double(x)", "double(2 * x)", True),
    ],
)
def test_what_makes_the_rows_counts_and_nothing_else(hashes, old, new, counts):
    assert (hashes() != hashes(FILE.replace(old, new))) == counts


def test_imported_files_count(hashes, tmp_path):
    before, whole = hashes(), hashes(whole=True)
    (tmp_path / "look.py").write_text("colour = 2\n")
    assert hashes() == before
    assert hashes(whole=True) != whole
    (tmp_path / "helper.py").write_text("def double(x):\n    return x + x\n")
    assert hashes() != before


def test_the_whole_counts_what_draws(hashes):
    assert hashes(whole=True) != hashes(FILE.replace("return 1", "return 2"), whole=True)
    assert hashes(whole=True) == hashes(FILE.replace("# a comment", ""), whole=True)
