"""POST /predict."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.answer_size import AnswerSize
from numaserve.server.generation.classifier import activated
from numaserve.server.generation.classifier_inputs import Cut, items_asked
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.many import Inputs, ends_of
from numaserve.server.generation.served_purpose import classifier
from numaserve.server.generation.start import check_model
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.http.large_json import answer_in_pieces, array_pieces
from numaserve.server.surfaces.streaming import json_response
from numaserve.server.surfaces.tei.responses import BODY_ERRORS, Prediction
from numaserve.server.surfaces.tei.schema import TeiPredictRequest


def predict_router(context: ApiContext) -> APIRouter:
    """Return the route of this module."""
    router = APIRouter(tags=["text-embeddings-inference"], route_class=body_route(context.bodies))

    @router.post("/predict", response_model=list[Prediction] | list[list[Prediction]], responses=BODY_ERRORS)
    async def predict(body: TeiPredictRequest, request: Request) -> Response:
        """Classify texts or pairs of texts, in the format of text-embeddings-inference; needs a model with a
        classification head."""
        check_model(context, body.model)
        purpose = classifier(context.purpose)
        items, cut, param = body.items, Cut(context=bool(body.truncate)), "inputs"
        inputs = Inputs(len(items), param, partial(items_asked, context, items, cut, param=param, model=body.model))
        size = AnswerSize.of_scores(purpose.labels)
        ends = await ends_of(context, request, inputs, record_of(request).request_id, size)
        activation = "none" if body.raw_scores else purpose.probability
        predictions = (_predictions(purpose.labels, activated([each], activation)[0]) for each in ends)
        if body.is_batch:
            return await answer_in_pieces(array_pieces(predictions))
        return json_response(next(predictions))

    return router


def _predictions(labels: Sequence[str], scores: npt.NDArray[np.float64]) -> list[dict[str, object]]:
    """Return the labels with their scores, the best first."""
    return [{"score": float(scores[at]), "label": labels[at]} for at in np.argsort(-scores, kind="stable")]
