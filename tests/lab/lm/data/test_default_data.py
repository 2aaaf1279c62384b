import pytest

from entryclip.lab.lm.data import documents
from entryclip.lab.lm.data.default_data import data_folder, default_data
from entryclip.lab.lm.data.manifest import load_manifest


def test_two_builds_of_one_python_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = documents.find_sources([])[:60]
    folders = []
    for left_out in (0, 1, 0):
        monkeypatch.setattr(documents, "_standard_library", lambda left_out=left_out: files[left_out:])
        folders.append(default_data("bytes"))
    assert folders[0] == folders[2] != folders[1]
    assert load_manifest(folders[1])["complete"]


def test_the_papers_model_has_no_default_data(tmp_path):
    assert data_folder(str(tmp_path), "paper") == tmp_path
    with pytest.raises(ValueError, match="the paper's model needs data: `entryclip data fineweb"):
        data_folder("", "paper")
