"""The help of every command, and what a few commands print without a server."""

from tests.golden.cases import NOTHING, Command

_COMMANDS = (
    *("", "serve", "chat", "topology", "plan", "doctor", "profile", "top", "ring-stat", "completion", "version"),
    *("bench", "bench kernels", "bench ring", "bench offline", "bench load", "bench serve", "bench compare"),
    *("cache", "cache list", "cache clear"),
)
_SHORT = ("--input-len", "128", "--output-len", "64")
_PLANS = {
    "of a shape": ("--shape", "llama-8b", "--host", "2x6980p"),
    "of a checkpoint": ("{models}/family-qwen3_moe", "--host", "6972p", "--tp", "2", "--batch-size", "4", *_SHORT),
    "of latents": ("{models}/family-deepseek_v3", "--host", "2x8592+", "--quantization", "int8", *_SHORT),
}
ALL = (
    *(Command(f"help {name}", (*name.split(), "--help")) for name in _COMMANDS),
    *(Command(f"plan {name}", ("plan", *options)) for name, options in _PLANS.items()),
    Command("a model that is not there", ("serve", f"{{models}}/{NOTHING}")),
    Command("an option that is not there", ("serve", "demo", "--nothing")),
    Command("a misspelt format", ("serve", "{models}/family-qwen3", "--tool-call-parser", "hermez")),
    Command("completion of bash", ("completion", "bash")),
)
