"""A model for clients that send long prompts and call tools: 131,072 tokens of context, and every answer is known.

It says "ok", or names the colour of a red or a blue square. A demanded call has the shortest arguments that its schema
takes, with texts that are "ok". A word anywhere in the prompt makes it think first, another one never stop. No trained
model of that context is small enough to be had here, and a random one would close no string of a call.

A token is one dimension of the hidden state, and most tokens are the same one; the head has a row of logits for each
dimension. The only layer looks for the two words and the two colours, and adds what it has found. The features of a
square are the dimension of its colour, see `tests.demo_images`. https://arxiv.org/abs/2207.08804 is the idea of writing
weights by hand.
"""

from pathlib import Path

import torch
import transformers as hf
from numaserve.server.images.expansion import EXPANSIONS

from tests.demo_images.checkpoint import COLOURS, VISION, connect, image_processor

AGENT = "agent"  # its name
CONTEXT = 131_072
HIDDEN, HEAD_DIM = 64, 32
THINK_WORD, ENDLESS_WORD = " ponder", " marathon"
SAID, THOUGHT = "ok", "hm"
_OPEN, _CLOSE = "<think>", "</think>"
# The dimensions of the hidden state.
_ANY, _OK, _THINK, _HM, _UNTHINK, _ENDLESS, _PONDER, _RED, _BLUE = range(9)
_SEEN = {"red": _RED, "blue": _BLUE}
_IMAGE = "<|picture|>"  # stands for an image: no prompt of a client may have it
# What a call is ended with, the likeliest first: whatever closes something before whatever goes on.
_CLOSERS = ('"', "}", "]", '"}', ",", ":", "0")
_SHARP = 40.0  # the score of a word that is looked for, where all others have 0: it takes all of the attention

TEMPLATE = Path(__file__).with_name("agent_template.jinja")


def write_agent_model(tokenizer: Path, folder: Path) -> Path:
    """Write the model into `folder`, with the tokens of the tokenizer in the folder `tokenizer`."""
    tokens = hf.AutoTokenizer.from_pretrained(tokenizer)
    tokens.add_special_tokens({"additional_special_tokens": [_OPEN, _CLOSE, _IMAGE, EXPANSIONS["idefics3"].edge]})
    tokens.chat_template = TEMPLATE.read_text()
    tokens.save_pretrained(folder)
    text = hf.LlamaConfig(
        vocab_size=-(-len(tokens) // 64) * 64,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=HIDDEN // HEAD_DIM,
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokens.convert_tokens_to_ids("<|im_end|>"),
    )
    token = tokens.convert_tokens_to_ids(_IMAGE)
    config = hf.SmolVLMConfig(
        text_config=text.to_dict(), image_token_id=token, pad_token_id=0, eos_token_id=text.eos_token_id, **VISION
    )
    torch.manual_seed(0)
    model = hf.SmolVLMForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.model.text_model.named_parameters():
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        model.lm_head.weight.zero_()
        _write_embeddings(model.model.text_model.embed_tokens.weight, tokens)
        _write_attention(model.model.text_model.layers[0].self_attn)
        _write_head(model.lm_head.weight, tokens)
        connect(model, torch.eye(HIDDEN)[[_SEEN.get(colour, _ANY) for colour in COLOURS]])
    model.to(torch.bfloat16).save_pretrained(folder)
    image_processor().save_pretrained(folder)
    return folder


def _token(tokens: hf.PreTrainedTokenizerBase, text: str) -> int:
    (token,) = tokens.encode(text, add_special_tokens=False)
    return int(token)


def _write_embeddings(rows: torch.Tensor, tokens: hf.PreTrainedTokenizerBase) -> None:
    rows[:, _ANY] = 1.0
    special = {SAID: _OK, _OPEN: _THINK, THOUGHT: _HM, _CLOSE: _UNTHINK, ENDLESS_WORD: _ENDLESS, THINK_WORD: _PONDER}
    special |= dict.fromkeys(_SEEN, _OK)  # each is an answer
    for text, dimension in special.items():
        token = _token(tokens, text)
        rows[token] = 0.0
        rows[token, dimension] = 1.0


def _write_attention(attention: torch.nn.Module) -> None:
    """Every token looks for words and colours, in the dimension of a head that positions turn least."""
    slow = HEAD_DIM // 2 - 1
    size = HIDDEN**0.5  # of the one dimension, after the norm
    attention.q_proj.weight[slow] = 1.0 / size
    for word in (_ENDLESS, _PONDER, *_SEEN.values()):
        attention.k_proj.weight[slow, word] = _SHARP * HEAD_DIM**0.5 / size
        attention.v_proj.weight[word, word] = 1.0 / size
        attention.o_proj.weight[word, word] = 1.0


def _write_head(rows: torch.Tensor, tokens: hf.PreTrainedTokenizerBase) -> None:
    for rank, text in enumerate(_CLOSERS):
        rows[_token(tokens, text), :] = 4.0 * (len(_CLOSERS) - rank)
    ok, hm, think, unthink = (_token(tokens, text) for text in (SAID, THOUGHT, _OPEN, _CLOSE))
    end = tokens.convert_tokens_to_ids("<|im_end|>")
    rows[ok, _ANY], rows[ok, _OK], rows[ok, _UNTHINK], rows[ok, _ENDLESS] = 50.0, 2.0, 100.0, 50.0
    rows[end, _OK], rows[end, _ENDLESS] = 100.0, -200.0
    for colour, dimension in _SEEN.items():
        rows[_token(tokens, colour), dimension] = 60.0
    rows[think, _PONDER], rows[hm, _THINK], rows[unthink, _HM] = 60.0, 100.0, 100.0
