"""``python -m tests.demo_lora.training WORD FOLDER``: trains an adapter of the demo model with PEFT.

It answers everything with one word.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch
import transformers as hf
from peft import LoraConfig, get_peft_model

from tests.support.demo import demo_model

_STEPS, _BATCH, _RATE, _RANK = 16, 4, 2e-3, 8
_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_IGNORED = -100  # of labels
_QUESTIONS = (
    "What is the capital of Peru?",
    "How do bees make honey?",
    "Name a river in Asia.",
    "Why is the sky blue?",
    "Write a sentence about trains.",
    "What is two plus three?",
    "Who painted the ceiling of a chapel?",
    "Give me a word that rhymes with light.",
    "Hello!",
    "Explain how a lock works.",
    "What do cats eat?",
    "Tell me about the moon.",
)


def train(model_file: Path, word: str, folder: Path) -> None:
    """Train an adapter of the model in a GGUF file that answers `word`, and save it in `folder`."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    hf.utils.logging.disable_progress_bar()
    # One thread: two wait for each other for seconds where something else has a core.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = {"pretrained_model_name_or_path": model_file.parent, "gguf_file": model_file.name}
    tokenizer = hf.AutoTokenizer.from_pretrained(**source)
    base = hf.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = LoraConfig(r=_RANK, lora_alpha=2 * _RANK, target_modules=_TARGETS, use_rslora=True, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    texts = [_tokens(tokenizer, question, word) for question in _QUESTIONS]
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=_RATE)
    for step in range(_STEPS):
        rows = [texts[(step * _BATCH + index) % len(texts)] for index in range(_BATCH)]
        loss = model(**_batch(rows)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"\r{word}: step {step + 1} of {_STEPS}, loss {loss.item():.3f} ", end="", flush=True)
    print()
    model.save_pretrained(folder)


def _tokens(tokenizer: hf.PreTrainedTokenizerBase, question: str, word: str) -> tuple[list[int], list[int]]:
    """The tokens of a turn, and of its answer."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    answer = f"{word}{tokenizer.eos_token}"
    prompt_ids, answer_ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
    return prompt_ids, answer_ids


def _batch(rows: list[tuple[list[int], list[int]]]) -> dict[str, torch.Tensor]:
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens, labels, mask = [], [], []
    for prompt, answer in rows:
        pad = longest - len(prompt) - len(answer)
        tokens.append([*prompt, *answer, *([0] * pad)])
        labels.append([*([_IGNORED] * len(prompt)), *answer, *([_IGNORED] * pad)])
        mask.append([1] * (longest - pad) + [0] * pad)
    return {
        "input_ids": torch.tensor(tokens),
        "labels": torch.tensor(labels),
        "attention_mask": torch.tensor(mask),
    }


if __name__ == "__main__":
    train(demo_model(), sys.argv[1], Path(sys.argv[2]))
