# ruff: noqa: RUF001 DeepSeek's tokens have wide bars
"""The texts that scripted models write, a format of tool calls or of reasoning each, cut into tokens at `¦`.

`Ċ` is a second token for a line break, as the token after one depends on the token alone. A chunk from `<` to `>` would
be a special token for the library of constraints; such marks are cut in two.
"""

from dataclasses import dataclass

_ARGUMENTS = '{"city": "Köl¦n", "days": 2}'
_SAID = "Yes, ¦it rains¦."
_THOUGHT = "The weather¦ tool."
_DEEPSEEK = "<｜tool▁calls▁begin｜>¦<｜tool▁call▁begin｜>¦<｜tool▁sep｜>¦<｜tool▁call▁end｜>¦<｜tool▁calls▁end｜>"
_DEEPSEEK_END = "<｜tool▁call▁end｜>¦<｜tool▁calls▁end｜>"
_KIMI = "<|tool_calls_section_begin|>¦<|tool_call_begin|>¦<|tool_call_argument_begin|>¦<|tool_call_end|>"


@dataclass(frozen=True)
class Script:
    """The texts of a model that is asked, and that is given the result of a call.

    `special` are special tokens of the format; `marks` are the words of the chat template by which the server knows the
    format; `options` name formats that no template names.
    """

    call: str
    answer: str = _SAID
    special: str = ""
    marks: str = ""
    options: tuple[str, ...] = ()

    @property
    def texts(self) -> list[list[str]]:
        """The tokens of both texts, with the end of each."""
        return [[*text.split("¦"), "</s>"] for text in (self.call, self.answer)]

    @property
    def special_tokens(self) -> list[str]:
        """The special tokens."""
        return self.special.split("¦") if self.special else []


def _parsers(tools: str, reasoning: str = "none") -> tuple[str, ...]:
    return ("--tool-call-parser", tools, "--reasoning-parser", reasoning)


SCRIPTS: dict[str, Script] = {
    "hermes": Script(
        f"<think>¦\n¦{_THOUGHT}¦\n\n¦</think>¦\n\n\n¦I look¦ up. ¦<tool_call>¦"
        f'\n{{"name": "weather"¦, "arguments": ¦{_ARGUMENTS}¦}}\n¦</tool_call>',
        special="<think>¦</think>¦<tool_call>¦</tool_call>",
        marks='<tool_call> "arguments </think>',
    ),
    "apriel": Script(
        f'<tool_calls>¦[{{"name": "weather", "arguments": ¦{_ARGUMENTS}¦}}]¦</tool_calls>',
        special="<tool_calls>¦</tool_calls>",
        options=_parsers("apriel"),
    ),
    "cohere": Script(
        f"<|START_THINKING|>¦{_THOUGHT}¦<|END_THINKING|>¦<|START_ACTION|>¦"
        f'[{{"tool_name": "weather", "parameters": ¦{_ARGUMENTS}¦}}]¦<|END_ACTION|>',
        "<|START_RESPONSE|>¦Yes, ¦it rains.¦<|END_RESPONSE|>",
        "<|START_THINKING|>¦<|END_THINKING|>¦<|START_ACTION|>¦<|END_ACTION|>¦<|START_RESPONSE|>¦<|END_RESPONSE|>",
        options=_parsers("cohere", "cohere"),
    ),
    "deepseek_v3": Script(
        "I look. ¦<｜tool▁calls▁begin｜>¦<｜tool▁call▁begin｜>¦function¦<｜tool▁sep｜>¦"
        f"weather\n```json\n¦{_ARGUMENTS}¦\n```¦{_DEEPSEEK_END}",
        special=_DEEPSEEK,
        options=_parsers("deepseek_v3"),
    ),
    "deepseek_v31": Script(
        f"<｜tool▁calls▁begin｜>¦<｜tool▁call▁begin｜>¦weather¦<｜tool▁sep｜>¦{_ARGUMENTS}¦{_DEEPSEEK_END}",
        special=_DEEPSEEK,
        options=_parsers("deepseek_v31"),
    ),
    "deepseek_r1": Script(
        f"{_THOUGHT}¦\n¦</think>¦\n\nIt ¦rains.",
        special="<think>¦</think>",
        options=_parsers("hermes", "deepseek_r1"),
    ),
    "functiongemma": Script(
        "<start_function_call>¦call:weather{¦days:¦2¦}¦<end_function_call>",
        special="<start_function_call>¦<end_function_call>¦<escape>",
        options=_parsers("functiongemma"),
    ),
    "gemma4": Script(
        f"<|channel>¦thought\n¦{_THOUGHT}¦<channel|>¦<|tool_call>¦call:weather{{¦days:¦2¦}}¦<tool_call|>",
        special='<|tool_call>¦<tool_call|>¦<|"|>¦<|channel>¦<channel|>',
        options=_parsers("gemma4", "gemma4"),
    ),
    "glm45": Script(
        "<tool_call>¦weather\n¦<arg_key>¦city¦</arg_key>¦\n¦<arg_value>¦Köln¦</arg_value>¦Ċ¦</tool_call>",
        special="<tool_call>¦</tool_call>¦<arg_key>¦</arg_key>¦<arg_value>¦</arg_value>",
        options=_parsers("glm45"),
    ),
    "granite3": Script(
        f"<think>¦{_THOUGHT}¦</think>¦<respon¦se>¦I look.¦</response>\n¦<|tool_call|>¦"
        f'[{{"name": "weather", "arguments": ¦{_ARGUMENTS}¦}}]',
        special="<|tool_call|>¦<tool_call>",
        options=_parsers("granite3", "granite3"),
    ),
    "harmony": Script(
        f"<|channel|>¦commentary to=functions.weather ¦<|constrain|>¦json¦<|message|>¦{_ARGUMENTS}¦<|call|>",
        f"<|channel|>ana¦lysis<|message|>¦{_THOUGHT}¦<|end|><|start|>assis¦tant<|channel|>fin¦al<|message|>¦Yes, ¦"
        "it rains.¦<|return|>",
        "<|channel|>¦<|message|>¦<|end|>¦<|start|>¦<|constrain|>¦<|call|>¦<|return|>",
        options=_parsers("harmony", "gpt_oss"),
    ),
    "hunyuan": Script(
        f"<think>¦{_THOUGHT}¦</think>¦<answer>\n¦It rains.¦\n</answer>",
        options=_parsers("hermes", "hunyuan"),
    ),
    "kimi_k2": Script(
        "<think>¦The weather¦ tool.¦<|tool_calls_section_begin|>¦<|tool_call_begin|>¦functions.weather:0¦"
        f"<|tool_call_argument_begin|>¦{_ARGUMENTS}¦<|tool_call_end|>¦<|tool_calls_section_end|>",
        special=f"<think>¦</think>¦{_KIMI}¦<|tool_calls_section_end|>",
        options=_parsers("kimi_k2", "kimi_k2"),
    ),
    "lfm2": Script(
        '<|tool_call_start|>¦[weather(¦city="Köln"¦, days=2)¦]¦<|tool_call_end|>',
        special="<|tool_call_start|>¦<|tool_call_end|>",
        options=_parsers("lfm2"),
    ),
    "llama3_json": Script(
        f'{{"name": "weather", ¦"parameters": ¦{_ARGUMENTS}¦}}',
        special="<|python_tag|>",
        options=_parsers("llama3_json"),
    ),
    "minimax_m2": Script(
        '<minimax:tool_call>¦\n<invoke name="weather">\n¦<parameter name=¦"city">¦Köln</parameter>\n¦</invoke>\n¦'
        "</minimax:tool_call>",
        special="<minimax:tool_call>¦</minimax:tool_call>",
        options=_parsers("minimax_m2"),
    ),
    "mistral_v11": Script(
        f"[THINK]¦{_THOUGHT}¦[/THINK]¦[TOOL_CALLS]¦weather¦[ARGS]¦{_ARGUMENTS}",
        special="[TOOL_CALLS]¦[CALL_ID]¦[ARGS]¦[THINK]¦[/THINK]",
        options=_parsers("mistral_v11", "mistral"),
    ),
    "mistral_v3": Script(
        f'[TOOL_CALLS]¦[{{"name": "weather", "arguments": ¦{_ARGUMENTS}¦}}]',
        special="[TOOL_CALLS]",
        options=_parsers("mistral_v3"),
    ),
    "nemotron_v2": Script(
        f'<TOOLCALL>¦[{{"name": "weather", "arguments": ¦{_ARGUMENTS}¦}}]¦</TOOLCALL>',
        special="<TOOLCALL>¦</TOOLCALL>",
        options=_parsers("nemotron_v2"),
    ),
    "phi4_mini": Script(
        f'functools[¦{{"name": "weather", "arguments": ¦{_ARGUMENTS}¦}}]',
        special="<|tool_call|>¦<|/tool_call|>",
        options=_parsers("phi4_mini"),
    ),
    "pythonic": Script(
        '<|python_start|>¦[weather(¦city="Köln"¦, days=2)¦]¦<|python_end|>',
        special="<|python_start|>¦<|python_end|>",
        options=_parsers("pythonic"),
    ),
    "qwen3_coder": Script(
        "I look.¦\n¦<tool_call>¦\n<function=weather>\n¦<parameter=city>\n¦Köln¦\n</parameter>\n¦<parameter=days>\n2¦"
        "\n</parameter>\n</function>\n¦</tool_call>",
        special="<tool_call>¦</tool_call>",
        options=_parsers("qwen3_coder"),
    ),
    "seed_oss": Script(
        f"<seed:think>¦{_THOUGHT}¦</seed:think>¦<seed:tool_call>¦\n<function=weather>\n¦<parameter=¦city>¦Köln</parameter>\n"
        "¦</function>\n¦</seed:tool_call>",
        special="<seed:tool_call>¦</seed:tool_call>¦<seed:think>¦</seed:think>",
        options=_parsers("seed_oss", "seed_oss"),
    ),
}
