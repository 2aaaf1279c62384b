import pytest
import torch

from entryclip.diagnostics.probe.center import BlockMeans, median_

G = torch.Generator().manual_seed(0)


def test_block_means_and_their_median():
    x = torch.randn(13, 4, 5, generator=G)
    blocks = BlockMeans(5)
    for each in x:
        blocks.add({"w": each})
    median, mean = blocks.pop("w")
    expected = torch.stack([x[i::5].mean(0) for i in range(5)]).median(0).values
    torch.testing.assert_close(median, expected)
    torch.testing.assert_close(mean, x.mean(0))
    assert blocks.names() == []


def test_fewer_samples_than_blocks():
    blocks = BlockMeans(5)
    for i in range(3):
        blocks.add({"w": torch.full((2, 2), float(i))})
    median, mean = blocks.pop("w")
    assert (median == 1).all()
    assert (mean == 1).all()


def test_the_samples_are_not_written_to():
    first = torch.ones(2, 2)
    blocks = BlockMeans(1)
    blocks.add({"w": first})
    blocks.add({"w": 3 * torch.ones(2, 2)})
    assert (first == 1).all()


@pytest.mark.parametrize("count", range(1, 8))
def test_the_median_of_any_number_also_with_ties(count):
    x = torch.randint(0, 4, (count, 5000), generator=G).float()
    assert torch.equal(median_([each.clone() for each in x]), x.median(0).values)


def test_the_median_of_large_and_of_strided_tensors():
    x = torch.randn(5, 300, 400, generator=G)
    expected = x.median(0).values
    torch.testing.assert_close(median_([each.clone() for each in x]), expected)
    torch.testing.assert_close(median_([each.mT.contiguous().mT for each in x]), expected)
