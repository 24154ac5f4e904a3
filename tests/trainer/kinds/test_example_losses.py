"""The losses of labelled examples are PyTorch's, however sure a model is."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from trainer.kinds.labelled.measure import example_losses

SCALES = [1e-6, 1.0, 30.0, 1e3, 1e5]
"""Beyond some 745, a probability of float64 is 0."""


@pytest.fixture(params=SCALES)
def logits(request: pytest.FixtureRequest) -> NDArray[np.float32]:
    draws = np.random.default_rng(0).standard_normal((40, 5))
    return (draws * request.param).astype(np.float32)


def test_of_one_class(logits: NDArray[np.float32]) -> None:
    labels = np.arange(40) % 5
    expected = functional.cross_entropy(torch.from_numpy(logits).double(), torch.from_numpy(labels), reduction="none")
    np.testing.assert_allclose(example_losses(logits, labels), expected.numpy(), rtol=1e-12, atol=1e-15)


def test_of_several_classes(logits: NDArray[np.float32]) -> None:
    labels = (np.arange(200).reshape(40, 5) * 7 % 3 == 0).astype(np.int64)
    scores = torch.from_numpy(logits).double()
    expected = functional.binary_cross_entropy_with_logits(
        scores, torch.from_numpy(labels).double(), reduction="none"
    ).mean(dim=1)
    np.testing.assert_allclose(example_losses(logits, labels), expected.numpy(), rtol=1e-12, atol=1e-15)


def test_of_numbers(logits: NDArray[np.float32]) -> None:
    numbers = np.linspace(-2, 2, 40)
    expected = functional.mse_loss(torch.from_numpy(logits[:, 0]).double(), torch.from_numpy(numbers), reduction="none")
    np.testing.assert_allclose(example_losses(logits, numbers), expected.numpy(), rtol=1e-12)
