"""``python -m tests.fuzz.one TARGET OPTION ...``: one target under atheris, with libFuzzer's options."""

import sys
import warnings

import atheris

with atheris.instrument_imports(include=["numaserve", "gguf", "PIL"]):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.mutations import CODECS, mutated


def main() -> None:
    """Run until the time is over, or something is found."""
    target = sys.argv[1]
    warnings.simplefilter("error")

    codec = CODECS.get(target)

    def mutator(data: bytes, size: int, seed: int) -> bytes:
        assert codec is not None
        return mutated(data, size, seed, codec, atheris.Mutate)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[target], custom_mutator=mutator if codec else None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
