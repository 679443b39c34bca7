"""Reading answers by a model's response template: what transformers' `parse_response` follows.

A response template stands in tokenizer_config.json. It tells the fields of a message by what opens and what closes
each, by literal texts or regular expressions, and how the text between becomes a value. Expressions and texts come from
a model, so that a confined process reads: `process` is what it runs, `ResponseTemplate` what asks it.
"""
