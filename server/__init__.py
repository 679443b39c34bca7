"""The front end process: HTTP, tokenizer, scheduler, dispatch and supervision. Never imports torch."""
