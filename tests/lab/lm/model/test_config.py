import pytest

from entryclip.lab.lm import Config


def test_paper_sizes():
    paper = Config.paper()
    assert (paper.layers, paper.width, paper.heads, paper.head_size) == (12, 768, 6, 128)
    assert paper.head_rows - paper.vocabulary == 47
    assert paper.value_layers == (0, 1, 2, 9, 10, 11)
    assert Config.small().head_rows == 4096  # a multiple of 128 needs no padding


def test_the_window_grows_from_one_block_to_1792_tokens():
    paper = Config.paper()
    blocks = [paper.window_blocks(step / 1000) for step in range(1001)]
    assert blocks == sorted(blocks)
    assert (128 * blocks[0], 128 * blocks[-1]) == (128, 1792)
    assert set(blocks) == set(range(1, 15))
    assert Config.small().window_blocks() == paper.window_blocks()  # a quarter of the tokens in blocks of a quarter


@pytest.mark.parametrize("make", [Config.small, Config.tiny])
def test_small_ones_have_every_part(make):
    config = make()
    attending = set(range(config.layers)) - set(config.without_attention)
    assert config.without_attention
    assert config.value_tables
    assert attending - set(config.value_layers) or make is Config.tiny
    assert attending & set(config.long_layers)
    assert attending - set(config.long_layers)


def test_the_separator_is_the_last_token_unless_given():
    for make in (Config.small, Config.tiny):
        assert (make(300).vocabulary, make(300).separator) == (300, 299)
        assert make(300, 7).separator == 7
        assert make(300).with_vocabulary(make().vocabulary) == make()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 5}, "layers must be even.*got 5"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"head_size": 6}, "head_size must be a multiple of 4.*got 6"),
        ({"separator": 50257}, "separator must be a token, 0 to 50256, got 50257"),
        ({"value_tables": 7}, "value_tables must be 0 to layers / 2 = 6, got 7"),
        ({"long_layers": (0, 12)}, "long_layers must be layers, 0 to 11, got 12"),
        ({"attention_scale": float("nan")}, "attention_scale must be a finite number above 0, got nan"),
    ],
)
def test_refuses(change, words):
    with pytest.raises(ValueError, match=words):
        Config(**change)


def test_progress_beyond_the_run_is_refused():
    with pytest.raises(ValueError, match=r"progress must be in \[0, 1\], got 1.01"):
        Config().window_blocks(1.01)
