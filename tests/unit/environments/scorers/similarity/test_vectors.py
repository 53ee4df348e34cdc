"""Similarity of vectors, and figures over tasks."""

from __future__ import annotations

import pytest
from support.pictures import png

from treadle.environments.planning.tools.pictures import read_picture
from treadle.environments.scorers.similarity.vectors import black_picture, cosine, win_rate


@pytest.mark.covers("sweet-22")
def test_cosine_of_vectors() -> None:
    assert cosine((3, 4), (4, 3)) == pytest.approx(0.96)
    assert cosine((3, 4), (6, 8)) == 1.0 and cosine((1, 0), (-1, 0)) == -1.0
    for vector in ((0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0)):
        with pytest.raises(ValueError, match="no vector"):
            cosine(vector, (1, 1))


def test_black_picture_is_a_picture() -> None:
    picture = read_picture(black_picture())
    assert (picture.width, picture.height, picture.media_type) == (224, 224, "image/png")
    assert black_picture() != png(224, 224)


@pytest.mark.covers("sweet-24")
def test_win_rate_counts_ties_as_half() -> None:
    own, others = [0.8, 0.7, 0.6, 0.9, 0.5], [0.75, 0.72, 0.6, 0.8, 0.55]
    assert win_rate(own, others, tie=0.0) == pytest.approx(0.4)
    assert win_rate(own, others) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="same tasks"):
        win_rate(own, others[1:])
