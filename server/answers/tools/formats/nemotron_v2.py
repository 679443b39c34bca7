"""Nemotron Nano 2: a list of objects in tags."""

from numaserve.server.answers.tools.json_format import JsonFormat

FORMAT = JsonFormat(
    name="nemotron_v2",
    in_template=("<TOOLCALL>", "</TOOLCALL>"),
    triggers=("<TOOLCALL>",),
    tokens=("<TOOLCALL>", "</TOOLCALL>"),
    begin="<TOOLCALL>[",
    separator=", ",
    end="]</TOOLCALL>",
)
