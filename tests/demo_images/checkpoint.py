"""A vision model made of the demo model: it reads a square of one of ten colours as the name of the colour.

The language model is SmolLM2-135M-Instruct. Its vision tower has one random layer, which makes ten colours linearly
independent, and its connector is the linear map from these features to the embeddings of the colours' names. Nothing is
trained. The files are those of a SmolVLM checkpoint.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from PIL import Image

from tests.support.demo import demo_model

COLOURS = {
    "red": (220, 30, 30),
    "blue": (30, 60, 220),
    "green": (30, 160, 50),
    "yellow": (250, 220, 40),
    "black": (10, 10, 10),
    "white": (245, 245, 245),
    "orange": (250, 140, 20),
    "purple": (130, 40, 160),
    "brown": (120, 70, 30),
    "pink": (250, 150, 190),
}
TILE = 64  # pixels of a side: a tile is one row of features
_PATCH = 16
_HIDDEN, _HEADS, _INTERMEDIATE = 64, 4, 256
# The part of the configuration that concerns images.
VISION: dict[str, Any] = {
    "vision_config": {
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": _HEADS,
        "image_size": TILE,
        "patch_size": _PATCH,
    },
    "scale_factor": TILE // _PATCH,
    "tie_word_embeddings": False,
}
_SPECIAL = ("<fake_token_around_image>", "<global-img>", "<image>")  # in place of three reserved tokens, from id 3 on
_FIRST_ID = 3
_FAINT = 0.1  # of the embedding of a space: the tokens around an image say little
_FOLDER = Path(__file__).resolve().parents[2] / "build" / "demo-images"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def square(colour: str, size: int = TILE) -> Image.Image:
    """Return a square of a colour of `COLOURS`."""
    return Image.new("RGB", (size, size), COLOURS[colour])


def written() -> Path:
    """Return the folder of the checkpoint, which the first call writes."""
    if not (_FOLDER / "model.safetensors").exists():
        write(_FOLDER)
    return _FOLDER


def write(folder: Path) -> None:
    """Write the checkpoint. Takes some seconds, in which the weights of the demo model are widened."""
    torch.manual_seed(0)
    file = demo_model()
    text = hf.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    tokenizer = hf.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = hf.SmolVLMForConditionalGeneration(_config(text.config)).eval()
    model.model.text_model.load_state_dict(text.model.state_dict())
    with torch.no_grad():
        model.lm_head.weight.copy_(text.lm_head.weight)
        embeddings = model.get_input_embeddings().weight
        faint = _FAINT * embeddings[_only(tokenizer, " ")]
        for token in range(_FIRST_ID, _FIRST_ID + len(_SPECIAL)):
            embeddings[token] = faint
            model.lm_head.weight[token] = 0
        connect(model, torch.stack([embeddings[_only(tokenizer, f" {name}")] for name in COLOURS]))
    model.to(torch.bfloat16).save_pretrained(folder)
    image_processor().save_pretrained(folder)
    _write_tokenizer(tokenizer, folder)


def _config(text: hf.LlamaConfig) -> hf.SmolVLMConfig:
    values = {**text.to_dict(), "model_type": "llama", "tie_word_embeddings": False}
    values.pop("quantization_config", None)
    token = _FIRST_ID + _SPECIAL.index("<image>")
    return hf.SmolVLMConfig(text_config=values, image_token_id=token, pad_token_id=text.pad_token_id, **VISION)


def _only(tokenizer: hf.PreTrainedTokenizerBase, text: str) -> int:
    [token] = tokenizer.encode(text, add_special_tokens=False)
    return int(token)


def image_processor() -> hf.BaseImageProcessor:
    """Return the image processor, which makes one tile of an image."""
    edge = {"longest_edge": TILE}
    return hf.SmolVLMImageProcessorPil(do_image_splitting=False, size=edge, max_image_size=edge)


def connect(model: hf.SmolVLMForConditionalGeneration, names: torch.Tensor) -> None:
    """Make the random layer, and the connector that maps the features of each colour to its row of `names`: fp32 [10,
    hidden]."""
    vision = model.model.vision_model
    embedding = vision.embeddings
    each = embedding.patch_embedding.weight  # [hidden, channels, height, width]
    each.copy_(torch.randn(_HIDDEN, 3, 1, 1).expand_as(each) / (_PATCH * _PATCH))
    embedding.patch_embedding.bias.normal_()
    embedding.position_embedding.weight.zero_()
    [layer] = vision.encoder.layers
    for parameter in layer.self_attn.parameters():
        parameter.zero_()
    layer.mlp.fc1.weight.normal_(std=_HIDDEN**-0.5 * 2)
    layer.mlp.fc1.bias.normal_()
    layer.mlp.fc2.weight.normal_(std=_INTERMEDIATE**-0.5 * 4)
    layer.mlp.fc2.bias.zero_()
    pixels = image_processor()([[square(name)] for name in COLOURS], return_tensors="pt")["pixel_values"][:, 0]
    features = vision(pixel_values=pixels.to(torch.float32)).last_hidden_state
    merged = model.model.connector.pixel_shuffle(features, model.config.scale_factor)[:, 0].double()
    model.model.connector.modality_projection.proj.weight.copy_((torch.linalg.pinv(merged) @ names.double()).T)


def _write_tokenizer(tokenizer: hf.PreTrainedTokenizerBase, folder: Path) -> None:
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    vocabulary = data["model"]["vocab"]
    reserved = {number: token for token, number in vocabulary.items()}
    for number, token in enumerate(_SPECIAL, start=_FIRST_ID):
        del vocabulary[reserved[number]]
        vocabulary[token] = number
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        data["added_tokens"] = [each for each in data["added_tokens"] if each["id"] != number]
        data["added_tokens"].append({"id": number, "content": token, "special": True, **flags})
    data["added_tokens"].sort(key=lambda each: each["id"])
    path.write_text(json.dumps(data))
