import json

from entryclip.experiments.reproduce import reproduce
from entryclip.report import write_page


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
