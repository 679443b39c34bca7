"""Text work of requests: tokenizing, detokenizing and chat templates, in threads of its own, admitted and in turns."""
