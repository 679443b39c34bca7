"""The product files that name a representative, and those of a patch."""

from tests.columns.__main__ import naming, patched


def test_a_file_counts_that_names_the_representative_in_any_spelling() -> None:
    texts = {
        "server/config/serve.py": "rms_norm: int",
        "workers/ops/norms.py": "class RmsNormArgs:",
        "deploy/options.yaml": "--rms-norm 1",
        "kernels/ops/rms_norm.inl": "",
        "server/other.py": "gated_rms_norm, rms_norms, RmsNormal and xRmsNorm are other words",
    }
    assert naming("rms_norm", texts) == sorted(texts.keys() - {"server/other.py"})
    assert patched("1\t0\tserver/a.py\n2\t2\ttests/a.py\n-\t-\tconfigs/b.bin\n3\t0\tREADME.md\n") == [
        "configs/b.bin",
        "server/a.py",
    ]
