"""Which position encodings carry over to longer sequences?"""
