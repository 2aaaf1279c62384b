"""Names that others chose, such as those of parameters, are text in figures, whatever is in them."""

from xml.etree import ElementTree

import pytest

from entryclip.lab.diagnosis.figures import figures
from entryclip.lab.engine.figures import save

ROW = {
    **{"r_hat": [1.1, 0.9], "plain_r_hat": [1.0], "low": [0.8], "high": [1.2]},
    **{"verdict": "spikes", "spiked": 0.5, "spikes": [1, 2], "samples": 4},
}


@pytest.mark.parametrize("name", [r"a.$\frac{.weight", "$x$", r"\$", "a\x1bb\x00c", "-->", "<script>", "a\nb"])
def test_a_parameter_of_any_name_is_drawn(tmp_path, name):
    (figure,) = figures([{**ROW, "matrix": name}]).values()
    svg, png = save(figure, tmp_path, "noise")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert png.stat().st_size > 1000
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown[0].replace(r"\$", "$") == name.encode("unicode_escape").decode().replace("\\\\", "\\")
