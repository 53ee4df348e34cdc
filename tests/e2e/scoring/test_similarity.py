"""Pictures embedded by a CLIP of random weights and by the embedded network, in the engine that has torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.pictures import png

from treadle.core.engines.environments import install, python_of
from treadle.environments.scorers.similarity.vectors import black_picture, cosine
from treadle.environments.scorers.similarity.worker import open_embedder

SAVE_CLIP = """
import sys, torch
from transformers import CLIPConfig, CLIPModel
small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
torch.manual_seed(0)
config = CLIPConfig(text_config=dict(small), vision_config={**small, "image_size": 64, "patch_size": 16},
                    projection_dim=24)
CLIPModel(config).save_pretrained(sys.argv[1])
"""


def tall(height: int, dark_from: int) -> bytes:
    """Return a white picture of 64 pixels in width whose lower part is dark."""
    import io

    from PIL import Image

    picture = Image.new("RGB", (64, height), "white")
    picture.paste((20, 20, 20), (0, dark_from, 64, height))
    found = io.BytesIO()
    picture.save(found, "PNG")
    return found.getvalue()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clip")
    subprocess.run([str(python_of("serve")), "-c", SAVE_CLIP, str(folder)], check=True)
    return folder


async def test_clip_of_a_folder_embeds_pictures_of_any_size(clip: Path) -> None:
    async with open_embedder("clip", str(clip), crops=False) as embedder:
        first, again, other = await embedder.vectors([tall(500, 250), tall(500, 250), tall(500, 400)])
        (alone,) = await embedder.vectors([tall(500, 250)])
        (grey,) = await embedder.vectors([png(3, 2)])
    assert len(first) == len(grey) == 24
    assert cosine(first, again) == pytest.approx(1.0) and cosine(first, alone) == pytest.approx(1.0, abs=1e-5)
    assert cosine(first, other) < 0.9999


async def test_middle_of_a_long_page_hides_its_end_and_the_whole_page_does_not(clip: Path) -> None:
    pages = [tall(1000, 1000), tall(1000, 700)]
    async with open_embedder("clip", str(clip), crops=True) as embedder:
        assert cosine(*await embedder.vectors(pages)) == pytest.approx(1.0, abs=1e-6)
    async with open_embedder("clip", str(clip), crops=False) as embedder:
        assert cosine(*await embedder.vectors(pages)) < 0.9999


async def test_embedded_network_ranks_a_similar_page_above_a_black_one() -> None:
    install("similarity")
    async with open_embedder("efficientnet-lite0", "", crops=False) as embedder:
        page, like, black = await embedder.vectors([tall(800, 600), tall(800, 560), black_picture()])
    assert cosine(page, page) == pytest.approx(1.0)
    assert cosine(page, like) > cosine(page, black) + 0.1
