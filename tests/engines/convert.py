"""``convert.py LLAMA_CPP CHECKPOINT KIND FILE``: a GGUF file by llama.cpp's own converter, whose folder is LLAMA_CPP.

The converter knows tokenizers by their digests and refuses others: the tokens of a checkpoint without a tokenizer are
numbers, apart from the placeholder of images. A FILE whose name begins with mmproj gets the vision tower.
"""

import sys
from pathlib import Path
from typing import Any

import torch

# By the first word of the type of a model.
_PLACEHOLDERS = {"qwen3": "<|image_pad|>", "paddleocr": "<|IMAGE_PLACEHOLDER|>"}


def convert(checkpoint: Path, kind: str, file: Path) -> None:
    """Write `file`, whose matrices are of `kind`: BF16, F16 or Q8_0."""
    import gguf
    from conversion import base, get_model_class

    def set_vocab(self: Any) -> None:
        count = self.hparams["vocab_size"]
        tokens = [str(index) for index in range(count)]
        if (placeholder := self.hparams.get("image_token_id")) is not None:
            kind = fields["model_type"].partition("_")[0]
            tokens[placeholder] = _PLACEHOLDERS.get(kind, "<image>")
        self.gguf_writer.add_tokenizer_model("gpt2")
        self.gguf_writer.add_tokenizer_pre("default")
        self.gguf_writer.add_token_list(tokens)
        self.gguf_writer.add_token_types([gguf.TokenType.NORMAL] * count)
        self.gguf_writer.add_token_merges(["1 2"])
        self.gguf_writer.add_bos_token_id(1)
        self.gguf_writer.add_eos_token_id(2)

    fields = base.ModelBase.load_hparams(checkpoint, False)
    if file.name.startswith("mmproj"):
        architectures = fields["vision_config"].get("architectures") or fields["architectures"]
        converter = get_model_class(architectures[0], mmproj=True)
    else:
        architectures = fields.get("text_config", {}).get("architectures") or fields["architectures"]
        converter = get_model_class(architectures[0])
        converter.set_vocab, converter.no_mtp = set_vocab, True
    with torch.inference_mode():
        converter(checkpoint, getattr(gguf.LlamaFileType, f"MOSTLY_{kind}"), file).write()


if __name__ == "__main__":
    llama_cpp, folder, kind, file = sys.argv[1:]
    sys.path[:0] = [f"{llama_cpp}/gguf-py", llama_cpp]  # before the gguf that is installed
    convert(Path(folder), kind, Path(file))
