"""Turn the actions of trajectories into vectors, and vectors into points of a plane."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError, DataError
from treadle.retriever.config import EncoderSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

_MAX_ACTIONS = 24
"""Maximum number of actions of a trajectory that are encoded; if it has more, evenly spaced ones are chosen."""
_NGRAMS = (3, 4)
_MAX_NGRAMS = 20_000
_DIMENSIONS = 50
_MOST_PERPLEXITY = 30.0


def require_scikit_learn() -> str:
    """Return the version of scikit-learn; raise ConfigError without it."""
    try:
        import sklearn
    except ModuleNotFoundError:
        raise ConfigError(
            "the picture of the action space needs the package scikit-learn: pip install 'treadle[analysis]'"
        ) from None
    return str(sklearn.__version__)


def vectors_of(trajectories: Sequence[Sequence[str]], encoder: EncoderSettings | None, seed: int) -> tuple[Matrix, str]:
    """Return a vector of length 1 per trajectory, given its actions, and a description of how they were made.

    With an encoder, the vector of a trajectory is the mean of the vectors of its actions; without one, it is computed
    from the n-grams of letters in them. Raises DataError if no action has letters, and as `open_encoder` does.
    """
    if encoder is None:
        return _ngram_vectors(trajectories, seed)
    import numpy as np

    from treadle.retriever.dense.encoders import normalized
    from treadle.retriever.dense.open_encoder import open_encoder

    chosen = [_spread(actions) for actions in trajectories]
    texts = list(dict.fromkeys(text for actions in chosen for text in actions))
    places = {text: place for place, text in enumerate(texts)}
    with closing(open_encoder(encoder)) as model:
        found, name = model.encode_passages(texts), str(model.identity["name"])
    means = np.array([found[[places[text] for text in actions]].mean(axis=0) for actions in chosen])
    return normalized(means).astype(np.float64), f"the mean of the vectors of their actions by {name}"


def _spread(actions: Sequence[str]) -> list[str]:
    """Return all actions, or `_MAX_ACTIONS` evenly spaced ones that include the first and the last."""
    if len(actions) <= _MAX_ACTIONS:
        return list(actions)
    return [actions[place * (len(actions) - 1) // (_MAX_ACTIONS - 1)] for place in range(_MAX_ACTIONS)]


def _ngram_vectors(trajectories: Sequence[Sequence[str]], seed: int) -> tuple[Matrix, str]:
    import numpy as np
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    # Letters rather than words: they need no rules of a language.
    counts = TfidfVectorizer(analyzer="char_wb", ngram_range=_NGRAMS, max_features=_MAX_NGRAMS, sublinear_tf=True)
    try:
        weights = counts.fit_transform([" ".join(actions) for actions in trajectories])
    except ValueError:
        raise DataError("the trajectories have no actions with letters, so there is nothing to draw") from None
    dimensions = min(_DIMENSIONS, *(size - 1 for size in weights.shape))
    if dimensions < 1:
        return np.asarray(weights.toarray(), dtype=np.float64), _described(weights.shape[1])
    reduced = TruncatedSVD(dimensions, random_state=seed).fit_transform(weights)
    return np.asarray(normalize(reduced), dtype=np.float64), _described(dimensions)


def _described(dimensions: int) -> str:
    first, last = _NGRAMS
    return (
        f"the TF-IDF weights of their runs of {first} and {last} letters in {dimensions} dimensions (SVD); no encoder "
        "of meanings is configured"
    )


def tsne_points(vectors: Matrix, seed: int) -> tuple[Matrix, float]:
    """Return the points of t-SNE, of shape (number of vectors, 2), and its perplexity; equal input gives equal points.

    Needs at least four vectors.
    """
    import numpy as np
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(_MOST_PERPLEXITY, float((len(vectors) - 1) // 3))
    wide = np.pad(vectors, ((0, 0), (0, max(0, 2 - vectors.shape[1]))))
    # Initialization by principal components needs vectors that vary in at least two directions.
    start: Any = "pca" if np.linalg.matrix_rank(wide - wide.mean(axis=0), tol=1e-6) >= 2 else "random"
    # Sums over threads differ in their last digits, which t-SNE amplifies.
    with threadpool_limits(1):
        points = TSNE(perplexity=perplexity, init=start, random_state=seed, n_jobs=1).fit_transform(wide)
    return np.asarray(points, dtype=np.float64), perplexity
