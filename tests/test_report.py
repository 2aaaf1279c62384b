import json

import pytest

from entryclip.experiments.reproduce import reproduce
from entryclip.report import write_page


@pytest.mark.parametrize(("content", "words"), [("{", "is damaged"), ("[1]", "is damaged"), ("{}", "lacks claims")])
def test_a_damaged_record_is_named(tmp_path, content, words):
    folder = reproduce("operators", tmp_path)
    (folder / "record.json").write_text(content)
    with pytest.raises(ValueError, match=rf"record\.json {words}"):
        write_page(tmp_path)


def test_hostile_text_stays_text(tmp_path):
    folder = reproduce("operators", tmp_path)
    record = json.loads((folder / "record.json").read_text())
    record["claims"][0]["claim"] = record["machine"] = "<script>alert(1)</script>"
    record["config"]['"><img onerror=x>'] = 1
    (folder / "record.json").write_text(json.dumps(record))
    page = write_page(tmp_path).read_text()
    assert "<script" not in page
    assert "<img onerror" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2
