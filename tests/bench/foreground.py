"""`python -m tests.bench.foreground [MODEL]`: the steps of one rank in this process, for a debugger or a profiler.

Loads the model as `numaserve bench offline` does, without another process: prompts, then decodes. CONTRIBUTING.md has
the commands.
"""

import argparse
from typing import Any

from numaserve.server.cli.bench_model import deployments
from numaserve.workers.bench.steps import run_steps
from numaserve.workers.bench.tasks import RunSteps
from numaserve.workers.weights.hub import resolve_model


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.foreground", description=__doc__)
    parser.add_argument("model", nargs="?", default="demo", help="folder, GGUF file or demo (default: demo)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the rank (default: 1)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (default: 512)")
    parser.add_argument("--steps", type=int, default=32, help="steps of decode (default: 32)")
    parser.add_argument("--batch", type=int, default=1, help="sequences (default: 1)")
    options = parser.parse_args()
    settings: dict[str, Any] = {
        "threads_per_worker": options.threads,
        "max_running_requests": options.batch,
        "context_length": max(32, options.prompt + options.steps),
        "state_cache_gib": 0,
    }
    (deployment,) = deployments(options.model, resolve_model(options.model), [1], settings)
    task = RunSteps(deployment.launches[0], [options.batch], options.prompt, options.steps, prefills=1)
    for phase in run_steps(task, print).phases:
        print(f"{phase.name}: {1e3 * sum(phase.seconds) / len(phase.seconds):.1f} ms each")


if __name__ == "__main__":
    main()
