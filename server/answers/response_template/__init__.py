"""Reading answers by a model's response template, the definition that transformers' `parse_response` follows.

A response template is stored in tokenizer_config.json. It defines the opening and closing marks of each field of a
message, as literal texts or regular expressions. It also defines the conversion of the text between them to a value.
Expressions and texts come from a model, so a confined process evaluates them: it runs `process`, and `ResponseTemplate`
queries it.
"""
