"""Random checkpoints of models that see, as llama.cpp's own converter makes two files of each: text model and tower."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numaserve.kernels import Team

from tests.engines.hybrids import CONVERTER
from tests.support import checkpoints, grid_vision, vision
from tests.support.image_features import of_ranks
from tests.support.llama_cpp import llama_cpp_files
from tests.support.loaded import load_part

_KINDS = {"model.gguf": "BF16", "mmproj-model.gguf": "F16"}


def compare_towers(place: Path) -> bool:
    """Print a line for each model; whether features of some differ from those of its folder in a bit. `place` keeps
    the converter."""
    converter = llama_cpp_files(place, "conversion/", "gguf-py/")
    allowed = os.sched_getaffinity(0)
    team = Team([min(allowed)])
    os.sched_setaffinity(0, allowed)  # the team pins its caller
    differ = False
    for name, config in vision.CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            model = checkpoints.build(config())
            checkpoint = vision.save(model, Path(folder) / "checkpoint")
            _name_text_model(checkpoint)
            _convert(converter, checkpoint, Path(folder), _KINDS)
            values = vision.values_of(vision.random_tiles(model.config, 2))
            paths = checkpoint, Path(folder) / "model.gguf"
            ours, theirs = (of_ranks([load_part(path, team, [1])], values)[0] for path in paths)
            same = np.array_equal(ours, theirs)
        print(
            f"{name}: features of the converted files {'have the bits' if same else 'DIFFER from those'} of the folder"
        )
        differ |= not same
    return _compare_grids(converter, team) or differ


def _compare_grids(converter: Path, team: Team) -> bool:
    """The same for models that see images of any size, by the weights of their towers."""
    differ = False
    for name, config in grid_vision.CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = grid_vision.save(checkpoints.build(config()), Path(folder) / "checkpoint")
            files = dict.fromkeys(_KINDS, "BF16")  # which rounds nothing
            _convert(converter, checkpoint, Path(folder), files)
            paths = checkpoint, Path(folder) / "model.gguf"
            ours, theirs = (load_part(path, team, [1]).tower_weights() for path in paths)
            same = all(np.array_equal(*each) for each in zip(ours, theirs, strict=True))
        print(
            f"{name}: weights of the converted tower {'have the bits' if same else 'DIFFER from those'} of the folder"
        )
        differ |= not same
    return differ


def _convert(converter: Path, checkpoint: Path, folder: Path, kinds: Mapping[str, str]) -> None:
    for file, kind in kinds.items():
        command = [sys.executable, CONVERTER, converter, checkpoint, kind, folder / file]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def _name_text_model(checkpoint: Path) -> None:
    """Name the class of the text model, as published checkpoints do: the converter finds it by this name."""
    path = checkpoint / "config.json"
    values = json.loads(path.read_text())
    values["text_config"]["architectures"] = ["VLlama3ForCausalLM"]
    path.write_text(json.dumps(values))
