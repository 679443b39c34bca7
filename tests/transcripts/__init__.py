"""Transcripts of every route and stream of the API over `FakeEngine`: requests, what reaches the engine, and answers.

A file of `data/` is read from top to bottom. Lines that begin so are written by hand:

    == NAME            a scene: its requests meet a new engine
    @ model NAME JSON  the model of a scene, see `models.MODELS`; before the first scene, of the whole file
    @ engine JSON      fields of `FakeEngine`
    @ post PATH JSON   the path and the fields of requests without a line of their own for a path
    @ let NAME JSON    a value that stands for "$NAME" in bodies
    > METHOD PATH JSON a request; JSON has its headers and may be missing
    > JSON             the body of that request, or its fields beyond those of `@ post`
    # TEXT             a comment

These lines are recorded with `python -m tests.transcripts --record`:

    + JSON JSON        a prompt that reaches the engine, and the fields of its request that are not the usual ones
    < STATUS TYPE      the answer, its media type unless that is JSON, headers after "|", and a short body
    < TEXT             a line or an event of the answer; … stands for the beginning of the line before

In bodies "$drop" leaves out a field of `@ post`, and "$x*9" is the text or the list `x`, repeated. Ids are numbered in
the order of their appearance; a number in a request stands for the id of an earlier answer of the scene.
"""
