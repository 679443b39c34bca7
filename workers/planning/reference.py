"""The needs of the reference backend that the kernels do not have: one rank, torch, and memory."""

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import Backend, KvCacheDtype
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.handles import Matrix

TORCH_BYTES = 1 << 30  # the library, and the temporaries of its functions
_FP32 = 4

NOTE = (
    "--backend reference runs the model in torch: responses differ slightly from responses of the kernels,"
    " and take much longer than the estimate, which is for the kernels"
)


def only_rank(tp: int | None) -> int:
    """Return the number of ranks. Raises `OperatorError` where more than one is asked for."""
    if tp is not None and tp > 1:
        raise OperatorError(f"--backend reference runs on one rank, not {tp}: leave out --tp")
    return 1


def matrices_of(part: RankPart) -> list[Matrix]:
    """Each matrix of a rank once."""
    return [matrix for parameter in part.distinct() for matrix in part.matrices(parameter)]


def expanded_bytes(part: RankPart) -> int:
    """Memory of a rank's matrices in fp32, in addition to the packed ones."""
    return sum(_FP32 * matrix.n * matrix.k for matrix in matrices_of(part))


def draft_bytes(model: ModelConfig, part: RankPart, backend: Backend) -> int:
    """Memory of a slot's recurrent states for a draft token. The reference keeps the states after it."""
    return model.decoder.state_bytes(part) if backend == "reference" else model.decoder.draft_bytes(part)


def page_bytes(model: ModelConfig, part: RankPart, backend: Backend, dtype: KvCacheDtype) -> int:
    """Memory of a page of KV cache. The reference keeps the values of codes, in fp32."""
    if backend == "native" or dtype == "bf16":
        return model.decoder.page_bytes(part, dtype)
    return 2 * model.decoder.page_bytes(part, "bf16")


def window_page_bytes(model: ModelConfig, part: RankPart, backend: Backend, dtype: KvCacheDtype) -> list[int]:
    """Memory of a page of each window, which is part of `page_bytes`."""
    if backend == "native" or dtype == "bf16":
        return model.decoder.window_page_bytes(part, dtype)
    return [2 * each for each in model.decoder.window_page_bytes(part, "bf16")]
