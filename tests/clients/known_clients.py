"""The clients that are tried, and in what environment."""

from dataclasses import dataclass

# What may be checked of a client, in the order of the table's columns.
CHECKS = (
    "models",
    "chat",
    "chat stream",
    "second turn",
    "completion",
    "completion stream",
    "log-probabilities",
    "tools",
    "tools stream",
    "structured output",
    "errors",
    "both servers",
)
BOTH_SERVERS = CHECKS[-1]
SCRIPT = "script"  # what fails where a script does not come to its end


@dataclass(frozen=True)
class Client:
    """A client, pinned, and the script in `scripts/` that uses it. The first package is the client itself."""

    name: str
    script: str
    packages: dict[str, str]  # versions by name
    routes: bool = False  # it stands before two servers

    @property
    def version(self) -> str:
        """The client's own."""
        return next(iter(self.packages.values()))

    @property
    def in_javascript(self) -> bool:
        """Whether its packages are npm's."""
        return self.script.endswith(".mjs")


# The newest versions whose own dependencies could be had together; those in JavaScript run on Node.js 18 and newer.
CLIENTS = (
    Client("openai-python", "openai_py.py", {"openai": "3.54.0"}),
    Client("openai-js", "openai_js.mjs", {"openai": "6.30.1"}),
    Client("litellm", "litellm_py.py", {"litellm": "1.105.3"}),
    Client("langchain-openai", "langchain_openai_py.py", {"langchain-openai": "1.6.7"}),
    Client("openai-agents", "openai_agents_py.py", {"openai-agents": "0.24.0"}),
    Client("anthropic", "anthropic_py.py", {"anthropic": "2.12.0"}),
    Client("instructor", "instructor_py.py", {"instructor": "1.17.0"}),
    Client("pydantic-ai", "pydantic_ai_py.py", {"pydantic-ai-slim[openai]": "2.68.0"}),
    Client(
        "llama-index",
        "llama_index_py.py",
        {"llama-index-core": "0.14.25", "llama-index-llms-openai-like": "0.8.1"},
    ),
    Client("ai-sdk", "ai_sdk.mjs", {"ai": "6.0.322", "@ai-sdk/openai-compatible": "2.0.87"}),
    Client("ai-sdk-openai", "ai_sdk_openai.mjs", {"@ai-sdk/openai": "3.0.141", "ai": "6.0.322"}),
    # torch only as a pin: left alone, pip takes a build for another machine.
    Client("guidellm", "guidellm_cli.py", {"guidellm": "0.8.1", "torch": "2.13.0"}),
    Client("aiperf", "aiperf_cli.py", {"aiperf": "0.13.0"}),
    Client("lm-eval", "lm_eval_cli.py", {"lm_eval[api]": "0.4.13", "transformers": "5.23.0"}),
    Client("ollama", "ollama_py.py", {"ollama": "0.6.3"}),
    Client("sglang-router", "sglang_router_cli.py", {"sglang-router": "0.3.2"}, routes=True),
    Client("vllm-router", "vllm_router_cli.py", {"vllm-router": "0.1.17"}, routes=True),
    Client("smg", "smg_cli.py", {"smg": "1.13.0"}, routes=True),
)
