"""The messages between the front end and the workers, and nothing else.

Every message is a msgspec struct encoded with msgpack, sent as one ZeroMQ frame over ``ipc://``. The first byte of a
frame is `PROTOCOL_VERSION`: a worker left over from another version is recognized before anything is decoded. Unknown
fields and wrong types are refused by msgspec; nothing is ever unpickled.

Vocabulary: a *slot* is a sequence's place in a batch; a *page* holds `PAGE_SIZE` tokens of KV cache; page numbers are
assigned by the front end and are the same on every rank.
"""

from numaserve.workers.interface.capacity import PAGE_SIZE
from numaserve.workers.interface.protocol.adapters import NO_ADAPTER, AdapterLoaded, LoadAdapter, LoraAdapter
from numaserve.workers.interface.protocol.disk import (
    CancelMove,
    DiskProblem,
    DiskReady,
    DiskRecord,
    ReadRecords,
    RecordsMoved,
    WriteRecords,
)
from numaserve.workers.interface.protocol.frames import (
    PROTOCOL_VERSION,
    FromDisk,
    FromWorker,
    ProtocolError,
    ToDisk,
    ToWorker,
    decode_from_worker,
    decode_to_worker,
    encode,
)
from numaserve.workers.interface.protocol.launches import (
    DraftModel,
    Failure,
    Launch,
    LoadProgress,
    OperationTerms,
    Ready,
    Shutdown,
    WeightsCache,
    WeightsOrigin,
    WorkerStats,
)
from numaserve.workers.interface.protocol.profiles import Ceilings, OperationProfile, ProfileRequest, RankProfile
from numaserve.workers.interface.protocol.steps import (
    KEPT_HIDDEN_STATES,
    MAX_LOGPROBS,
    MAX_MASKED_DRAFTS,
    TO_BE_DRAFTED,
    DraftWork,
    PlacedRows,
    SampledToken,
    SamplingParams,
    SeqPlan,
    SeqResult,
    SlotInit,
    StateWork,
    StepPlan,
    StepResult,
    TokenLogprobs,
    TowerWork,
    VectorForm,
    WindowWork,
    mask_rows,
)

__all__ = [
    "KEPT_HIDDEN_STATES",
    "MAX_LOGPROBS",
    "MAX_MASKED_DRAFTS",
    "NO_ADAPTER",
    "PAGE_SIZE",
    "PROTOCOL_VERSION",
    "TO_BE_DRAFTED",
    "AdapterLoaded",
    "CancelMove",
    "Ceilings",
    "DiskProblem",
    "DiskReady",
    "DiskRecord",
    "DraftModel",
    "DraftWork",
    "Failure",
    "FromDisk",
    "FromWorker",
    "Launch",
    "LoadAdapter",
    "LoadProgress",
    "LoraAdapter",
    "OperationProfile",
    "OperationTerms",
    "PlacedRows",
    "ProfileRequest",
    "ProtocolError",
    "RankProfile",
    "ReadRecords",
    "Ready",
    "RecordsMoved",
    "SampledToken",
    "SamplingParams",
    "SeqPlan",
    "SeqResult",
    "Shutdown",
    "SlotInit",
    "StateWork",
    "StepPlan",
    "StepResult",
    "ToDisk",
    "ToWorker",
    "TokenLogprobs",
    "TowerWork",
    "VectorForm",
    "WeightsCache",
    "WeightsOrigin",
    "WindowWork",
    "WorkerStats",
    "WriteRecords",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
    "mask_rows",
]
