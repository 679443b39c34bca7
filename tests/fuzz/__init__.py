"""What reads bytes of others, under atheris and in a native target: `make fuzz`. Findings stay in corpus/."""
