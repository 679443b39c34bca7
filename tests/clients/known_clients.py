"""The clients that are tried, and in what environment."""

from dataclasses import dataclass
from typing import Literal

Model = Literal["", "agent", "encoder", "reranker", "demo-images"]
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
    "thoughts",
    "structured output",
    "images",
    "embeddings",
    "truncation",
    "ranking",
    "search",
    "overflow",
    "cancellation",
    "errors",
    "both servers",
)
BOTH_SERVERS = CHECKS[-1]
SCRIPT = "script"  # what fails where a script does not come to its end


@dataclass(frozen=True)
class Client:
    """A client, pinned, and the script in `scripts/` that uses it. The first package is the client itself.

    A script in JavaScript imports packages of npm; one in Python imports those of pip, or runs a command of `npm`.
    """

    name: str
    script: str
    packages: dict[str, str]  # versions by name
    routes: bool = False  # it stands before two servers
    npm: bool = False  # its packages are npm's, and its script is in Python
    model: Model = ""  # of its servers, see `models`; empty: the demo model

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
    Client("claude-code", "claude_code.py", {"@anthropic-ai/claude-code": "2.1.332"}, npm=True, model="agent"),
    Client("opencode", "opencode.py", {"opencode-ai": "1.18.33"}, npm=True, model="agent"),
    Client("qwen-code", "qwen_code.py", {"@qwen-code/qwen-code": "0.24.4"}, npm=True, model="agent"),
    Client("aider", "aider.py", {"aider-chat": "0.86.2"}, model="agent"),
    Client("langchain-js", "langchain.mjs", {"@langchain/openai": "1.6.0", "@langchain/core": "1.4.0"}, model="agent"),
    Client("haystack", "haystack_py.py", {"haystack-ai": "3.4.1"}, model="agent"),
    Client("semantic-kernel", "semantic_kernel_py.py", {"semantic-kernel": "1.45.0"}, model="agent"),
    Client("codex", "codex.py", {"@openai/codex": "0.171.0"}, npm=True, model="agent"),
    Client("copilot", "copilot.py", {"@github/copilot": "1.0.102"}, npm=True, model="agent"),
    Client("pi", "pi.py", {"@mariozechner/pi-coding-agent": "0.73.1"}, npm=True, model="agent"),
    Client("cline", "cline.py", {"cline": "3.0.65"}, npm=True, model="agent"),
    Client("strands", "strands_py.py", {"strands-agents[openai]": "1.62.0"}, model="agent"),
    Client("adk", "adk_py.py", {"google-adk": "2.13.0", "litellm": "1.110.2"}, model="agent"),
    Client("smolagents", "smolagents_py.py", {"smolagents[openai]": "1.26.0"}, model="agent"),
    Client("agno", "agno_py.py", {"agno": "3.1.10", "openai": "3.57.0"}, model="agent"),
    Client("crewai", "crewai_py.py", {"crewai": "1.15.30"}, model="agent"),
    Client(
        "litellm-proxy", "litellm_proxy_cli.py", {"litellm[proxy]": "1.108.7", "anthropic": "2.12.0"}, model="agent"
    ),
    Client("openai-images", "openai_images_py.py", {"openai": "3.54.0"}, model="demo-images"),
    Client("anthropic-images", "anthropic_images_py.py", {"anthropic": "2.12.0"}, model="demo-images"),
    Client("ollama-images", "ollama_images_py.py", {"ollama": "0.6.3"}, model="demo-images"),
    Client("openai-embeddings", "openai_embeddings_py.py", {"openai": "3.57.0"}, model="encoder"),
    Client("cohere", "cohere_py.py", {"cohere": "7.3.1"}, model="encoder"),
    Client("huggingface-hub", "huggingface_hub_py.py", {"huggingface-hub": "2.4.0", "numpy": "2.4.6"}, model="encoder"),
    Client(
        "langchain-embeddings",
        "langchain_embeddings_py.py",
        {"langchain-openai": "1.7.4", "numpy": "2.4.6"},
        model="encoder",
    ),
    Client(
        "llama-index-embeddings",
        "llama_index_embeddings_py.py",
        {"llama-index-embeddings-openai": "0.7.0", "llama-index-embeddings-text-embeddings-inference": "0.6.0"},
        model="encoder",
    ),
    Client(
        "haystack-embeddings",
        "haystack_embeddings_py.py",
        {"haystack-ai": "3.4.1", "huggingface-api-haystack": "3.1.0"},
        model="encoder",
    ),
    Client("chromadb", "chromadb_py.py", {"chromadb": "1.5.9", "openai": "3.57.0"}, model="encoder"),
    Client("qdrant", "qdrant_py.py", {"qdrant-client": "1.20.0"}, model="encoder"),
    Client("cohere-rerank", "cohere_rerank_py.py", {"cohere": "7.3.1"}, model="reranker"),
    Client("langchain-cohere", "langchain_cohere_py.py", {"langchain-cohere": "0.6.0"}, model="reranker"),
    Client(
        "llama-index-rerank",
        "llama_index_rerank_py.py",
        {"llama-index-postprocessor-tei-rerank": "0.6.0"},
        model="reranker",
    ),
    Client(
        "haystack-ranker",
        "haystack_ranker_py.py",
        {"haystack-ai": "3.4.1", "huggingface-api-haystack": "3.1.0"},
        model="reranker",
    ),
    Client("sglang-router", "sglang_router_cli.py", {"sglang-router": "0.3.2"}, routes=True),
    Client("vllm-router", "vllm_router_cli.py", {"vllm-router": "0.1.17"}, routes=True),
    Client("smg", "smg_cli.py", {"smg": "1.13.0"}, routes=True),
)
